"""The counters and gauges of one broker, in one registry: `read` returns all of them.

A new metric is one registration, by the part that knows the number: a counter is added to where something happens, a
gauge is a function that is called when somebody reads. Names follow Prometheus: `bascule_`, then what is counted, and
`_total` at the end of a counter. A metric may have one label; the number of its values is bounded, and what comes
beyond the bound is `other`: of a counter the sum, of a gauge what its registration says.

Several parts may register the same counter, each partition for example: they share it.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from bascule.limits import METRIC_LABEL_VALUES

OTHER = "other"


class Counter:
    """Made by `Metrics.counter`."""

    def __init__(self, help: str, label: str) -> None:
        self.help = help
        self.label = label
        self.values: dict[str, int] = {}
        """By the value of its label; by "" if it has none."""

    def add(self, value: str = "", number: int = 1) -> None:
        assert bool(value) == bool(self.label), f"{value!r} is no value of the label {self.label!r}"
        if value not in self.values and len(self.values) >= METRIC_LABEL_VALUES:
            value = OTHER
        self.values[value] = self.values.get(value, 0) + number


ReadGauge = Callable[[], float | Mapping[str, float]]
"""The value of a gauge now; with a label: by its values."""
Combine = Callable[[Iterable[float]], float]
"""One value for several."""


class _Gauge(NamedTuple):
    help: str
    label: str
    read: ReadGauge
    combine: Combine


class Reading(NamedTuple):
    """One metric as it is now."""

    name: str
    kind: str
    help: str
    label: str
    values: Mapping[str, float]
    """By the value of its label; by "" if it has none."""


class Metrics:
    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, _Gauge] = {}

    def counter(self, name: str, help: str, label: str = "") -> Counter:
        assert name.startswith("bascule_"), f"{name}: the name of a metric begins with bascule_"
        assert name.endswith("_total"), f"{name}: the name of a counter ends with _total"
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = Counter(help, label)
        assert (counter.help, counter.label) == (help, label), f"{name} is registered as something else"
        return counter

    def gauge(self, name: str, help: str, read: ReadGauge, label: str = "", combine: Combine = sum) -> None:
        """`combine` makes one value of all those beyond the bound of a label: the sum of ages is no age."""
        assert name.startswith("bascule_"), f"{name}: the name of a metric begins with bascule_"
        assert name not in self._gauges, f"{name} is registered already"
        self._gauges[name] = _Gauge(help, label, read, combine)

    def read(self) -> list[Reading]:
        """All of them, by name."""
        readings = [
            Reading(name, "counter", counter.help, counter.label, dict(counter.values))
            for name, counter in self._counters.items()
        ]
        for name, gauge in self._gauges.items():
            value = gauge.read()
            values = _bounded(value, gauge.combine) if isinstance(value, Mapping) else {"": value}
            readings.append(Reading(name, "gauge", gauge.help, gauge.label, values))
        return sorted(readings)


def _bounded(values: Mapping[str, float], combine: Combine) -> dict[str, float]:
    bounded = dict(islice(values.items(), METRIC_LABEL_VALUES))
    beyond = [value for name, value in values.items() if name not in bounded]
    if beyond:
        bounded[OTHER] = combine([*beyond, bounded[OTHER]] if OTHER in bounded else beyond)
    return bounded
