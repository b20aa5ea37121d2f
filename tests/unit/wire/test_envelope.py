"""The envelope, against its rules and against what a running Go server sent."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.pb import api_pb2
from tests.harness import paths

VECTORS = [json.loads(line) for line in (paths.VECTORS / "envelopes.jsonl").read_text().splitlines()]
API_MESSAGES: dict[MsgType, type[Message]] = {MsgType.PUBLISH: api_pb2.Message, MsgType.ACK: api_pb2.Ack}


def vector_id(vector: dict[str, Any]) -> str:
    return f"{vector['name']}-{vector['subject'].rpartition('.')[2]}"


def test_every_type_was_captured() -> None:
    assert {vector["type"] for vector in VECTORS} == {int(known) for known in MsgType if known is not MsgType.BATCH}
    for vector in VECTORS:
        assert MsgType(vector["type"]).name.replace("_", "").lower() == vector["name"].lower()


@pytest.mark.parametrize("vector", VECTORS, ids=vector_id)
def test_a_captured_envelope_decodes_and_encodes_to_the_same_bytes(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    payload = decode(data, MsgType(vector["type"]))
    assert payload is not None
    assert encode(MsgType(vector["type"]), payload) == data
    for other in MsgType:
        if other != vector["type"]:
            assert decode(data, other) is None


@pytest.mark.parametrize("vector", [vector for vector in VECTORS if "decoded" in vector], ids=vector_id)
def test_a_captured_payload_is_the_message_we_know(vector: dict[str, Any]) -> None:
    payload = decode(bytes.fromhex(vector["hex"]), MsgType(vector["type"]))
    assert payload is not None
    message = API_MESSAGES[MsgType(vector["type"])].FromString(payload)
    assert json_format.MessageToDict(message) == vector["decoded"]
    assert message.SerializeToString(deterministic=True) == payload


def test_vectors_hold_the_values_that_were_published() -> None:
    values = [base64.b64decode(vector["decoded"].get("value", "")) for vector in VECTORS if vector["type"] == 0]
    assert b"hello-0" in values


def test_a_checksum_is_written_big_endian_and_checked() -> None:
    data = encode(MsgType.ACK, b"123456789", crc=True)
    assert data == bytes.fromhex("b90e43b4000c0101e3069283") + b"123456789"
    assert decode(data, MsgType.ACK) == b"123456789"
    for position in range(8, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert decode(bytes(damaged), MsgType.ACK) is None


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        ("b90e43b400080000", b""),
        ("b90e43b400080000aa", b"\xaa"),
        ("b90e43b4000800", None),
        ("", None),
        ("b80e43b400080000", None),
        ("b90e43b401080000", None),
        ("b90e43b400080001", None),
        ("b90e43b400090000", None),
        ("b90e43b400ff0000aa", None),
        ("b90e43b400090000aabb", b"\xbb"),
        ("b90e43b4000c000001020304aa", b"\xaa"),
        ("b90e43b40008fe00aa", b"\xaa"),
        ("b90e43b400080100aa", None),
        ("b90e43b4000c010000000000", b""),
        ("b90e43b4000c0100000000", None),
        ("b90e43b400070000aa", b"\x00\xaa"),
    ],
)
def test_the_rules_of_the_header(data: str, payload: bytes | None) -> None:
    assert decode(bytes.fromhex(data), MsgType.PUBLISH) == payload
