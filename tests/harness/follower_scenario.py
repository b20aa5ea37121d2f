"""A follower of a partition driven by text (see `tests.harness.scenario_text`).

The leader and the own log are played by the scenario. Records are written `5-7@3`: offsets 5 to 7, of epoch 3. An
answer is about the position the follower has now, unless `asked=` says that it was given to another one.
"""

from bascule.core.partition import follower as f
from bascule.core.partition.epochs import EpochHistory
from bascule.testing.records import encode
from bascule.types import Epoch
from bascule.wire.replication import Answer, Kind
from tests.harness.scenario_text import CommandRunner


def run_of(word: str) -> tuple[int, int, int]:
    """First and last offset, and epoch."""
    offsets, _, epoch = word.partition("@")
    first, _, last = offsets.partition("-")
    return int(first), int(last or first), int(epoch)


def options_of(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=") for word in words if "=" in word)


class FollowerScenario(CommandRunner):
    def __init__(self) -> None:
        super().__init__()
        self._machine: f.Follower
        self._epochs: EpochHistory

    def do_follow(self, *words: str) -> None:
        """Records that its log has; `epoch=` of the leader, `promised=`, `hw=` and `start=` that it knows."""
        runs = [run_of(word) for word in words if "=" not in word]
        given = options_of(words)
        end = runs[-1][1] + 1 if runs else 0
        self._epochs = EpochHistory([(epoch, first) for first, _, epoch in runs])
        ends = (end, int(given.get("promised", end)), int(given.get("hw", 0)))
        self._machine = f.Follower(7, 0, Epoch(int(given["epoch"])), self._epochs, *ends, int(given.get("start", 0)))
        self.do_status()

    # --- the leader -------------------------------------------------------------------------------------------------

    def do_data(self, *words: str) -> None:
        """Records; `hw=` and `end=` of the leader; `epoch=` it leads under; `asked=5@2`; `bent` on the way."""
        given = options_of(words)
        runs = [run_of(word) for word in words if "=" not in word and word != "bent"]
        pieces = [encode([b"x"] * (last + 1 - first), first, epoch=epoch)[0] for first, last, epoch in runs]
        records = b"".join(pieces)
        if "bent" in words:
            records = records[:-1] + bytes((records[-1] ^ 1,))
        end = runs[-1][1] + 1 if runs else self._machine.end
        self._answer(Kind.DATA, given, int(given.get("end", end)), 0, 0, records)

    def do_diverged(self, *words: str) -> None:
        """`epoch 3 ends 5`: the leader's log has that epoch up to there, and the follower's goes on otherwise."""
        self._answer(Kind.DIVERGED, options_of(words), self._machine.end, int(words[1]), int(words[3]), b"")

    def do_refused(self, *words: str) -> None:
        self._answer(Kind.REFUSED, options_of(words), 0, 0, 0, b"")

    def _answer(self, kind: Kind, given: dict[str, str], end: int, epoch: int, epoch_end: int, records: bytes) -> None:
        machine = self._machine
        offset, _, asked_epoch = given.get("asked", f"{machine.end}@{self._epochs.last_epoch}").partition("@")
        head = (7, 0, kind, int(given.get("epoch", machine.leader_epoch)), int(given.get("hw", machine.hw_end)), end)
        self._step(f.Answered(Answer(*head, int(offset), int(asked_epoch), epoch, epoch_end, records)))

    # --- its own log --------------------------------------------------------------------------------------------------

    def do_promised(self, end: str) -> None:
        self._step(f.Promised(int(end)))

    def do_truncated(self, end: str) -> None:
        self._step(f.Truncated(int(end)))

    def do_failed(self, end: str) -> None:
        self._step(f.Failed(int(end)))

    def do_reopened(self, end: str) -> None:
        self._step(f.Reopened(int(end)))

    def do_status(self) -> None:
        machine = self._machine
        epochs = " ".join(f"{epoch} from {start}" for epoch, start in self._epochs.entries)
        state = ", failed" * machine.failed + ", truncating" * machine.truncating
        ends = f"end {machine.end}, promised {machine.promised_end}, high watermark {machine.hw_end}"
        self.output.append(f"{ends}, epochs {epochs or 'none'}{state}")

    def _step(self, event: f.Event) -> None:
        for effect in self._machine.step(event):
            match effect:
                case f.Append(_, count, next_offset, _, epoch, first):
                    self.output.append(f"append {count} records, {first} to {next_offset - 1} of epoch {epoch}")
                case f.Truncate(end):
                    self.output.append(f"truncate to {end}")
                case f.Expose(hw_end):
                    self.output.append(f"show up to {hw_end}")
                case f.IgnoreResponse(reason):
                    self.output.append(f"not taken: {reason}")
        if not self.output:
            self.output.append("nothing")
