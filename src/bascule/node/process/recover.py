"""Recovers a cluster from the disk of one broker, when the others are lost for good (as etcd's `--force-new-cluster`).
Offline: the broker must not run.

The state of Raft is replaced by one snapshot: the metadata with every command that this broker has stored, committed or
not, and a membership of this broker alone, with a new incarnation and a new cluster id. The metadata records the disks
of the other brokers as lost, so that nothing waits for them, and none that returns under an old id counts as in sync.
The index jumps far ahead: leader epochs are indexes, and no epoch of the old cluster may be used again. Messages of the
old cluster are not received: the new id is in every subject. The new id also names the old one, so that brokers of the
old cluster can report what happened.

Records are not changed. What was told of tombstones counts no more, for this metadata may lack later commands about
them: logs of the old cluster begin anew when they follow. A replica here that was in sync leads; one that was not gets
a leader when an administrator accepts the loss (`bascule cluster elect … --accept-loss`).
"""

from dataclasses import dataclass

from bascule.core.metadata import tombstones
from bascule.core.metadata.administration import name_of
from bascule.core.metadata.codec import decode
from bascule.core.metadata.commands import DiskLost
from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Partition
from bascule.errors import StartError
from bascule.limits import RECOVERED_INDEX_LEAP
from bascule.log import cleanshutdown
from bascule.log.promised import PromisedEnds
from bascule.log.raftlog import RaftStorage
from bascule.node.calls.subjects import succeeding
from bascule.node.process import identity
from bascule.ports import Disk, Random
from bascule.types import Epoch
from bascule.wire.raft import decode_membership
from bascule.wire.raft_messages import Entry, EntryKind, HardState, Membership, Snapshot

RAFT_FOLDER = "raft"


@dataclass(frozen=True, slots=True)
class Recovery:
    """The outcome of a recovery from this folder."""

    broker_id: str
    old_cluster: str
    cluster: str
    others: tuple[str, ...]
    """Brokers whose disks count as lost."""
    whole: tuple[str, ...]
    """Partitions of which this broker has all acked messages, as far as it knows."""
    out_of_sync: tuple[str, ...]
    """Partitions of which this broker was not in sync: no leader until an administrator accepts the loss."""
    gone: tuple[str, ...]
    """Partitions without a replica on this broker."""
    index: int
    """The last command of the metadata that this broker has; later ones are lost."""
    missing: int
    """Saves at the end of its metadata log that this broker had confirmed, and that are damaged or gone: each has votes
    or changes that the others could count on."""


async def recover(disk: Disk, random: Random, *, accept_loss: bool) -> Recovery:
    """Changes the folder only with `accept_loss`. Raises StartError if a cluster cannot be recovered from it."""
    own = await identity.load(disk)
    confirmed = await _confirmed(disk)
    storage = RaftStorage(disk, RAFT_FOLDER, reads_only=not accept_loss)
    hard_state, snapshot, entries, _ = await storage.open()
    membership = next((each for each in reversed(_memberships(snapshot, entries)) if each.everyone), None)
    if own is None or membership is None:
        raise StartError("this data folder is of a broker that was never in a cluster: there is nothing to recover")
    metadata = Metadata.restore(snapshot.data) if snapshot.data else Metadata()
    for entry in entries:
        if entry.kind is EntryKind.COMMAND:
            metadata.apply(entry.index, decode(entry.data))
    cluster = succeeding(membership.cluster, random.token())
    missing = max(0, confirmed - storage.end)
    found = _describe(metadata, own, membership, cluster, entries[-1].index if entries else snapshot.index, missing)
    if accept_loss:
        index = found.index + RECOVERED_INDEX_LEAP
        for other in found.others:
            index += 1
            metadata.apply(index, DiskLost(other, (own,)))
        metadata.index = index
        for name, stream in metadata.streams.items():
            again: dict[int, Partition] = {item.id: tombstones.begins_again(item, Epoch(index)) for item in stream}
            metadata.streams[name] = stream.with_partitions(again)
        incarnation = random.token()
        alone = Membership((own,), (), ((own, incarnation),), cluster)
        term = hard_state.term + 1
        await _forget_confirmed(disk)
        await storage.save(
            HardState(term, "", index, incarnation), [], Snapshot(index, term, alone, metadata.snapshot())
        )
    return found


async def _confirmed(disk: Disk) -> int:
    """How many saves this broker had confirmed, as far as that is on record."""
    clean = await cleanshutdown.read(disk)
    ends = PromisedEnds(disk, _fail)
    await ends.load(clean.ends if clean else None)
    return ends.record(RAFT_FOLDER).promised


async def _forget_confirmed(disk: Disk) -> None:
    """Forget what Raft had promised to the old cluster: the new log may be shorter."""
    clean = await cleanshutdown.read(disk)
    ends = PromisedEnds(disk, _fail)
    await ends.load(clean.ends if clean else None)
    ends.record(RAFT_FOLDER).reset()
    await ends.begin()
    if clean is not None:
        left = {folder: end for folder, end in clean.ends.items() if folder != RAFT_FOLDER}
        await cleanshutdown.leave(disk, clean.everything, left)


def _fail(reason: str) -> None:
    raise StartError(reason)


def _memberships(snapshot: Snapshot, entries: list[Entry]) -> list[Membership]:
    later = [decode_membership(entry.data) for entry in entries if entry.kind is EntryKind.MEMBERSHIP]
    return [snapshot.membership, *later]


def _describe(metadata: Metadata, own: str, membership: Membership, cluster: str, index: int, missing: int) -> Recovery:
    others = dict.fromkeys(server for server in membership.everyone if server != own)
    kinds: dict[str, list[str]] = {"whole": [], "out_of_sync": [], "gone": []}
    for name in sorted(metadata.streams):
        for item in metadata.streams[name]:
            others.update(dict.fromkeys(each for each in item.replicas if each != own))
            kind = "whole" if own in (*item.isr, *item.eligible) else "out_of_sync" if own in item.replicas else "gone"
            kinds[kind].append(name_of(name, item.id))
    return Recovery(
        own,
        membership.cluster,
        cluster,
        tuple(sorted(others)),
        tuple(kinds["whole"]),
        tuple(kinds["out_of_sync"]),
        tuple(kinds["gone"]),
        index,
        missing,
    )
