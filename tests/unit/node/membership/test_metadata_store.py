"""The state that Raft commits, as a broker has it by applying commands or by a snapshot."""

from bascule.core.metadata.codec import encode
from bascule.core.metadata.commands import CreateStream
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Stream
from bascule.node.membership.metadata import MetadataCache, MetadataStore
from bascule.testing.loop import run
from bascule.wire.raft_messages import Entry, EntryKind, Membership, Snapshot
from tests.harness.changes import NoChanges


def test_a_broker_that_took_a_snapshot_has_the_same_metadata_as_one_that_applied_every_command() -> None:
    """Also where the last entries of the snapshot are no commands, as when a member has just come in."""

    async def main() -> None:
        applied, restored = (MetadataStore(MetadataCache(Metadata()), NoChanges()) for _ in range(2))
        create = encode(CreateStream(Stream("s", "s", "", place(1, 3, ("a", "b", "c"), []))))
        await applied.apply(Entry(7, 1, EntryKind.COMMAND, create))
        await applied.apply(Entry(8, 1, EntryKind.MEMBERSHIP))
        await restored.restore(Snapshot(8, 1, Membership(), applied.metadata.snapshot()))
        assert restored.metadata.snapshot() == applied.metadata.snapshot()
        assert restored.metadata.index == 7

    run(main())
