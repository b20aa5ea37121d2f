"""What the measures are held against: each bar compares two measures of the same round, or one with a number.

The value of a bar is the median over the rounds of what it computes in each round, so that a machine that was
slow for a while was slow for both sides. Where the worst counts, it is the worst of all rounds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.measures import REPLICATED_RATE, STEADY_RATE, Sample

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
    combine: Callable[[Iterable[float]], float] = median

    def over(self, rounds: Sequence[Round]) -> float:
        return self.combine(self.value(samples) for samples in rounds)

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


def latency(group: str, name: str, percentile: str, rate: int) -> Bar:
    def value(samples: Round) -> float:
        return samples[name].p50_us if percentile == "p50" else samples[name].p99_us

    text = f"{name}, {percentile} at {rate:,} msgs/s".replace(",000", " 000")
    return Bar(group, text, (name,), value, unit="us")


def cheaper(way: str, theirs: str, least: float | None, their_way: str = "") -> Bar:
    """How many times less processor time a message takes in a program with our Python client."""
    ours, other = f"Python, Bascule: {way}", f"Python, {theirs}: {their_way or way}"

    def value(samples: Round) -> float:
        return samples[other].driver_us / samples[ours].driver_us

    text = f"CPU of {theirs}{f', {their_way}' if their_way else ''} / of Bascule, {way}"
    return Bar("i", text, (ours, other), value, least=least)


BARS = (
    ratio("a", "envelopes, group", "JetStream async", 1.5),
    ratio("a", "envelopes, os", "JetStream async", 2.0),
    ratio("a", "envelopes, group", "JetStream sync always", 20.0),
    ratio("a", "envelopes, group", "JetStream lean client", None),
    ratio("a", "numbered envelopes, group", "envelopes, group", 0.9),
    ratio("b", "gRPC PublishAsync, group", "JetStream async", 1.2),
    ratio("c", "plain NATS, group", "JetStream async", 5.0),
    ratio("d", "Subscribe, decoded", "JetStream ordered consumer", 0.9),
    ratio("d", "Subscribe, undecoded", "JetStream ordered consumer", 3.0),
    ratio("d", "Subscribe, decoded", "JetStream tuned consumer", None),
    ratio("d", "bulk Read", "Subscribe, undecoded", 1.5),
    ratio("d", "bulk Write, group", "gRPC PublishAsync, group", 2.0),
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
    latency("f", "latency, group", "p50", STEADY_RATE),
    latency("f", "latency, group", "p99", STEADY_RATE),
    latency("f", "latency, JetStream", "p50", STEADY_RATE),
    latency("f", "latency, JetStream", "p99", STEADY_RATE),
    ratio("h", "ack ALL, three brokers", "JetStream R3, async", 1.0),
    ratio("h", "ack ALL, three brokers", "JetStream R3, lean client", None),
    latency("h", "latency, ack ALL", "p50", REPLICATED_RATE),
    latency("h", "latency, ack ALL", "p99", REPLICATED_RATE),
    latency("h", "latency, JetStream R3", "p50", REPLICATED_RATE),
    latency("h", "latency, JetStream R3", "p99", REPLICATED_RATE),
    Bar(
        "h",
        "time to a new leader after kill -9, worst",
        ("kill -9 of the leader",),
        lambda samples: samples["kill -9 of the leader"].stall_s,
        unit="s",
        most=4.0,
        combine=max,
    ),
    cheaper("awaited one by one", "nats-py", 1.0),
    cheaper("awaited one by one", "nats-py, sync always", 1.0),
    cheaper("awaited one by one", "gufo_liftbridge", None),
    cheaper("gathered", "nats-py", 1 / 0.6),
    cheaper("pipelined", "nats-py", 8.0),
    cheaper("pipelined", "gufo_liftbridge", 8.0),
    cheaper("pipelined, key and headers", "nats-py", 8.0),
    cheaper("iterated", "nats-py", 15.0),
    cheaper("iterated", "gufo_liftbridge", 15.0),
    cheaper("iterated, key and headers", "nats-py", 15.0),
    cheaper("producer", "nats-py", None, "pipelined"),
    cheaper("producer, key and headers", "nats-py", None, "pipelined, key and headers"),
    Bar(
        "i",
        "Python, Bascule: Arrow batches, messages a second and core",
        ("Python, Bascule: Arrow batches",),
        lambda samples: 1 / samples["Python, Bascule: Arrow batches"].driver_us,
        unit="M/s",
        least=3.0,
    ),
)
