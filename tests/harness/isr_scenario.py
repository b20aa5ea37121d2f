"""The in-sync set of one partition, as the metadata has it, driven by text (see `tests.harness.scenario_text`).

Every command becomes a command of the metadata and is applied. Below it stands what came of it: who leads since which
command, who is in sync, who is eligible to lead; or that nothing changed. `alive` names the live brokers; the leader
that asks knows the partition as it is, unless `late` says that it knows it as it was before the last change.
"""

from bascule.core.metadata.codec import decode, encode
from bascule.core.metadata.commands import (
    At,
    BrokerDied,
    BrokerStarted,
    ChangeLeader,
    Command,
    CreateStream,
    DiskLost,
    DrainBroker,
    ElectLeader,
    ExpandIsr,
    GiveWay,
    HandOver,
    ShrinkIsr,
)
from bascule.core.metadata.isr import giving_way
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Metadata, Rejected
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from tests.harness.scenario_text import CommandRunner


class IsrScenario(CommandRunner):
    def __init__(self) -> None:
        super().__init__()
        self._metadata = Metadata()
        self._alive: tuple[str, ...] = ()
        self._before: Partition

    # --- the partition --------------------------------------------------------------------------------------------

    def do_partition(self, *words: str) -> None:
        """On these brokers, led by the first; `min=` is the stream's minimum."""
        options = dict(word.split("=") for word in words if "=" in word)
        self._alive = tuple(word for word in words if "=" not in word)
        config = StreamConfig(min_isr=int(options.get("min", 1)))
        partitions = place(1, len(self._alive), self._alive, [])
        self._metadata.apply(1, CreateStream(Stream("s", "s", "", partitions, config)))
        self._before = self._item
        self._show()

    def do_alive(self, *brokers: str) -> None:
        """Who may lead from now on."""
        self._alive = brokers

    # --- what its leader asks for ---------------------------------------------------------------------------------

    def do_shrink(self, replica: str, *words: str) -> None:
        """`lacks`: it has lost something it had promised. `late`: something changed before."""
        item = self._known(words)
        change = (item.leader, item.leader_epoch, item.epoch)
        self._apply(ShrinkIsr("s", 0, replica, *change, "lacks" in words))

    def do_expand(self, replica: str, *words: str) -> None:
        item = self._known(words)
        self._apply(ExpandIsr("s", 0, replica, item.leader, item.leader_epoch, item.epoch))

    def do_give_way(self, replica: str, *words: str) -> None:
        """`whole`: the leader has everything that it promised."""
        item = self._known(words)
        wanted = GiveWay("s", 0, replica, item.leader, item.leader_epoch, item.epoch)
        self._apply(giving_way(item, wanted, "whole" in words))

    def do_step_down(self, *words: str) -> None:
        item = self._known(words)
        self._apply(ChangeLeader("s", 0, item.leader, item.leader_epoch, self._living))

    # --- what becomes of a broker ---------------------------------------------------------------------------------

    def do_dies(self, broker: str) -> None:
        self._alive = tuple(each for each in self._alive if each != broker)
        self._apply(BrokerDied(broker, self._living))

    def do_stops(self, broker: str) -> None:
        """In good order."""
        self._alive = tuple(each for each in self._alive if each != broker)
        self._apply(HandOver(broker, self._living))

    def do_starts(self, broker: str, *words: str) -> None:
        """`suspect`: its log may lack something. `unclean`: after a crash under relaxed sync."""
        self._alive = tuple(dict.fromkeys((*self._alive, broker)))
        suspect = (("s", 0),) if "suspect" in words else ()
        self._apply(BrokerStarted(broker, "unclean" in words, suspect, self._living))

    def do_loses_disk(self, broker: str) -> None:
        self._alive = tuple(each for each in self._alive if each != broker)
        self._apply(DiskLost(broker, self._living))

    def do_drain(self, broker: str) -> None:
        self._apply(DrainBroker(broker))

    def do_elect(self, broker: str) -> None:
        """An administrator accepts what it lacks."""
        self._apply(ElectLeader(At("s", 0, broker), self._item.isr, self._item.eligible))

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _item(self) -> Partition:
        return self._metadata.streams["s"].partitions[0]

    @property
    def _living(self) -> tuple[str, ...]:
        """Somebody is always alive: an empty list would stand for everybody."""
        return self._alive or ("x",)

    def _known(self, words: tuple[str, ...]) -> Partition:
        return self._before if "late" in words else self._item

    def _apply(self, command: Command) -> None:
        before = self._item
        changes = self._metadata.apply(self._metadata.index + 1, decode(encode(command)))
        self.output += [f"refused: {change.error}" for change in changes if isinstance(change, Rejected)]
        if self._item == before:
            self.output.append("nothing changes")
            return
        self._before = before
        self._show()

    def _show(self) -> None:
        item = self._item
        leader = f"{item.leader} leads since {item.leader_epoch}" if item.leader else "nobody leads"
        eligible = f", eligible {' '.join(item.eligible)}" if item.eligible else ""
        self.output.append(f"{leader}, in sync {' '.join(item.isr) or 'nobody'}{eligible}")
