"""Bounds that the simulator draws smaller: every copy of a name is set, and all are as before when a run is over."""

import pytest

import bascule.sim.run
from bascule.core.replication import feed
from bascule.sim.knobs import KNOBS, turned

assert bascule.sim.run, "every module of a broker is loaded"


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_is_a_constant_of_its_owner(name: str) -> None:
    """If this fails after a change of the code, bring the list in `sim/knobs.py` up to date."""
    assert hasattr(KNOBS[name].owner, KNOBS[name].name)


def test_a_module_that_took_a_copy_of_a_limit_gets_the_value_too() -> None:
    assert feed in KNOBS["limits.FEED_PARTITION_BYTES"].places


@pytest.mark.parametrize("name", KNOBS)
def test_no_value_is_the_usual_one(name: str) -> None:
    assert KNOBS[name].usual not in KNOBS[name].values


def test_knobs_are_put_back_even_if_the_run_fails() -> None:
    settings = tuple((name, knob.values[0]) for name, knob in KNOBS.items())
    before = {name: knob.usual for name, knob in KNOBS.items()}

    def fail() -> None:
        with turned(settings):
            assert all(getattr(owner, knob.name) == knob.values[0] for knob in KNOBS.values() for owner in knob.places)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert {name: knob.usual for name, knob in KNOBS.items()} == before
