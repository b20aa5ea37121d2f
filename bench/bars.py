"""What the measures are held against: each bar compares two measures of the same round, or one with a number.

The value of a bar is the median over the rounds of what it computes in each round, so that a machine that was
slow for a while was slow for both sides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.measures import Sample

Round = Mapping[str, Sample]
"""The samples of one round, by the name of the measure."""


@dataclass(frozen=True)
class Bar:
    group: str
    text: str
    measures: tuple[str, ...]
    value: Callable[[Round], float]
    unit: str = "x"
    least: float | None = None
    most: float | None = None

    def over(self, rounds: Sequence[Round]) -> float:
        return median(self.value(samples) for samples in rounds)

    @property
    def bound(self) -> str:
        if self.least is not None:
            return f">= {self.least:g} {self.unit}"
        return "" if self.most is None else f"<= {self.most:g} {self.unit}"


def verdict(value: float, least: float | None, most: float | None) -> str:
    """Empty where there is no bar: the row is information."""
    if least is None and most is None:
        return ""
    reached = (least is None or value >= least) and (most is None or value <= most)
    return "PASS" if reached else "MISS"


def ratio(group: str, ours: str, theirs: str, least: float | None) -> Bar:
    def value(samples: Round) -> float:
        return samples[ours].rate / samples[theirs].rate

    return Bar(group, f"{ours} / {theirs}", (ours, theirs), value, least=least)


def latency(name: str, percentile: str) -> Bar:
    def value(samples: Round) -> float:
        return samples[name].p50_us if percentile == "p50" else samples[name].p99_us

    return Bar("f", f"{name}, {percentile} at 5 000 msgs/s", (name,), value, unit="us")


BARS = (
    ratio("a", "envelopes, group", "JetStream async", 1.5),
    ratio("a", "envelopes, os", "JetStream async", 2.0),
    ratio("a", "envelopes, group", "JetStream sync always", 20.0),
    ratio("a", "envelopes, group", "JetStream lean client", None),
    ratio("b", "gRPC PublishAsync, group", "JetStream async", 1.2),
    ratio("c", "plain NATS, group", "JetStream async", 5.0),
    ratio("d", "Subscribe, decoded", "JetStream ordered consumer", 0.9),
    ratio("d", "Subscribe, undecoded", "JetStream ordered consumer", 3.0),
    ratio("d", "Subscribe, decoded", "JetStream tuned consumer", None),
    Bar(
        "d",
        "broker CPU of a subscribed message",
        ("Subscribe, decoded",),
        lambda samples: samples["Subscribe, decoded"].broker_us,
        unit="us",
        most=1.0,
    ),
    ratio("e", "100 publishers, 1 000 in flight each", "envelopes, group", 0.5),
    ratio("e", "100 publishers, 10 in flight each", "envelopes, group", None),
    latency("latency, group", "p50"),
    latency("latency, group", "p99"),
    latency("latency, JetStream", "p50"),
    latency("latency, JetStream", "p99"),
)
