"""FetchMetadata: each stream once, made in slices of one version of the metadata, once for all who ask."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Partition, Stream
from bascule.errors import ResourceExhausted, Status
from bascule.limits import GRPC_SMALL_REQUEST_BYTES, METADATA_NAMES, METADATA_PIECE_BYTES, METADATA_SLICE_ENTRIES
from bascule.node.api import descriptions
from bascule.node.api.descriptions import Answer, Descriptions
from bascule.node.runtime.jobs import Jobs
from bascule.node.runtime.metrics import Metrics
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import split
from tests.harness.members import Member, three

SERVERS = ("a", "b", "c")


class _Log:
    def __init__(self, end: int) -> None:
        self.end = end


class _Replica:
    """What a description looks at."""

    def __init__(self, hw_end: int, end: int, first: int, latest: int) -> None:
        self.hw_end, self.log, self.first_received, self.latest_received = hw_end, _Log(end), first, latest


def metadata_of(*sizes: int) -> Metadata:
    metadata = Metadata()
    for number, size in enumerate(sizes):
        partitions = place(size, 3, SERVERS, metadata.streams.values())
        name = f"s{number}"
        stream = Stream(name, f"on.{name}", "", partitions, creation_timestamp=7 + number)
        metadata.streams[name] = stream.created_at(number + 1)
    return metadata


def message_of(answer: Answer) -> api.FetchMetadataResponse:
    assert sum(map(len, answer.pieces)) == answer.size
    return api.FetchMetadataResponse.FromString(b"".join(answer.pieces))


def expected(stream: Stream, replicas: dict[tuple[int, int], Any]) -> api.StreamMetadata:
    """By the protobuf library alone."""
    message = api.StreamMetadata(name=stream.name, subject=stream.subject, creationTimestamp=stream.creation_timestamp)
    for item in stream:
        described = message.partitions[item.id]
        described.id, described.leader = item.id, item.leader
        described.replicas.extend(item.replicas)
        described.isr.extend(item.isr)
        described.eligible.extend(item.eligible)
        described.paused, described.readonly = item.paused, item.readonly
        replica = replicas.get((stream.creation_index, item.id))
        described.highWatermark = replica.hw_end - 1 if replica else -1
        described.newestOffset = replica.log.end - 1 if replica else -1
        for stamps in (described.messagesReceivedTimestamps, described.pauseTimestamps, described.readonlyTimestamps):
            stamps.SetInParent()
        if replica:
            described.messagesReceivedTimestamps.firstTimestamp = replica.first_received
            described.messagesReceivedTimestamps.latestTimestamp = replica.latest_received
    return message


def test_what_is_said_is_what_the_protobuf_library_would_say_whatever_was_cached_before() -> None:
    async def main() -> None:
        metadata = metadata_of(5, 450)
        replicas: dict[Any, Any] = {(1, 0): _Replica(0, 0, 0, 0), (2, 7): _Replica(1, 300, 10**18, 10**18 + 5)}
        asked = Descriptions(lambda: metadata, replicas.get, Jobs(print, Metrics()))
        for change in range(4):
            if change == 1:
                replicas[2, 7] = _Replica(301, 301, 10**18, 10**18 + 6)
                replicas[2, 8] = _Replica(1, 1, 3, 3)
            elif change == 2:
                del replicas[1, 0]
                known = metadata.streams["s1"]
                moved = known.partitions[7]._replace(
                    isr=("c",), eligible=("a", "b"), leader="c", readonly=True, paused=True
                )
                metadata.streams["s1"] = known.with_partitions({7: moved})
            elif change == 3:
                metadata.streams["s0"] = replace(metadata_of(2).streams["s0"].created_at(9), subject="another")
            said = message_of(await asked.of(()))
            wanted = [expected(metadata.streams[name], replicas) for name in ("s0", "s1")]
            assert list(said.streamMetadata) == wanted

    run(main())


def test_a_stream_is_described_once_however_often_it_is_named() -> None:
    async def main() -> None:
        member = await Member("a", MemoryNats(), seed=True).start()
        for name in ("one", "two"):
            await member.call("CreateStream", api.CreateStreamRequest(name=name, subject=name, partitions=3))
        names = ["two", "nope", "two", "one", "nope", "two"] * 500
        request = api.FetchMetadataRequest(streams=names, groups=["g", "h", "g"])
        _, _, (data,) = await member.call("FetchMetadata", request)
        answer = api.FetchMetadataResponse.FromString(data)
        assert [(item.name, item.error) for item in answer.streamMetadata] == [("two", 0), ("nope", 1), ("one", 0)]
        assert [(item.groupId, item.error) for item in answer.groupMetadata] == [("g", 1), ("h", 1)]
        assert [len(item.partitions) for item in answer.streamMetadata] == [3, 0, 3]

    run(main())


def test_too_many_names_and_too_many_bytes_are_refused_clearly() -> None:
    async def main() -> None:
        member = await Member("a", MemoryNats(), seed=True).start()
        request = api.FetchMetadataRequest(streams=[f"{n}" for n in range(METADATA_NAMES + 1)])
        status, text, _ = await member.call("FetchMetadata", request)
        assert (status, str(METADATA_NAMES) in text) == (Status.RESOURCE_EXHAUSTED, True)
        request = api.FetchMetadataRequest(groups=["g" * GRPC_SMALL_REQUEST_BYTES])
        status, text, _ = await member.call("FetchMetadata", request)
        assert (status, "larger than max" in text) == (Status.RESOURCE_EXHAUSTED, True)
        request = api.FetchMetadataRequest(streams=[f"{n}" for n in range(METADATA_NAMES)])
        assert (await member.call("FetchMetadata", request))[0] is Status.OK

    run(main())


def test_everybody_who_asks_at_once_shares_one_description(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Partition] = []
    real = descriptions._fixed

    def counted(item: Partition) -> bytes:
        encoded.append(item)
        return real(item)

    monkeypatch.setattr(descriptions, "_fixed", counted)

    async def main() -> None:
        metadata = metadata_of(1000)
        asked = Descriptions(lambda: metadata, lambda key: None, Jobs(print, Metrics()))
        answers = await asyncio.gather(*(asked.of(("s0",) if n % 2 else ()) for n in range(50)))
        assert len({id(answer) for answer in answers}) == 2
        assert len(encoded) == 1000
        known = metadata.streams["s0"]
        metadata.streams["s0"] = known.with_partitions({3: known.partitions[3]._replace(isr=("a",))})
        await asked.of(())
        assert len(encoded) == 1001, "what did not change is not encoded again"

    run(main())


def test_an_answer_is_of_one_version_and_never_older_than_its_question() -> None:
    async def main() -> None:
        metadata = metadata_of(4 * METADATA_SLICE_ENTRIES)
        asked = Descriptions(lambda: metadata, lambda key: None, Jobs(print, Metrics()))
        first = asyncio.ensure_future(asked.of(()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        known = metadata.streams["s0"]
        metadata.streams["s0"] = known.with_partitions({item.id: item._replace(isr=("a",)) for item in known})
        assert not first.done(), "it is made in slices"
        later = message_of(await asked.of(()))
        before = {len(item.isr) for item in message_of(await first).streamMetadata[0].partitions.values()}
        assert before == {3}, "no answer mixes two versions"
        assert {tuple(item.isr) for item in later.streamMetadata[0].partitions.values()} == {("a",)}

    run(main())


def test_an_answer_names_streams_of_one_version() -> None:
    async def main() -> None:
        metadata = metadata_of(METADATA_SLICE_ENTRIES, METADATA_SLICE_ENTRIES, 3)
        asked = Descriptions(lambda: metadata, lambda key: None, Jobs(print, Metrics()))
        first = asyncio.ensure_future(asked.of(("s0", "s1", "s2")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del metadata.streams["s1"]
        metadata.streams["s2"] = replace(metadata.streams["s2"], subject="later")
        assert not first.done()
        said = message_of(await first).streamMetadata
        assert [(item.error, item.subject) for item in said] == [(0, "on.s0"), (0, "on.s1"), (0, "on.s2")]

    run(main())


def test_ten_thousand_partitions_are_described_in_slices_with_turns_for_others_between() -> None:
    """How long a slice holds the loop is measured by `make scale`."""

    async def main() -> None:
        metadata = metadata_of(10_000)
        replicas: Any = {(1, n): _Replica(n + 1, n + 1, 10**18, 10**18) for n in range(0, 10_000, 2)}
        asked = Descriptions(lambda: metadata, replicas.get, Jobs(print, Metrics()))
        answers = asyncio.gather(*(asked.of(()) for _ in range(50)))
        turns = 0
        while not answers.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 10_000 / METADATA_SLICE_ENTRIES
        assert max(map(len, answers.result()[0].pieces)) < 2 * METADATA_PIECE_BYTES

    run(main())


def test_an_answer_leaves_as_fast_as_its_client_takes_it() -> None:
    async def main() -> None:
        metadata = metadata_of(10_000)
        asked = Descriptions(lambda: metadata, lambda key: None, Jobs(print, Metrics()))
        answer = await asked.of(())
        call = MemoryCall(None)
        call.taking = False
        sending = asyncio.ensure_future(asked.send(call, b"", answer))
        await asyncio.sleep(1.0)
        assert call.queued_bytes < 2 * METADATA_PIECE_BYTES
        while not sending.done():
            call.take()
            await asyncio.sleep(0.01)
            assert call.queued_bytes < 2 * METADATA_PIECE_BYTES
        (message,) = split(bytes(call.responses))
        assert len(api.FetchMetadataResponse.FromString(message).streamMetadata[0].partitions) == 10_000

    run(main())


def test_clients_that_do_not_take_their_answers_hold_a_bounded_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        metadata = metadata_of(1000, 1000)
        asked = Descriptions(lambda: metadata, lambda key: None, Jobs(print, Metrics()))
        answer, other = await asked.of(("s0",)), await asked.of(("s1",))
        monkeypatch.setattr(descriptions, "METADATA_HELD_BYTES", answer.size + other.size // 2)
        calls = [MemoryCall(None) for _ in range(3)]
        for call in calls:
            call.taking = False
        sharing = [asyncio.ensure_future(asked.send(call, b"", answer)) for call in calls[:2]]
        await asyncio.sleep(0.1)
        assert not any(each.done() for each in sharing), "one answer counts once"
        third = asyncio.ensure_future(asked.send(calls[2], b"", other))
        await asyncio.sleep(0.1)
        for each in sharing:
            with pytest.raises(ResourceExhausted, match="not read in time"):
                await each
        calls[2].taking = True
        calls[2].take()
        await third
        assert asked._held_bytes == 0

    run(main())


def test_a_client_that_never_takes_its_answer_is_not_waited_for_without_end() -> None:
    async def main() -> None:
        metadata = metadata_of(1000)
        asked = Descriptions(lambda: metadata, lambda key: None, Jobs(print, Metrics()))
        call = MemoryCall(None)
        call.taking = False
        with pytest.raises(ResourceExhausted):
            await asked.send(call, b"", await asked.of(()))
        assert asked._held_bytes == 0

    run(main())


def test_an_answer_over_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        metadata = metadata_of(1000, 5)
        monkeypatch.setattr(descriptions, "METADATA_ANSWER_BYTES", 10_000)
        asked = Descriptions(lambda: metadata, lambda key: None, Jobs(print, Metrics()))
        with pytest.raises(ResourceExhausted, match="fewer streams"):
            await asked.of(())
        assert len(message_of(await asked.of(("s1",))).streamMetadata) == 1

    run(main())


def test_followers_tell_their_own_positions() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=2)
        await members["a"].call("CreateStream", request)
        publish = api.PublishRequest(stream="s", value=b"v", ackPolicy=api.ALL)
        assert (await members["a"].call("Publish", publish))[0] is Status.OK
        await asyncio.sleep(2.0)
        newest = []
        for member in members.values():
            _, _, (data,) = await member.call("FetchMetadata", api.FetchMetadataRequest(streams=["s"]))
            newest.append(api.FetchMetadataResponse.FromString(data).streamMetadata[0].partitions[0].newestOffset)
        assert sorted(newest) == [-1, 0, 0]

    run(main())
