"""The leader of a partition, and the in-sync set as it sees it, driven by text (see `tests.harness.scenario_text`).

The leader is a. Its log and the metadata are played by the scenario: `promised` is its own disk, `isr` what the
metadata says. Time passes by `wait` alone, in seconds; who lags is looked at then.
"""

import struct

from bascule.core.partition import leader as le
from bascule.core.partition.insync import InSync
from bascule.core.partition.pendingacks import PendingAcks, PendingAcksBound
from bascule.errors import AckError
from bascule.types import Epoch
from bascule.wire.record import origin
from tests.harness.batches import batch, envelope
from tests.harness.scenario_text import CommandRunner

SECOND = 1_000_000_000
POLICIES = {"leader": 0, "all": 1, "none": 2}
PENDING = struct.Struct("<qqBBHHI")


def acks_of(pending: bytes) -> list[str]:
    """Who is told what: the offset and the policy, or the error."""
    found, position = [], 0
    names = {number: name for name, number in POLICIES.items()}
    while position < len(pending):
        offset, _, policy, error, *sizes = PENDING.unpack_from(pending, position)
        found.append(f"{AckError(error).name} ({names[policy]})" if error else f"{offset} ({names[policy]})")
        position += PENDING.size + sum(sizes)
    return found


class LeaderScenario(CommandRunner):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0
        self._replicas: tuple[str, ...] = ()
        self._machine: le.Leader
        self._refused: list[bytes] = []

    def do_lead(self, *words: str) -> None:
        """`isr=a,b` of `replicas=a,b,c`; `min=`; `end=` and `hw=` of its log; `lag=` in seconds; `optimistic=yes`."""
        given = dict(word.split("=") for word in words)
        isr = tuple(given["isr"].split(","))
        self._replicas = tuple(given.get("replicas", "a,b,c").split(","))
        end, hw_end = int(given.get("end", 0)), int(given.get("hw", 0))
        lag = int(given.get("lag", 10)) * SECOND
        optimistic = "optimistic" in given
        identity = le.Identity(origin("orders", 0), b"orders", Epoch(3), 1000, optimistic, b"", lag)
        in_sync = InSync("a", self._replicas, isr, int(given.get("min", 1)), hw_end, end)
        in_sync.start_watching(self._now)
        self._machine = le.Leader(identity, in_sync, end, 0, PendingAcks("orders/0", PendingAcksBound()))
        self.do_promised(str(end))

    # --- what it receives -----------------------------------------------------------------------------------------

    def do_publish(self, *policies: str) -> None:
        """A message each, with the ack it asks for: `leader`, `all` or `none`; or `expecting=5`, `large`."""
        messages = [self._message(policy) for policy in policies]
        self._step(le.Arrived(batch(*messages), self._now))

    def _message(self, policy: str) -> bytes:
        if policy == "large":
            return envelope(b"x" * 2000, POLICIES["all"])
        if policy.startswith("expecting="):
            return envelope(b"x", POLICIES["all"], int(policy.removeprefix("expecting=")))
        return envelope(b"x", POLICIES[policy], -1)

    def do_promised(self, end: str) -> None:
        """Its own log is synced up to there."""
        self._step(le.Promised(int(end)))

    def do_fetched(self, replica: str, where: str) -> None:
        """`b 5/3`: it asks from offset 5 on, and has synced everything below 3."""
        end, promised_end = where.split("/")
        self._step(le.Fetched(replica, int(end), int(promised_end), self._now))

    def do_disk_failing(self, replica: str, promised_end: str) -> None:
        self._step(le.DiskFailing(replica, int(promised_end), self._now))

    def do_isr(self, isr: str, *words: str) -> None:
        """The metadata says so. `eligible=`, `replicas=`."""
        given = {key: tuple(value.split(",")) for key, value in (word.split("=") for word in words)}
        self._replicas = given.get("replicas", self._replicas)
        changed = le.IsrChanged(tuple(isr.split(",")), self._replicas, self._now, given.get("eligible", ()))
        self._step(changed)

    def do_refused(self, way: str, replica: str) -> None:
        """`out b`: it may still be in. `in b`: the controller was asked, and it is not in."""
        if way == "out":
            self._step(le.ShrinkFailed(replica, self._now))
        else:
            self._step(le.ExpandFailed(replica, True, self._now))

    def do_not_alive(self, replica: str) -> None:
        """Nobody was asked to let it in."""
        self._step(le.ExpandFailed(replica, False, self._now))

    def do_confirmed(self, whether: str) -> None:
        """`yes`: this broker led when it refused the oldest messages that have no answer yet."""
        self._step(le.Confirmed(self._refused.pop(0), whether == "yes"))

    def do_wait(self, seconds: str, *heard: str) -> None:
        """Those `heard` say meanwhile that they stand where they stood."""
        self._now += int(float(seconds) * SECOND)
        self._step(le.Tick(self._now, tuple((replica, self._now) for replica in heard)))

    def do_failed(self, promised_end: str) -> None:
        self._step(le.Failed(int(promised_end)))

    def do_reopened(self, end: str) -> None:
        self._step(le.Reopened(int(end), 0))

    def do_status(self) -> None:
        machine, known = self._machine, self._machine.in_sync
        words = [f"end {machine.end}", f"high watermark {known.hw_end}", f"in sync {' '.join(known.isr)}"]
        words += ["below the minimum"] * known.below_min_isr + [
            "established" if machine.established else "not established"
        ]
        self.output.append(", ".join(words))

    # --- what it does ---------------------------------------------------------------------------------------------

    def _step(self, event: le.Event) -> None:
        self.output += map(self._text, self._machine.step(event))

    def _text(self, effect: le.Effect) -> str:
        match effect:
            case le.Append(_, count, next_offset):
                return f"append {next_offset - count} to {next_offset - 1}"
            case le.Replicate(_, first_offset, next_offset):
                return f"replicate {first_offset} to {next_offset - 1}"
            case le.SendAcks(pending):
                return f"ack {', '.join(acks_of(pending))}"
            case le.Refuse(pending):
                self._refused.append(pending)
                return f"refuse {', '.join(acks_of(pending))}"
            case le.Expose(hw_end):
                return f"high watermark {hw_end}"
            case le.DropAcks(partition, nbytes):
                return f"drop {nbytes} bytes of acks of {partition}"
            case le.AskShrink(replica, lacks):
                return f"ask {replica} out" + ", for it lacks what it promised" * lacks
            case le.AskExpand(replica):
                return f"ask {replica} in"
