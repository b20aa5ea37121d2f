"""Calls between brokers: what comes is checked in one place, and what cannot be decoded is counted and ignored."""

import ast
import asyncio
import logging
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.errors import BusUnavailable, DeadlineExceeded, PeerError, Unavailable
from bascule.node.calls import messages
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import HEARTBEAT, HEARTBEATS_WANTED, OTHER_LOG, STREAM_STATUS, Kind, Message, Method
from bascule.node.calls.subjects import Subjects
from bascule.node.runtime.countedlog import CountedLog
from bascule.node.runtime.metrics import Metrics
from bascule.sim.host import SeededRandom
from bascule.testing.bus import MemoryBus, MemoryNats
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, encode
from bascule.wire.nats import messages as messages_of
from bascule.wire.nats import pub
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.raft import decode_message, encode_message
from bascule.wire.raft_messages import Heartbeat
from bascule.wire.repair import LogAnswer, LogEnd, Question
from tests.harness.members import three, within

NODE = Path(bascule.__file__).parent / "node"
MESSAGES: list[tuple[Message[Any], Any]] = [
    (HEARTBEAT, pb.ServerInfoResponse(id="b", host="there", port=2, boot="boot", beat=1)),
    (HEARTBEATS_WANTED, pb.ServerInfoRequest(id="b")),
    (messages.FOUNDING, pb.Bootstrap(id="b", incarnation="one", seed=True)),
    (messages.JOIN.question, pb.RaftJoinRequest(nodeID="b", incarnation="one")),
    (messages.JOIN.answer, pb.RaftJoinResponse(error="not yet", cluster="x")),
    (messages.CHANGE.question, pb.PropagatedRequest(op=pb.BARRIER)),
    (messages.CHANGE.answer, pb.PropagatedResponse(op=pb.BARRIER, index=7)),
    (STREAM_STATUS.question, pb.PartitionStatusRequest(creationIndex=3)),
    (STREAM_STATUS.answer, pb.PartitionStatusResponse(exists=True, isLeader=True)),
    (messages.POSITIONS.question, pb.PositionsRequest(stream="s", partitions=[1])),
    (messages.POSITIONS.answer, pb.PositionsResponse(sync="group")),
    (messages.ORDER.question, pb.PropagatedRequest(op=pb.STOP_BROKER)),
    (messages.ORDER.answer, pb.PropagatedResponse(op=pb.STOP_BROKER)),
    (OTHER_LOG.question, Question(7, 0, 3, 9, 0, "b")),
    (OTHER_LOG.answer, LogAnswer(True, True, LogEnd(4, 9), 3, b"abc", True)),
    (messages.ENDED_CALLS, [b"u1", b"s2"]),
    (
        Message("a message to Raft", None, lambda payload: decode_message(bytes(payload)), encode_message),
        Heartbeat("b", "a", 3, 7, 0, 0),
    ),
]


def calls_of(nats: MemoryNats, name: str) -> tuple[Calls, MemoryBus]:
    bus = nats.connect(name)
    return Calls(name, Subjects("ns", "x"), bus, SeededRandom(name), Metrics()), bus


async def flushed() -> None:
    await asyncio.sleep(0.1)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]


def receive(calls: Calls, take: Callable[[Any, bytes], None], *kinds: Message[Any]) -> None:
    """Subscribe as brokers do."""

    def on_batch(batch: bytes, count: int) -> None:
        for message in calls.received(batch, *kinds):
            with message as payload:
                (kind,) = [kind for kind in kinds if kind is message.kind]
                take(kind.decode(payload), message.reply)

    calls.subscribe(b"here", on_batch)


# --- receiving ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("message", "value"), MESSAGES, ids=[message.name for message, _ in MESSAGES])
def test_what_is_sent_arrives_and_with_any_wrong_bit_it_is_ignored(message: Message[Any], value: Any) -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (b, bus) = calls_of(nats, "a"), calls_of(nats, "b")
        taken: list[Any] = []
        receive(a, lambda value, reply: taken.append(value), message)
        b.send(b"here", message, value, b"reply")
        await flushed()
        assert taken == [value]
        payload = message.encode(value)
        if message.type is not None:
            payload = encode(message.type, payload, crc=True)
        for position in range(len(payload)):
            changed = bytearray(payload)
            changed[position] ^= 1 << random.Random(position).randrange(8)
            bus.send(pub(b"here", bytes(changed), b"reply"))
            bus.send(pub(b"here", payload[:position], b"reply"))
            await asyncio.sleep(0)
        await flushed()
        assert taken == [value]
        assert a.ignored.counter.values == {message.name: 2 * len(payload)}

    run(main())


def test_every_kind_of_message_is_in_the_list_above() -> None:
    declared = [each for each in vars(messages).values() if isinstance(each, Kind)]
    declared += [
        half for each in vars(messages).values() if isinstance(each, Method) for half in (each.question, each.answer)
    ]
    replication = [messages.FETCH_REQUEST.name, messages.FETCH_PART.name]  # tests/unit/wire has those bytes
    assert sorted(each.name for each in declared) == sorted([*(message.name for message, _ in MESSAGES), *replication])
    assert len({each.name for each in declared}) == len(declared), "they are counted by name"


def test_every_question_wants_an_answer_but_orders() -> None:
    methods = [each for each in vars(messages).values() if isinstance(each, Method)]
    assert [each.question.name for each in methods if not each.question.asks] == [messages.ORDER.question.name]
    assert not [each.answer.name for each in methods if each.answer.asks]


@pytest.mark.parametrize(
    "kinds",
    [(messages.CHANGE.question, messages.ORDER.question), (HEARTBEAT, HEARTBEAT), (HEARTBEAT, messages.RAFT)],
    ids=["one type", "one kind", "no envelope"],
)
def test_kinds_on_one_subject_have_types_that_tell_them_apart(kinds: tuple[Kind, ...]) -> None:
    calls, _ = calls_of(MemoryNats(), "a")
    with pytest.raises(AssertionError, match="told apart by their types"):
        list(calls.received(b"", *kinds))


def test_each_kind_is_told_apart_and_others_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (b, bus) = calls_of(nats, "a"), calls_of(nats, "b")
        taken: list[tuple[type, bytes]] = []
        receive(a, lambda value, reply: taken.append((type(value), reply)), HEARTBEAT, HEARTBEATS_WANTED)
        b.send(b"here", HEARTBEAT, pb.ServerInfoResponse(id="b"))
        b.send(b"here", HEARTBEATS_WANTED, pb.ServerInfoRequest(id="b"), b"reply")
        b.send(b"here", STREAM_STATUS.question, pb.PartitionStatusRequest(creationIndex=3))
        bus.send(pub(b"here", b""))
        bus.send(pub(b"here", encode(MsgType.SERVER_INFO_RESPONSE, b"without a checksum")))
        bus.send(pub(b"here", encode(MsgType.SERVER_INFO_RESPONSE, b"\xff" * 30, crc=True)))
        await flushed()
        assert taken == [(pb.ServerInfoResponse, b""), (pb.ServerInfoRequest, b"reply")]
        assert a.ignored.counter.values == {"a heartbeat": 2, "a heartbeat, or a request for heartbeats": 2}

    run(main())
    assert lines(caplog) == [
        "a heartbeat, or a request for heartbeats that cannot be decoded is ignored: no such envelope",
        "a heartbeat that cannot be decoded is ignored: its envelope or its checksum is wrong",
    ], "one line a kind, and one of them was said"


def test_a_message_that_its_function_refuses_is_counted_too() -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (b, _) = calls_of(nats, "a"), calls_of(nats, "b")

        def refuse(info: pb.ServerInfoResponse, reply: bytes) -> None:
            raise PeerError("no such broker")

        receive(a, refuse, HEARTBEAT)
        b.send(b"here", HEARTBEAT, pb.ServerInfoResponse(id="b"))
        await flushed()
        assert a.ignored.counter.values == {"a heartbeat": 1}

    run(main())


def test_a_function_that_fails_keeps_no_other_message_from_being_taken(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (_b, bus) = calls_of(nats, "a"), calls_of(nats, "b")
        taken: list[str] = []

        def take(info: pb.ServerInfoResponse, reply: bytes) -> None:
            if info.id == "bad":
                raise ValueError("an error of ours")
            taken.append(info.id)

        receive(a, take, HEARTBEAT)
        payloads = [
            encode(MsgType.SERVER_INFO_RESPONSE, pb.ServerInfoResponse(id=name).SerializeToString(), crc=True)
            for name in ("bad", "good")
        ]
        bus.send(b"".join(pub(b"here", payload) for payload in payloads))  # in one batch
        await flushed()
        assert taken == ["good"]

    run(main())
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "a heartbeat could not be handled" in record.getMessage()


def test_a_flood_that_cannot_be_decoded_is_one_line_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        log = CountedLog(logging.getLogger("bascule.test"), Metrics().counter("bascule_lines_total", "Lines"))
        for _ in range(21):
            for _ in range(1000):
                log.count("it is ignored")
            await asyncio.sleep(1)

    run(main())
    more = "it is ignored (9999 more since the last such line)"
    assert lines(caplog) == ["it is ignored", more, more]


def test_what_cannot_be_decoded_does_not_fill_the_log_of_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nats = MemoryNats()
        subject = within(await three(nats), "raft.metadata.a")
        for _ in range(500):
            nats.publish(subject, b"garbage")
        await asyncio.sleep(1)

    run(main())
    assert len(lines(caplog)) == 1


# --- asking ------------------------------------------------------------------------------------------------------


def serve(calls: Calls, answer: Callable[[int], bool | None]) -> None:
    def on_batch(batch: bytes, count: int) -> None:
        for message in calls.received(batch, STREAM_STATUS.question):
            with message as payload:
                exists = answer(STREAM_STATUS.question.decode(payload).creationIndex)
                if exists is not None:
                    calls.tell(message.reply, STREAM_STATUS.answer, pb.PartitionStatusResponse(exists=exists))

    calls.subscribe(calls.subjects.status(calls.broker_id), on_batch)


async def ask(calls: Calls, index: int, timeout_s: float = 1.0) -> bool:
    question = pb.PartitionStatusRequest(creationIndex=index)
    return (await calls.ask(calls.subjects.status("b"), STREAM_STATUS, question, timeout_s)).exists


def test_a_question_gets_its_own_answer_or_none_within_its_time() -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (b, bus) = calls_of(nats, "a"), calls_of(nats, "b")
        a.listen()
        serve(b, lambda index: None if index == 3 else index == 1)
        assert list(await asyncio.gather(ask(a, 1), ask(a, 2))) == [True, False]
        began = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded, match=r"no answer on ns\.x\.raft\.metadata\.status\.b within 0\.5 s"):
            await ask(a, 3, 0.5)
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.5)
        question = pb.PartitionStatusRequest(creationIndex=3)
        assert await a.ask_once(a.subjects.status("b"), STREAM_STATUS, question, 0.5) is None
        bus.disconnect()
        with pytest.raises(BusUnavailable):
            await ask(b, 1)
        assert (a._waiting, b._waiting) == ({}, {}), "nothing is left of questions that are over"

    run(main())


def test_the_first_answer_that_decodes_counts() -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (_, bus) = calls_of(nats, "a"), calls_of(nats, "b")
        a.listen()
        answers = [
            b"garbage",
            encode(MsgType.PARTITION_STATUS_RESPONSE, b"\xff" * 9, crc=True),
            encode(MsgType.PARTITION_STATUS_REQUEST, pb.PartitionStatusResponse().SerializeToString(), crc=True),
            *(
                encode(
                    MsgType.PARTITION_STATUS_RESPONSE,
                    pb.PartitionStatusResponse(exists=exists).SerializeToString(),
                    crc=True,
                )
                for exists in (True, False)
            ),
        ]

        def on_batch(batch: bytes, count: int) -> None:
            (message,) = messages_of(batch)
            for answer in answers:
                bus.send(pub(message.reply, answer))

        bus.subscribe(a.subjects.status("b"), on_batch)
        assert await ask(a, 1)
        assert a.ignored.counter.values == {"an answer about a stream": 3}

    run(main())


def test_a_question_without_a_subject_to_answer_to_is_ignored() -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (b, _) = calls_of(nats, "a"), calls_of(nats, "b")
        asked: list[int] = []
        serve(b, asked.append)
        a.send(a.subjects.status("b"), STREAM_STATUS.question, pb.PartitionStatusRequest(creationIndex=3))
        await flushed()
        assert asked == []
        assert b.ignored.counter.values == {"a question about a stream": 1}

    run(main())


def test_what_is_larger_than_nats_takes_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    """NATS would end the connection over it."""

    async def main() -> None:
        nats = MemoryNats(max_payload=100)
        (a, _), _ = calls_of(nats, "a"), calls_of(nats, "b")
        a.listen()
        assert a.send(b"here", HEARTBEAT, pb.ServerInfoResponse(id="b" * 20))
        assert not a.send(b"here", HEARTBEAT, pb.ServerInfoResponse(id="b" * 200))
        question = pb.PositionsRequest(stream="s" * 200)
        with pytest.raises(Unavailable, match="max_payload"):
            await a.ask(a.subjects.administration("b"), messages.POSITIONS, question, 1.0)

    run(main())
    (record,) = caplog.records
    assert re.match(r"a heartbeat of \d+ bytes cannot be sent: NATS takes at most 100", record.getMessage())


# --- one place ---------------------------------------------------------------------------------------------------


def builds_subjects(text: str) -> bool:
    """By a method of `Subjects` that takes any tokens, or out of the namespace."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in ("within", "shared"):
            return True
        if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.FormattedValue):
            behind = node.values[1] if len(node.values) > 1 else None
            dotted = isinstance(behind, ast.Constant) and re.match(r"\.(\S|$)", str(behind.value))
            if dotted and "namespace" in ast.unparse(node.values[0]):
                return True
    return False


def test_subjects_are_built_in_one_file() -> None:
    files = {path.relative_to(NODE).as_posix(): path.read_text() for path in sorted(NODE.rglob("*.py"))}
    assert [name for name, text in files.items() if builds_subjects(text)] == ["calls/subjects.py"]


@pytest.mark.parametrize("text", ["subjects.within('a')", "f'{self.namespace}.a'", "f'{namespace}.x.{id}'.encode()"])
def test_the_check_sees_who_builds_a_subject(text: str) -> None:
    assert builds_subjects(text)
    assert not builds_subjects("subjects.repair(broker)\nprint(f'namespace {namespace}: {id}.')")


LISTEN_THEMSELVES = {
    "api/publish.py": "the acks of one client's publish, on an inbox that the client named",
    "calls/calls.py": "everything between brokers",
    "partition/inboxes.py": "acks, which the kernels decode by the batch",
    "partition/leading.py": "what publishers send, which the kernels decode by the batch",
}


def test_messages_between_brokers_are_received_in_one_file() -> None:
    files = {path.relative_to(NODE).as_posix(): path.read_text() for path in sorted(NODE.rglob("*.py"))}
    assert [name for name, text in files.items() if "decode_checked" in text] == ["calls/calls.py"]
    subscribers = {name for name, text in files.items() if re.search(r"(?:bus|streams)\.subscribe\(", text)}
    assert subscribers == set(LISTEN_THEMSELVES), "subscribe with `Calls`, and take the batch apart with `received`"
