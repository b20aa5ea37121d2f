"""Bounds that the simulator draws smaller: every copy of a name is set, and all are as before when a run is over."""

import pytest

import bascule.sim.run
from bascule import limits
from bascule.sim.knobs import KNOBS, holders, turned

assert bascule.sim.run, "every module of a broker is loaded"


@pytest.mark.parametrize("name", KNOBS)
def test_every_module_that_has_a_copy_of_the_name_is_known(name: str) -> None:
    """If this fails after a change of the code, bring the list in `sim/knobs.py` up to date."""
    knob = KNOBS[name]
    assert all(hasattr(owner, knob.name) for owner in knob.owners)
    if limits in knob.owners:
        assert set(holders(knob.name)) | {limits} <= set(knob.owners)


@pytest.mark.parametrize("name", KNOBS)
def test_no_value_is_the_usual_one(name: str) -> None:
    assert KNOBS[name].usual not in KNOBS[name].values


def test_knobs_are_put_back_even_if_the_run_fails() -> None:
    settings = tuple((name, knob.values[0]) for name, knob in KNOBS.items())
    before = {name: knob.usual for name, knob in KNOBS.items()}

    def fail() -> None:
        with turned(settings):
            assert all(getattr(owner, knob.name) == knob.values[0] for knob in KNOBS.values() for owner in knob.owners)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert {name: knob.usual for name, knob in KNOBS.items()} == before
