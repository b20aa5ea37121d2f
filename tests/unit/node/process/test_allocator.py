"""When garbage is collected, and objects are frozen: not while a broker starts, and never garbage afterwards."""

import pytest

from bascule.node.process import allocator


class Collector:
    """What is asked of it, in this order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.enabled = True

    def isenabled(self) -> bool:
        return self.enabled

    def enable(self) -> None:
        self.enabled = True

    def disable(self) -> None:
        self.enabled = False

    def collect(self) -> None:
        self.asked.append("collect")

    def freeze(self) -> None:
        self.asked.append("freeze")


def test_nothing_is_collected_while_a_broker_starts_and_nothing_unreachable_is_frozen_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collector = Collector()
    monkeypatch.setattr(allocator, "gc", collector)
    allocator.collect_later()
    allocator.freeze_grown()
    assert (collector.enabled, collector.asked) == (False, [])
    allocator.freeze_objects()
    assert (collector.enabled, collector.asked) == (True, ["freeze"])
    allocator.freeze_grown()
    assert collector.asked == ["freeze", "collect", "freeze"]
