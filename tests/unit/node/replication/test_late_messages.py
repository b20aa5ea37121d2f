"""What a follower or a leader sent in an earlier session, or before something newer, counts for nothing: it may be
on its way for seconds, and what it promised may be gone."""

import asyncio
from typing import Any

import pytest

from bascule.core.partition.epochs import EpochHistory
from bascule.core.replication.feed import SILENCE_S
from bascule.node.calls.calls import Calls
from bascule.node.calls.subjects import Subjects
from bascule.node.replication.feeds import Feeds
from bascule.node.replication.fetchers import Fetchers
from bascule.node.runtime.jobs import Jobs
from bascule.node.runtime.metrics import Metrics
from bascule.sim.host import SeededRandom
from bascule.testing.loop import VirtualClock, VirtualLoop, run
from bascule.wire.envelope import MsgType, encode_checked
from bascule.wire.nats import NatsMessage, pack
from bascule.wire.replication import Answer, FetchRequest, Kind, Position, encode_parts, encode_request, encode_response

OWN, EPOCH, END = 77, 5, 10
SUBJECTS = Subjects("ns", "c1")


class Bus:
    """It keeps what is sent; the tests speak for the other side."""

    max_payload = 1 << 20

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.pushes = 0

    def send(self, commands: bytes) -> None:
        self.sent.append(commands)

    send_now = send

    def push(self) -> None:
        self.pushes += 1

    def subscribe(self, subject: bytes, on_batch: Any, queue: bytes = b"") -> None:
        self.on_batch = on_batch


class Leading:
    epoch, hw_end, end, records_end, log_start = EPOCH, 0, END, END, 0
    epochs = EpochHistory([(EPOCH, 0)])

    def __init__(self) -> None:
        self.promised: list[int] = []
        self.replicas = ["a", "b"]

    def feeds(self, broker: str) -> bool:
        return broker in self.replicas

    def fetched(self, replica: str, end: int, promised_end: int, now: int) -> None:
        self.promised.append(promised_end)


class Replica:
    """A partition that this broker leads, as its feeds see it."""

    key = (1, 0)

    def __init__(self) -> None:
        self.leading = Leading()


class Asked:
    """The leading side, and requests of one follower."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.bus, self.replica = Bus(), Replica()
        bus: Any = self.bus
        clock = VirtualClock(loop)
        self.feeds = Feeds(
            Calls("a", SUBJECTS, bus, SeededRandom("a"), Metrics()),
            bus,
            clock,
            OWN,
            self,
            lambda: ("a", "b"),
            bus,
            Jobs(print, Metrics()),
        )
        self.feeds.listen()

    def get(self, key: tuple[int, int]) -> Any:
        return self.replica

    def led(self, key: tuple[int, int]) -> Any:
        return self.replica.leading

    @property
    def promised(self) -> list[int]:
        return self.replica.leading.promised

    def ask(
        self, session: int, request_id: int, promised_end: int, leader_session: int = OWN, follower: str = "b"
    ) -> None:
        self.bus.on_batch(self.request(session, request_id, promised_end, leader_session, follower), 1)

    def request(
        self, session: int, request_id: int, promised_end: int, leader_session: int = OWN, follower: str = "b"
    ) -> bytes:
        position = Position(1, 0, EPOCH, END, promised_end, EPOCH)
        request = FetchRequest(session, leader_session, request_id, 0, request_id, 0, follower, False, [position])
        payload = b"".join(encode_checked(MsgType.REPLICATION_REQUEST, [encode_request(request)]))
        return pack(NatsMessage(b"ns.c1.replicate.a", b"", payload))


def test_a_report_that_cannot_be_taken_keeps_no_other_one_from_counting(caplog: pytest.LogCaptureFixture) -> None:
    """In one batch, after which the acks that it allows leave at once."""

    async def main() -> None:
        asked = Asked()
        asked.ask(1, 1, 3)
        fetched, pushes = asked.replica.leading.fetched, asked.bus.pushes

        def fail(*_: object) -> None:
            asked.replica.leading.fetched = fetched  # type: ignore[method-assign]
            raise ValueError("an error of ours")

        asked.replica.leading.fetched = fail  # type: ignore[assignment,method-assign]
        asked.bus.on_batch(asked.request(1, 2, 4) + asked.request(1, 3, 5), 2)
        assert asked.promised == [3, 5]
        assert asked.bus.pushes == pushes + 1
        asked.feeds.close()

    run(main())
    (record,) = caplog.records
    assert "a fetch request could not be handled" in record.getMessage()
    assert record.exc_info


def test_a_broker_gets_nothing_before_the_leader_knows_of_its_replica() -> None:
    """Until then the leader compacts its log as one that nobody else has."""

    async def main() -> None:
        asked = Asked()
        asked.replica.leading.replicas.remove("b")
        asked.ask(1, 1, 5)
        assert asked.promised == []
        asked.replica.leading.replicas.append("b")
        asked.ask(1, 2, 5)
        assert asked.promised == [5]

    run(main())


def test_a_report_that_a_newer_one_overtook_does_not_count() -> None:
    """The newer one says less, for the disk lost some of it: the older one would commit what nobody has."""

    async def main() -> None:
        asked = Asked()
        asked.ask(1, 2, 3)
        asked.ask(1, 1, 10)
        asked.ask(1, 2, 10)
        assert asked.promised == [3]
        asked.ask(1, 3, 4)
        assert asked.promised == [3, 4]
        asked.feeds.close()

    run(main())


def test_reports_of_a_session_that_another_one_followed_do_not_count() -> None:
    """Whatever their numbers: requests are counted anew in each session, and those of the ended one may be larger."""

    async def main() -> None:
        asked = Asked()
        asked.ask(1, 7, 10)
        asked.ask(2, 1, 3)
        for request_id in (1, 2, 6, 7, 8, 900):
            asked.ask(1, request_id, 10)
        assert asked.promised == [10, 3]
        asked.ask(2, 2, 4)
        assert asked.promised == [10, 3, 4], "the live one goes on"
        await asyncio.sleep(SILENCE_S + 1)
        asked.ask(1, 7, 10)
        assert asked.promised == [10, 3, 4], "said before, and only late"
        asked.ask(1, 8, 10)
        assert asked.promised == [10, 3, 4, 10], "the other one was a copy that has ended"
        asked.feeds.close()

    run(main())


def test_reports_to_an_earlier_session_of_the_leader_do_not_count() -> None:
    """It answers who it is, and is asked anew."""

    async def main() -> None:
        asked = Asked()
        asked.ask(1, 5, 10, leader_session=OWN - 1)
        asked.ask(1, 6, 10, leader_session=0)
        assert asked.promised == []
        assert len(asked.bus.sent) == 2
        asked.ask(1, 7, 9)
        assert asked.promised == [9]
        asked.feeds.close()

    run(main())


def test_a_broker_that_is_no_member_is_neither_believed_nor_answered() -> None:
    async def main() -> None:
        asked = Asked()
        asked.ask(1, 1, 10, follower="unknown")
        asked.ask(1, 2, 10, leader_session=0, follower="unknown")
        await asyncio.sleep(1)
        assert (asked.promised, asked.bus.sent) == ([], [])
        asked.ask(1, 1, 9)
        assert asked.promised == [9], "members are"
        asked.feeds.close()

    run(main())


class Following:
    key, leader = (1, 0), "a"
    position = Position(1, 0, EPOCH, END, END, EPOCH)

    def __init__(self) -> None:
        self.watermarks: list[int] = []

    def answered(self, answer: Answer) -> bool:
        self.watermarks.append(answer.hw_end)
        return True


@pytest.mark.parametrize("wrong", ["session", "before the full request", "not asked yet"])
def test_answers_that_are_not_of_this_conversation_are_not_taken(wrong: str) -> None:
    async def main() -> None:
        bus: Any = Bus()
        following = Following()
        fetchers = Fetchers(Calls("b", SUBJECTS, bus, SeededRandom("b"), Metrics()), bus, 3.0, OWN, 15.0)
        fetchers.listen()
        fetchers.follow(following)

        def answer(session: int, leader_session: int, request_id: int, number: int, hw_end: int) -> None:
            said = Answer(1, 0, Kind.DATA, EPOCH, hw_end, END, END, EPOCH, 0, 0, b"")
            for part in encode_parts((session, leader_session), request_id, number, encode_response([said]), 1 << 19):
                payload = b"".join(encode_checked(MsgType.REPLICATION_RESPONSE, part))
                bus.on_batch(pack(NatsMessage(b"ns.c1.replicated.b.a", b"", payload)), 1)

        await asyncio.sleep(0)  # request 1 leaves
        answer(OWN, 3, 1, 0, 0)  # the leader says who it is
        await asyncio.sleep(0)  # request 2, in full
        fetchers.start_over(following)
        await asyncio.sleep(0)  # request 3, in full
        match wrong:
            case "session":
                answer(OWN + 1, 3, 3, 1, 8)
            case "before the full request":
                answer(OWN, 3, 2, 1, 8)
            case _:
                answer(OWN, 3, 4, 1, 8)
        assert following.watermarks == []
        answer(OWN, 3, 3, 1, 9)
        assert following.watermarks == [9], "the true one is taken after it"
        fetchers.close()

    run(main())
