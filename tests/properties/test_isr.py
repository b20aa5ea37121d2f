"""Whoever is in sync or eligible has everything that was ever committed: commands in any order, late ones too, against
a model of the replicas' logs, with leaders that do not know yet what was decided about them."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from bascule.core.metadata import altering
from bascule.core.metadata.codec import decode, encode
from bascule.core.metadata.commands import (
    AlterStream,
    BrokerDied,
    BrokerStarted,
    ChangeLeader,
    Command,
    CreateStream,
    DiskLost,
    DrainBroker,
    ExpandIsr,
    GiveWay,
    HandOver,
    ShrinkIsr,
)
from bascule.core.metadata.isr import giving_way, minimum
from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.types import PartitionId

BROKERS = ("a", "b", "c")
Record = tuple[int, int]
brokers = st.sampled_from(BROKERS)


class Leadership:
    """What one broker knows while it leads under one epoch."""

    def __init__(self, end: int, hw_end: int) -> None:
        self.leadership_end = end
        self.hw_end = hw_end
        self.promised: dict[str, int] = {}
        self.joining: dict[str, int] = {}
        """By replica, the epoch of the partition it was asked in for."""


class Replicas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.metadata = Metadata()
        config = StreamConfig(min_isr=2)
        made = Partition(PartitionId(0), BROKERS, "a", BROKERS)
        self.apply(CreateStream(Stream("s", "s", "", (made,), config)))
        self.logs: dict[str, list[Record]] = {broker: [] for broker in BROKERS}
        self.shown: dict[str, int] = dict.fromkeys(BROKERS, 0)
        self.views = dict.fromkeys(BROKERS, self.item)
        self.leasts = dict.fromkeys(BROKERS, 2)
        """The min ISR, as each knows it."""
        self.leaderships: dict[tuple[str, int], Leadership] = {("a", self.item.leader_epoch): Leadership(0, 0)}
        self.down: dict[str, None] = {}
        self.harmed = ""
        """Who lacks something it promised, while the metadata does not know."""
        self.lost = False
        self.late: list[Command] = []
        self.committed: list[Record] = []
        self.made = 0

    @property
    def item(self) -> Partition:
        return self.metadata.streams["s"].partitions[0]

    @property
    def least(self) -> int:
        return minimum(self.metadata.streams["s"].config)

    def apply(self, command: Command) -> None:
        self.metadata.apply(self.metadata.index + 1, decode(encode(command)))

    def up(self, broker: str) -> bool:
        return broker not in self.down

    def leadership(self, broker: str) -> Leadership | None:
        view = self.views[broker]
        return self.leaderships.get((broker, view.leader_epoch)) if self.up(broker) and view.leader == broker else None

    # --- replication -----------------------------------------------------------------------------------------

    @rule(broker=brokers)
    def learns(self, broker: str) -> None:
        if not self.up(broker):
            return
        view = self.views[broker] = self.item
        self.leasts[broker] = self.least
        key = (broker, view.leader_epoch)
        if view.leader == broker and key not in self.leaderships:
            self.leaderships[key] = Leadership(len(self.logs[broker]), self.shown[broker])

    @rule(broker=brokers)
    def appends(self, broker: str) -> None:
        if self.leadership(broker) is not None:
            self.made += 1
            self.logs[broker].append((self.views[broker].leader_epoch, self.made))

    @rule(follower=brokers, count=st.integers(0, 3))
    def fetches(self, follower: str, count: int) -> None:
        view = self.views[follower]
        leader = view.leader
        if not self.up(follower) or leader in ("", follower) or self.views[leader].leader_epoch != view.leader_epoch:
            return
        led = self.leadership(leader)
        if led is None:
            return
        theirs, own = self.logs[leader], self.logs[follower]
        agreed = next(
            (n for n, (x, y) in enumerate(zip(own, theirs, strict=False)) if x != y), min(map(len, (own, theirs)))
        )
        if agreed < len(own):
            assert agreed >= self.shown[follower], "what it has exposed is truncated"
            del own[agreed:]
        led.promised[follower] = len(own)
        own += theirs[len(own) : len(own) + count]
        self.shown[follower] = max(self.shown[follower], min(len(own), led.hw_end))

    @rule(broker=brokers)
    def commits(self, broker: str) -> None:
        led, view = self.leadership(broker), self.views[broker]
        if led is None or len(view.isr) < self.leasts[broker]:
            return
        joining = [each for each, epoch in led.joining.items() if epoch == view.epoch]
        counted = [each for each in (*view.isr, *joining) if each != broker]
        reached = min([len(self.logs[broker]), *(led.promised.get(each, 0) for each in counted)])
        if reached <= led.hw_end:
            return
        led.hw_end = self.shown[broker] = reached
        known, told = self.committed, self.logs[broker][:reached]
        length = min(len(known), len(told))
        assert known[:length] == told[:length], "two leaders committed different records"
        self.committed = max(known, told, key=len)

    @rule(away=st.sets(brokers, max_size=2), rounds=st.integers(1, 3))
    def goes_on(self, away: set[str], rounds: int) -> None:
        """What happens most of the time: the leader takes records, and those it reaches follow."""
        there = [each for each in BROKERS if self.up(each) and each not in away]
        for each in there:
            self.learns(each)
        self.appends(self.item.leader)
        for _ in range(rounds):
            for each in there:
                self.fetches(each, 2)
            self.commits(self.item.leader)

    # --- what leaders ask for, and when it arrives -------------------------------------------------------------

    @rule(broker=brokers, other=brokers)
    def asks_in(self, broker: str, other: str) -> None:
        led, view = self.leadership(broker), self.views[broker]
        if led is None or other in view.isr or led.promised.get(other, 0) < max(led.hw_end, led.leadership_end):
            return
        led.joining[other] = view.epoch
        self.late.append(ExpandIsr("s", 0, other, broker, view.leader_epoch, view.epoch))

    @rule(broker=brokers, other=brokers)
    def asks_out(self, broker: str, other: str) -> None:
        led, view = self.leadership(broker), self.views[broker]
        if led is not None:
            lacks = led.promised.get(other, led.hw_end) < led.hw_end
            self.late.append(ShrinkIsr("s", 0, other, broker, view.leader_epoch, view.epoch, lacks))

    @rule(broker=brokers, living=st.sets(brokers))
    def steps_down(self, broker: str, living: set[str]) -> None:
        if self.leadership(broker) is not None:
            alive = tuple(each for each in sorted({*living, broker}) if self.up(each))
            self.late.append(ChangeLeader("s", 0, broker, self.views[broker].leader_epoch, alive))

    @precondition(lambda self: self.late)
    @rule(data=st.data(), again=st.booleans())
    def arrives(self, data: st.DataObject, again: bool) -> None:
        number = data.draw(st.integers(0, len(self.late) - 1))
        command = self.late[number] if again else self.late.pop(number)
        if not (isinstance(command, ExpandIsr) and not self.up(command.replica)):  # the controller refuses these
            self.apply(command)

    # --- what befalls brokers ----------------------------------------------------------------------------------

    def living(self, broker: str, suspected: set[str]) -> tuple[str, ...]:
        """As a controller may see it: never the dead, not always the living. Never () either: that means everybody."""
        alive = tuple(each for each in BROKERS if self.up(each) and each not in (broker, *suspected))
        return alive or ("nobody",)

    @rule(broker=brokers, suspected=st.sets(brokers, max_size=2))
    def counts_as_dead(self, broker: str, suspected: set[str]) -> None:
        self.apply(BrokerDied(broker, self.living(broker, suspected)))

    @rule(broker=brokers)
    def hands_over(self, broker: str) -> None:
        if self.up(broker):
            self.apply(HandOver(broker, self.living(broker, set())))

    @rule(broker=brokers)
    def drains(self, broker: str) -> None:
        self.apply(DrainBroker(broker, tuple(self.down)))

    @rule(least=st.integers(1, 3), suspected=st.sets(brokers))
    def is_altered(self, least: int, suspected: set[str]) -> None:
        """By a controller that takes some for dead which are not."""
        if self.harmed and least < 2:
            return
        command = AlterStream("s", StreamConfig(min_isr=least))
        stream = self.metadata.streams["s"]
        while wanted := altering.expansions(stream, command, lambda each: self.up(each) and each not in suspected):
            for each in wanted:
                self.apply(each)
            stream = self.metadata.streams["s"]
        self.apply(command)

    @rule(suspected=st.sets(brokers))
    def is_altered_by_half(self, suspected: set[str]) -> None:
        """The controller dies between the commands."""
        command = AlterStream("s", StreamConfig(min_isr=1))
        for each in altering.expansions(self.metadata.streams["s"], command, lambda each: each not in suspected):
            self.apply(each)

    @rule(broker=brokers)
    def stops(self, broker: str) -> None:
        self.down[broker] = None

    @rule(broker=brokers, keeps=st.integers(0, 4), lost=st.booleans())
    def is_harmed(self, broker: str, keeps: int, lost: bool) -> None:
        """One replica at a time, as the contract has it: not the only one that has everything, and not with a min ISR
        of 1."""
        if self.harmed or self.least < 2 or self.item.complete == (broker,):
            return
        self.down[broker] = None
        self.harmed, self.lost = broker, lost
        del self.logs[broker][0 if lost else keeps :]
        self.shown[broker] = min(self.shown[broker], len(self.logs[broker]))

    @rule(broker=brokers, suspected=st.sets(brokers, max_size=2), notices=st.booleans())
    def starts(self, broker: str, suspected: set[str], notices: bool) -> None:
        """Who is in no set need not notice that something is missing: it is not counted on."""
        if self.up(broker):
            return
        harmed = broker == self.harmed
        noticed = harmed and (notices or broker in self.item.complete)
        alive = (*self.living(broker, suspected), broker)
        if harmed and self.lost:
            self.apply(DiskLost(broker, alive))
        self.apply(BrokerStarted(broker, False, (("s", 0),) if noticed else (), alive))
        del self.down[broker]
        self.views[broker] = self.item
        self.shown[broker] = 0
        if harmed:
            assert broker not in self.item.complete
            self.harmed = ""
        self.learns(broker)

    @rule(broker=brokers, other=brokers, whole=st.booleans())
    def gives_way(self, broker: str, other: str, whole: bool) -> None:
        """To one with more, by the comparison of Raft; it may know that it has everything it promised."""
        view = self.views[broker]
        if self.leadership(broker) is None or not self.up(other) or not self.logs[other]:
            return
        own, theirs = self.logs[broker], self.logs[other]
        if (theirs[-1][0], len(theirs)) > (own[-1][0] if own else 0, len(own)):
            wanted = GiveWay("s", 0, other, broker, view.leader_epoch, view.epoch)
            self.late.append(giving_way(self.item, wanted, whole))

    # --- what must hold ----------------------------------------------------------------------------------------

    @invariant()
    def the_sets_make_sense(self) -> None:
        item, least = self.item, self.least
        assert item.leader in item.isr
        assert not set(item.isr) & set(item.eligible)
        assert len({*item.complete}) == len(item.complete)
        assert {*item.complete} <= {*item.replicas}
        assert not item.eligible or len(item.isr) < least

    @invariant()
    def who_is_in_sync_or_eligible_has_everything_committed(self) -> None:
        for member in self.item.complete:
            if member != self.harmed:
                assert self.logs[member][: len(self.committed)] == self.committed, f"{member} lacks something"


def test_who_is_in_sync_or_eligible_has_everything_that_was_ever_committed() -> None:
    run_state_machine_as_test(Replicas, settings=settings(max_examples=400, stateful_step_count=80, deadline=None))
