"""What a machine asks of its driver."""

from dataclasses import dataclass, field

from bascule.wire.raft_messages import Entry, HardState, Message, Snapshot


@dataclass(slots=True)
class Ready:
    """What the driver must do now, in this order: persist hard state, snapshot and entries in one durable write; send
    the messages; apply the snapshot, then the committed entries; call `advance`. Only one may be under way; what
    peers say meanwhile can be stepped and shows in the next."""

    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    """From the leader: it takes the place of the whole log and of the applied state."""
    entries: list[Entry] = field(default_factory=list)
    """They take the place of whatever is stored from the first one's index on."""
    messages: list[Message] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)
    """(context, index): that read may be served once `index` is applied."""
    lost_reads: list[int] = field(default_factory=list)
    """Contexts of reads that will not be answered, because leadership is gone."""

    def __bool__(self) -> bool:
        return bool(self.must_persist or self.messages or self.committed or self.reads or self.lost_reads)

    @property
    def must_persist(self) -> bool:
        return bool(self.hard_state or self.snapshot or self.entries)
