"""The bytes of metadata commands: those in tests/vectors/commands.jsonl were written by the code that was there before
commands had one codec, or by the code that came with the command, and are on disks and on the wire of running
clusters."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given

from bascule.core.metadata import commands
from bascule.core.metadata.codec import asked, asking, decode, encode
from bascule.core.metadata.commands import LAYOUTS, At, Command, with_alive
from bascule.core.metadata.operations import Operation
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.errors import CorruptError
from bascule.wire.pb import internal_pb2 as pb
from tests.harness.metadata import commands as any_commands
from tests.harness.paths import VECTORS

RECORDED = [json.loads(line) for line in (VECTORS / "commands.jsonl").read_text().splitlines()]
ENTRIES = [each for each in RECORDED if "hex" in each]
REQUESTS = [each for each in RECORDED if "request_hex" in each]
ASKED_FOR = ("op-1", 42)
"""The operation that the recorded requests name."""


def tuples(value: Any) -> Any:
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def command_of(recorded: dict[str, Any]) -> Command:
    given = {name: tuples(value) for name, value in recorded["fields"].items()}
    if "operation" in given:
        given["operation"] = Operation(**given["operation"])
    if recorded["command"] == "CreateStream":
        stream = {name: tuples(value) for name, value in given["stream"].items()}
        stream["config"] = StreamConfig(**stream["config"])
        partitions = [{name: tuples(value) for name, value in each.items()} for each in stream["partitions"]]
        stream["partitions"] = tuple(Partition(**each) for each in partitions)
        given["stream"] = Stream(**stream)
    if "at" in given and isinstance(given["at"], dict):
        given["at"] = At(**given["at"])
    if recorded["command"] == "AlterStream":
        given["config"] = StreamConfig(**given["config"])
    if "starts" in given:
        given["starts"] = tuple(commands.NewStart(*each) for each in given["starts"])
    if "ends" in given:
        given["ends"] = tuple(commands.ClearedEnd(*each) for each in given["ends"])
    for name in ("additions", "elected"):
        if name in given:
            given[name] = tuple(At(**each) for each in given[name])
    command: Command = getattr(commands, recorded["command"])(**given)
    return command


def named(recorded: dict[str, Any]) -> str:
    return str(recorded["command"])


@pytest.mark.parametrize("recorded", ENTRIES, ids=named)
def test_every_command_has_the_bytes_it_always_had(recorded: dict[str, Any]) -> None:
    command = command_of(recorded)
    assert encode(command).hex() == recorded["hex"]
    assert decode(bytes.fromhex(recorded["hex"])) == command


@pytest.mark.parametrize("recorded", REQUESTS, ids=named)
def test_a_broker_asks_for_a_command_in_the_bytes_it_always_did(recorded: dict[str, Any]) -> None:
    command = command_of(recorded)
    request = asking(command)
    request.operation.id, request.operation.since = ASKED_FOR
    assert request.SerializeToString(deterministic=True).hex() == recorded["request_hex"]
    assert asked(pb.PropagatedRequest.FromString(bytes.fromhex(recorded["request_hex"]))) == command


def test_the_recorded_bytes_are_of_every_kind_of_command() -> None:
    assert {each["command"] for each in ENTRIES} == {command.__name__ for command in LAYOUTS}


def test_what_can_be_proposed_is_what_has_a_layout() -> None:
    assert set(get_args(Command)) == set(LAYOUTS)


@given(any_commands)
def test_every_command_survives_its_bytes(command: Command) -> None:
    assert decode(encode(command)) == command


def test_an_election_of_nobody_or_of_two_is_no_command() -> None:
    for replicas in ([], [pb.ReplicaOp(stream="s", replica=name) for name in ("x", "y")]):
        log = pb.RaftLog(op=pb.ELECT_LEADER, adminOp=pb.AdminOp(replicas=replicas))
        with pytest.raises(CorruptError):
            decode(log.SerializeToString())


@pytest.mark.parametrize("recorded", ENTRIES, ids=named)
def test_only_commands_that_may_name_a_leader_are_told_who_is_alive(recorded: dict[str, Any]) -> None:
    command: Any = command_of(recorded)
    told = with_alive(command, ("p", "q"))
    if "alive" in recorded["fields"]:
        assert told == replace(command, alive=("p", "q"))
    else:
        assert told is command
