"""The gRPC service `bascule.v1.Log`: ranges of a partition as the bytes of its log, in large messages. `Write` is in
`bulkwrite`.

A response is a short head, encoded here, and the records as they are on disk, so that the cost is per read and not
per message. The next read begins while the last response is on its way to the client.
"""

from collections.abc import Mapping
from contextlib import ExitStack

from bascule.errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange
from bascule.limits import BULK_READ_BYTES, BULK_READ_MAX_BYTES, BULK_READS
from bascule.log.reader import Reader
from bascule.net.grpc import Handler
from bascule.node.api.bulkwrite import BulkWrites
from bascule.node.api.gate import ITS_MESSAGES, Gate, Service, about_stream
from bascule.node.api.leadership import confirm_leads
from bascule.node.api.places import Place, Places
from bascule.node.api.unread import UnreadRecords
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.peers import SESSION_S
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas
from bascule.ports import Call
from bascule.wire.grpc import frame_head
from bascule.wire.pb import log_pb2 as pb
from bascule.wire.pure.protobuf import varint

_RECORDS = pb.ReadResponse.RECORDS_FIELD_NUMBER << 3 | 2
assert _RECORDS < 0x80, "the tag of the records is one byte"


class LogApi:
    def __init__(
        self, gate: Gate, replicas: Replicas, cluster: Cluster, writes: BulkWrites, unread: UnreadRecords
    ) -> None:
        self._gate = gate
        self._writes = writes
        self._replicas = replicas
        self._cluster = cluster
        self._unread = unread
        self._places = Places("bulk read", "read from another replica, or try again later")

    def methods(self) -> Mapping[str, Handler]:
        service = Service("bascule.v1.Log", self._gate)
        service.sending(
            "Read", pb.ReadRequest, self.read, lambda request: about_stream(request.stream), needs_metadata=True
        )
        service.streaming("Write", self._writes.write, ITS_MESSAGES, needs_metadata=True)
        return service.methods

    async def read(self, request: pb.ReadRequest, call: Call) -> None:
        if request.end and request.end < request.start:
            raise InvalidArgument(f"the range ends before it begins: {request.end} < {request.start}")
        replica = self._replica(request)
        end = await self._end(replica, request)
        with self._places.take(BULK_READS) as place, replica.subscribed():
            max_bytes = min(request.maxBytes or BULK_READ_BYTES, BULK_READ_MAX_BYTES)
            await self._serve(replica, request.start, end, max_bytes, call, place)

    def _replica(self, request: pb.ReadRequest) -> Replica:
        if not self._replicas.exists(request.stream, request.partition):
            raise NotFound("No such partition")
        if self._replicas.is_paused(request.stream, request.partition):
            raise FailedPrecondition("The partition is paused; resume it to read it")
        replica = self._replicas.find(request.stream, request.partition)
        if replica is None or (replica.leading is None and not request.fromReplica):
            raise FailedPrecondition("Server not partition leader")
        if request.creation and request.creation != replica.stream.creation_index:
            raise FailedPrecondition(
                f"Stream {request.stream} was deleted and made again: its number is {replica.stream.creation_index}, "
                f"and {request.creation} was asked for"
            )
        return replica

    async def _end(self, replica: Replica, request: pb.ReadRequest) -> int:
        """Where the range ends. A new leader may not know yet what is committed, and an old one not that it has been
        replaced: where the answer depends on the high watermark, both are decided first."""
        if replica.leading is not None and (not request.end or request.end > replica.log.visible_end):
            if not await confirm_leads(self._cluster, replica):
                raise FailedPrecondition("Server not partition leader")
            await replica.established(SESSION_S)
        known = replica.log.visible_end
        return min(request.end, known) if request.end else known

    async def _serve(self, replica: Replica, start: int, end: int, max_bytes: int, call: Call, place: Place) -> None:
        """At least one response, also for a range without records: it says where the partition begins and ends."""
        reader = replica.log.reader(start)
        answered = False
        with ExitStack() as sent:
            while reader.next_offset < end or not answered:
                position = reader.next_offset
                records = None
                with ExitStack() as read:
                    if position < end:
                        self._check_there(replica, position)
                        share = read.enter_context(await self._unread.share(max_bytes))
                        records = await reader.read(share.nbytes, end)
                        share.has_read(records)
                    await place.waiting(call.drained())
                    sent.close()
                    sent.push(read.pop_all())
                if records:
                    self._check_there(replica, position)  # they may have been removed meanwhile
                until = compacted_end(replica)
                call.write(_response(replica, self._start(replica), until, position, reader, records))
                if not records and reader.next_offset < end:
                    break  # the log has ended, or a follower was told to truncate: the client sees how far it came
                answered = True
            await place.waiting(call.drained())

    def _start(self, replica: Replica) -> int:
        """What compaction has removed at the front is a hole like any other: whoever planned to read it reads on."""
        start = self._replicas.start(replica)
        if start > replica.partition.start and compacted_end(replica):
            return max(replica.partition.start, replica.log.segments.floor)
        return start

    def _check_there(self, replica: Replica, offset: int) -> None:
        if replica.paused:
            raise FailedPrecondition("The partition is paused; resume it to read it")
        if offset < (start := self._start(replica)):
            raise OutOfRange(f"Offset {offset} of {replica.name} was removed: its log begins at {start}; begin there")


def compacted_end(replica: Replica) -> int:
    """Below, offsets may be missing: also those that were missing in the log that a replica was fed from. They are not
    where nothing was compacted: then a record that is missing is lost."""
    segments = replica.log.segments
    if not (
        replica.environment.settings.defaults.compacts(replica.stream.config) or any(each.holes for each in segments)
    ):
        return 0
    compacted = (each for each in reversed(segments) if each.holes or each.records < each.appended.end - each.base)
    last = next(compacted, None)
    return 0 if last is None else min(last.appended.end, replica.log.visible_end)


def _response(
    replica: Replica, log_start: int, compacted_end: int, position: int, reader: Reader, records: bytes | None
) -> bytes:
    """One whole frame: `Call.stop` looks for the ends of messages in what was written at once."""
    fields = pb.ReadResponse(
        start=position,
        end=reader.next_offset,
        logStart=log_start,
        compactedEnd=compacted_end,
        creation=replica.stream.creation_index,
        highWatermarkEnd=replica.log.visible_end,
        count=reader.count if records else 0,
        damaged=[pb.OffsetRange(start=each.start, end=each.stop) for each in [reader.damaged] if each],
    ).SerializeToString()
    if not records:
        return frame_head(len(fields)) + fields
    fields += bytes((_RECORDS,)) + varint(len(records))
    return b"".join((frame_head(len(fields) + len(records)), fields, records))
