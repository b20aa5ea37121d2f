"""Calls between brokers: what comes is checked in one place, and what cannot be decoded is counted and ignored."""

import ast
import asyncio
import gc
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
from bascule.node.calls.calls import Calls, Handler
from bascule.node.calls.messages import HEARTBEAT, HEARTBEATS_WANTED, OTHER_LOG, RAFT, STREAM_STATUS, Message, Method
from bascule.node.calls.subjects import Subjects
from bascule.node.runtime.countedlog import CountedLog
from bascule.node.runtime.jobs import Jobs
from bascule.node.runtime.metrics import Metrics
from bascule.sim.host import SeededRandom
from bascule.testing.bus import MemoryBus, MemoryNats
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, encode
from bascule.wire.nats import messages as messages_of
from bascule.wire.nats import pub
from bascule.wire.pb import internal_pb2 as pb
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
    (RAFT, Heartbeat("b", "a", 3, 7, 0, 0)),
    (messages.ENDED_CALLS, [b"u1", b"s2"]),
]


def calls_of(nats: MemoryNats, name: str) -> tuple[Calls, MemoryBus]:
    bus = nats.connect(name)
    return Calls(name, Subjects("ns", "x"), bus, SeededRandom(name), Metrics()), bus


async def flushed() -> None:
    await asyncio.sleep(0.1)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]


# --- receiving ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("message", "value"), MESSAGES, ids=[message.name for message, _ in MESSAGES])
def test_what_is_sent_arrives_and_with_any_wrong_bit_it_is_ignored(message: Message[Any], value: Any) -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (b, bus) = calls_of(nats, "a"), calls_of(nats, "b")
        taken: list[Any] = []
        a.handle(b"here", Handler(message, lambda received, as_it_came: taken.append(received)))
        b.send(b"here", message, value)
        await flushed()
        assert taken == [value]
        payload = message.encode(value)
        if message.type is not None:
            payload = encode(message.type, payload, crc=True)
        for position in range(len(payload)):
            changed = bytearray(payload)
            changed[position] ^= 1 << random.Random(position).randrange(8)
            bus.send(pub(b"here", bytes(changed)))
            bus.send(pub(b"here", payload[:position]))
            await asyncio.sleep(0)
        await flushed()
        assert taken == [value]
        assert a.ignored.counter.values == {message.name: 2 * len(payload)}

    run(main())


def test_every_kind_of_message_is_in_the_list_above() -> None:
    declared = [each for each in vars(messages).values() if isinstance(each, Message)]
    declared += [
        half for each in vars(messages).values() if isinstance(each, Method) for half in (each.question, each.answer)
    ]
    assert sorted(each.name for each in declared) == sorted(message.name for message, _ in MESSAGES)
    assert len({each.name for each in declared}) == len(declared), "they are counted by name"


class After:
    def __init__(self, taken: list[str]) -> None:
        self._taken = taken

    def batch_taken(self) -> None:
        self._taken.append("after")


def test_each_kind_goes_to_its_handler_and_others_to_none(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (b, bus) = calls_of(nats, "a"), calls_of(nats, "b")
        taken: list[str] = []
        a.handle(
            b"here",
            Handler(HEARTBEAT, lambda info, message: taken.append(info.id)),
            Handler(HEARTBEATS_WANTED, lambda wanted, message: taken.append(message.reply.decode())),
            after=After(taken),
        )
        b.send(b"here", HEARTBEAT, pb.ServerInfoResponse(id="b"))
        b.send(b"here", HEARTBEATS_WANTED, pb.ServerInfoRequest(id="b"), b"reply")
        b.send(b"here", STREAM_STATUS.question, pb.PartitionStatusRequest(creationIndex=3))
        bus.send(pub(b"here", b""))
        bus.send(pub(b"here", encode(MsgType.SERVER_INFO_RESPONSE, b"without a checksum")))
        bus.send(pub(b"here", encode(MsgType.SERVER_INFO_RESPONSE, b"\xff" * 30, crc=True)))
        await flushed()
        assert [word for word in taken if word != "after"] == ["b", "reply"]
        assert taken[-1] == "after"
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

        def refuse(info: pb.ServerInfoResponse, message: object) -> None:
            raise PeerError("no such broker")

        a.handle(b"here", Handler(HEARTBEAT, refuse))
        b.send(b"here", HEARTBEAT, pb.ServerInfoResponse(id="b"))
        await flushed()
        assert a.ignored.counter.values == {"a heartbeat": 1}

    run(main())


def test_a_function_that_fails_keeps_no_other_message_from_being_taken(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (_b, bus) = calls_of(nats, "a"), calls_of(nats, "b")
        taken: list[str] = []

        def take(info: pb.ServerInfoResponse, message: object) -> None:
            if info.id == "bad":
                raise ValueError("an error of ours")
            taken.append(info.id)

        a.handle(b"here", Handler(HEARTBEAT, take), after=After(taken))
        payloads = [
            encode(MsgType.SERVER_INFO_RESPONSE, pb.ServerInfoResponse(id=name).SerializeToString(), crc=True)
            for name in ("bad", "good")
        ]
        bus.send(b"".join(pub(b"here", payload) for payload in payloads))  # in one batch
        await flushed()
        assert taken == ["good", "after"]

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
    def status(question: pb.PartitionStatusRequest) -> pb.PartitionStatusResponse | None:
        exists = answer(question.creationIndex)
        return None if exists is None else pb.PartitionStatusResponse(exists=exists)

    calls.handle(calls.subjects.status(calls.broker_id), calls.answering(STREAM_STATUS, status))


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


def test_answers_that_take_a_while_are_bounded_and_end_with_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nats = MemoryNats()
        (a, _), (b, _) = calls_of(nats, "a"), calls_of(nats, "b")
        a.listen()
        begun: list[int] = []

        async def slowly(question: pb.PartitionStatusRequest) -> pb.PartitionStatusResponse:
            begun.append(question.creationIndex)
            await asyncio.sleep(0.5)
            return pb.PartitionStatusResponse(exists=True)

        jobs = Jobs(lambda reason: None, Metrics())
        tasks = jobs.tasks("an answer", 2)
        handler = b.answering_later(STREAM_STATUS, slowly, tasks, admits=lambda question: question.creationIndex > 0)
        b.handle(b.subjects.status("b"), handler)
        outcomes = await asyncio.gather(*(ask(a, index) for index in range(5)), return_exceptions=True)
        assert begun == [1, 2], "0 was refused, and the others were too many"
        assert [outcome for outcome in outcomes if outcome is True] == [True, True]
        assert await ask(a, 7)
        late = asyncio.ensure_future(ask(a, 8))
        await flushed()
        await jobs.close()
        with pytest.raises(DeadlineExceeded):
            await late

    run(main())
    assert caplog.records == [], "too many questions are no error of ours"


def test_an_answer_is_not_begun_by_a_broker_that_has_closed() -> None:
    """Nor left behind half made: a coroutine that nobody awaits is a warning, which is an error here."""

    async def main() -> None:
        nats = MemoryNats()
        (a, _), (b, _) = calls_of(nats, "a"), calls_of(nats, "b")
        a.listen()
        begun: list[int] = []

        async def slowly(question: pb.PartitionStatusRequest) -> pb.PartitionStatusResponse:
            begun.append(question.creationIndex)
            return pb.PartitionStatusResponse(exists=True)

        jobs = Jobs(lambda reason: None, Metrics())
        handler = b.answering_later(STREAM_STATUS, slowly, jobs.tasks("an answer", 2), admits=lambda question: True)
        b.handle(b.subjects.status("b"), handler)
        await jobs.close()
        with pytest.raises(DeadlineExceeded):
            await ask(a, 1)
        assert begun == []

    run(main())
    gc.collect()


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
    assert subscribers == set(LISTEN_THEMSELVES), "register a handler with `Calls`"
