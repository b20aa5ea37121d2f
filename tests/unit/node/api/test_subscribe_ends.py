"""A subscription comes to an end where its partition does, and not where the log of the replica that serves it does."""

import asyncio
from typing import Any

import pytest

from bascule.errors import Status
from bascule.testing.call import MemoryCall
from bascule.testing.loop import run
from bascule.wire.kernels import decode_records
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import answer
from tests.harness.led import Led, apart, replica_of, replicated
from tests.harness.members import CONTROL, REPLICATION, Member, isr, item_of, leader_of, until

END = (Status.RESOURCE_EXHAUSTED, "End of readonly partition")
STOPPED = (Status.RESOURCE_EXHAUSTED, "Stop offset reached")
HANDSHAKE_BYTES = 5


class Reading:
    """A subscription under way."""

    def __init__(self, member: Member, timeout_s: float = 60.0, takes: bool = True, **fields: Any) -> None:
        """A client that `takes` nothing does so when it is told to."""
        self._call = MemoryCall(timeout_s)
        self._call.taking = takes
        fields.setdefault("startPosition", api.EARLIEST)
        self._call.request(api.SubscribeRequest(stream="s", **fields).SerializeToString())
        assert member.process is not None
        self._over = member.process.start(self._call.run(member.methods["/proto.API/Subscribe"]))

    def take(self) -> None:
        self._call.taking = True
        self._call.take()

    @property
    def began(self) -> bool:
        return len(self._call.responses) >= HANDSHAKE_BYTES

    @property
    def values(self) -> list[bytes]:
        frames = bytes(self._call.responses[HANDSHAKE_BYTES:])
        return [record[2] for record in decode_records(frames, 0, len(frames), 1 << 30)[1]]

    @property
    def over(self) -> bool:
        return self._over.done()

    async def end(self) -> tuple[tuple[Status, str], list[bytes]]:
        return await self._over, self.values


async def set_readonly(member: Member, readonly: bool = True) -> None:
    request = api.SetStreamReadonlyRequest(name="s", readonly=readonly)
    assert (await member.call("SetStreamReadonly", request, 20.0))[0] is Status.OK


async def lagging() -> tuple[Led, Member]:
    """A replica that has two of seven messages."""
    led = await replicated()
    other = led.other
    await led.leader.publish("s", b"1")
    await until(lambda: replica_of(other).log.visible_end == 2)
    other.buses[REPLICATION].disconnect()
    await until(lambda: len(isr(led.members)) == 2)
    for number in range(2, 7):
        await led.leader.publish("s", b"%d" % number)
    return led, other


EVERYTHING = [b"first", *(b"%d" % number for number in range(1, 7))]


def test_a_replica_that_lags_does_not_say_that_a_readonly_partition_is_over() -> None:
    async def main() -> None:
        led, other = await lagging()
        open_before = Reading(other, readISRReplica=True)
        await asyncio.sleep(1)
        await set_readonly(led.leader)
        await asyncio.sleep(10)
        assert (open_before.over, open_before.values) == (False, EVERYTHING[:2])
        other.buses[REPLICATION].reconnect()
        assert await open_before.end() == (END, EVERYTHING)
        assert await Reading(other, readISRReplica=True).end() == (STOPPED, EVERYTHING)

    run(main())


@pytest.mark.parametrize("stop", [api.STOP_LATEST, api.STOP_TIMESTAMP, api.STOP_ON_CANCEL])
def test_a_replica_that_lags_ends_no_subscription_before_what_is_committed(stop: int) -> None:
    async def main() -> None:
        led, other = await lagging()
        if stop == api.STOP_ON_CANCEL:
            await set_readonly(led.leader)
        fields: dict[str, Any] = {"readISRReplica": True, "stopPosition": stop, "stopTimestamp": 1 << 62}
        (status, text), values = await Reading(other, **fields).end()
        assert (status, values) == (Status.UNAVAILABLE, [])
        assert text.startswith("s/0: this replica does not have everything that is committed")
        reading = Reading(other, **fields)
        await asyncio.sleep(1)
        other.buses[REPLICATION].reconnect()
        assert await reading.end() == (STOPPED, EVERYTHING), "it waits for a while"

    run(main())


@pytest.mark.parametrize("start", [{"startPosition": api.NEW_ONLY}, {"startPosition": api.OFFSET, "startOffset": 7}])
def test_a_replica_that_lags_gives_nothing_from_before_a_start_that_it_does_not_have_yet(start: Any) -> None:
    async def main() -> None:
        led, other = await lagging()
        reading = Reading(other, readISRReplica=True, **start)
        await asyncio.sleep(1)
        other.buses[REPLICATION].reconnect()
        await until(lambda: replica_of(other).log.visible_end == 7)
        await asyncio.sleep(1)
        await led.leader.publish("s", b"7")
        await until(lambda: bool(reading.values))
        assert reading.values == [b"7"]

    run(main())


async def add(led: Led, *values: bytes) -> None:
    """To a partition that is read-only, before and afterwards."""
    await set_readonly(led.leader, False)
    for value in values:
        await led.leader.publish("s", value)
    await set_readonly(led.leader)


def test_an_end_that_a_lagging_replica_was_told_is_none_after_the_partition_was_writable() -> None:
    async def main() -> None:
        led, other = await lagging()
        await set_readonly(led.leader)
        reading = Reading(other, readISRReplica=True)
        await asyncio.sleep(0.5)  # it is told that seven messages are all
        await add(led, b"7", b"8")
        other.buses[REPLICATION].reconnect()
        assert await reading.end() == (STOPPED, [*EVERYTHING, b"7", b"8"])

    run(main())


def test_a_start_at_an_end_of_before_is_not_refused() -> None:
    """A client takes the refusal for the end, too."""

    async def main() -> None:
        led, other = await lagging()
        await set_readonly(led.leader)
        readings = [
            Reading(other, readISRReplica=True, startPosition=api.NEW_ONLY),
            Reading(other, readISRReplica=True, startPosition=api.OFFSET, startOffset=7),
        ]
        await asyncio.sleep(0.5)
        await set_readonly(led.leader, False)
        other.buses[REPLICATION].reconnect()
        await asyncio.sleep(1)
        await led.leader.publish("s", b"7")
        await until(lambda: all(each.values == [b"7"] for each in readings))

    run(main())


@pytest.mark.parametrize("stays_writable", [True, False])
def test_a_subscription_that_began_when_its_partition_was_readonly_goes_on_when_it_is_not(stays_writable: bool) -> None:
    """Its client is slow."""

    async def main() -> None:
        led = await replicated()
        await set_readonly(led.leader)
        reading = Reading(led.leader, takes=False)
        await until(lambda: reading.began)
        await add(led, b"1", b"2")
        if stays_writable:
            await set_readonly(led.leader, False)
        reading.take()
        await until(lambda: len(reading.values) == 3 or reading.over)
        await asyncio.sleep(3)
        assert (reading.over, reading.values) == (not stays_writable, [b"first", b"1", b"2"])
        if stays_writable:
            await led.leader.publish("s", b"3")
            await set_readonly(led.leader)
        assert await reading.end() == (STOPPED, [b"first", b"1", b"2", *([b"3"] if stays_writable else [])])

    run(main())


def test_a_former_leader_that_lags_does_not_say_that_a_readonly_partition_is_over() -> None:
    async def main() -> None:
        led = await replicated()
        old = led.leader
        reading = Reading(old)
        await asyncio.sleep(1)
        await answer(led.other, "DrainBroker", admin.DrainBrokerRequest(broker=old.name))
        await until(lambda: leader_of(led.members, "s") is not old)
        old.buses[REPLICATION].disconnect()
        await until(lambda: len(isr(led.members)) == 2)
        new = leader_of(led.members, "s")
        for number in range(1, 7):
            await new.publish("s", b"%d" % number)
        await set_readonly(new)
        await asyncio.sleep(5)
        assert (reading.over, reading.values) == (False, [b"first"])
        old.buses[REPLICATION].reconnect()
        assert await reading.end() == (END, EVERYTHING)

    run(main())


def test_a_leader_that_was_replaced_unawares_does_not_say_that_a_readonly_partition_is_over() -> None:
    """It is writable again."""

    async def main() -> None:
        led = await apart(3)
        await until(lambda: len(isr(led.members)) == 3)
        old = led.leader
        await old.publish("s", b"first")
        await set_readonly(old)
        for bus in old.buses:
            bus.disconnect()
        others = {name: member for name, member in led.members.items() if member is not old}
        await until(lambda: item_of(others).leader != old.name)
        new = others[item_of(others).leader]
        await set_readonly(new, False)
        await new.publish("s", b"1")
        starts: list[dict[str, Any]] = [{}, {"startPosition": api.OFFSET, "startOffset": 1}]
        for fields in starts:
            (status, _), values = await Reading(old, **fields).end()
            assert (status, values) == (Status.UNAVAILABLE, [])

    run(main())


async def with_a_message_that_is_lost() -> Led:
    """It is stored by a leader that is about to be replaced, and by nobody else."""
    led = await apart(3)
    await until(lambda: len(isr(led.members)) == 3)
    await led.leader.publish("s", b"first")
    await until(lambda: all(replica_of(each).log.visible_end == 1 for each in led.members.values()))
    led.leader.buses[REPLICATION].disconnect()
    request = api.PublishRequest(stream="s", value=b"lost", ackPolicy=api.LEADER)
    assert (await led.leader.call("Publish", request, 1.0))[0] is Status.OK
    log = replica_of(led.leader).log
    assert (log.visible_end, log.end) == (1, 2)
    return led


async def replace_leader(led: Led) -> Member:
    old = led.leader
    old.buses[CONTROL].disconnect()
    others = {name: member for name, member in led.members.items() if member is not old}
    await until(lambda: item_of(others).leader != old.name)
    old.buses[REPLICATION].reconnect()
    old.buses[CONTROL].reconnect()
    await until(lambda: len(isr(led.members)) == 3)
    return others[item_of(others).leader]


CHANGED = (Status.UNAVAILABLE, "the leader of s/0 has changed: subscribe to it again")


@pytest.mark.parametrize(
    ("fields", "before"),
    [
        ({"stopPosition": api.STOP_LATEST}, [b"first"]),
        ({"startPosition": api.NEW_ONLY}, []),
        ({"startPosition": api.OFFSET, "startOffset": 100}, []),
    ],
    ids=["stop", "new", "past the end"],
)
def test_a_subscription_that_waits_for_what_its_leader_loses_is_told(fields: Any, before: list[bytes]) -> None:
    """The offset is nobody's any more, or another message's."""

    async def main() -> None:
        led = await with_a_message_that_is_lost()
        reading = Reading(led.leader, **fields)
        await asyncio.sleep(0.3)
        await replace_leader(led)
        assert await reading.end() == (CHANGED, before)

    run(main())


def test_the_newest_message_that_a_replica_is_asked_for_is_one_that_cannot_be_lost() -> None:
    """Also if its partition is read-only, for it may be writable under the next leader."""

    async def main() -> None:
        led = await with_a_message_that_is_lost()
        await set_readonly(led.leader)
        reading = Reading(led.other, readISRReplica=True, stopPosition=api.STOP_LATEST)
        await asyncio.sleep(0.3)
        await set_readonly(led.leader, False)
        await replace_leader(led)
        assert reading.over, "it waits for no message that is lost"
        assert await reading.end() == (STOPPED, [b"first"])

    run(main())


def test_a_subscription_that_depends_on_nothing_uncommitted_goes_on_beside_another_leader() -> None:
    async def main() -> None:
        led = await with_a_message_that_is_lost()
        readings = [Reading(led.leader), Reading(led.leader, startPosition=api.OFFSET, startOffset=2)]
        await asyncio.sleep(0.3)
        new = await replace_leader(led)
        for number in range(1, 4):
            await new.publish("s", b"%d" % number)
        await until(lambda: len(readings[0].values) == 4)
        assert [each.values for each in readings] == [[b"first", b"1", b"2", b"3"], [b"2", b"3"]]

    run(main())
