"""How long a broker takes messages without contact to a controller."""

from bascule.node.membership.lease import LEASE_S, NS, Lease
from bascule.testing.logs import ManualClock
from bascule.testing.loop import run


async def never(timeout_s: float) -> None:
    raise AssertionError("a broker that is alone asks nobody")


def test_a_broker_that_was_alone_has_a_lease_when_others_come() -> None:
    """It knows all that was decided until then; else it would refuse messages until it has asked for the first time."""
    clock = ManualClock()
    alone = True
    lease = Lease(clock, lambda: alone)
    clock.now_ns += int(60 * NS)
    assert run(lease.ask(never))
    alone = False
    clock.now_ns += int((LEASE_S - 1) * NS)
    assert not lease.over()
    clock.now_ns += int(1 * NS)
    assert lease.over()
