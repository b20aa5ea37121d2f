"""Faults are known by being defined in a file of their folder; nothing lists them, and their order never changes."""

import subprocess
import sys
from pathlib import Path

import pytest

from bascule.sim import faults
from bascule.sim.faults import kinds
from bascule.sim.faults.every import KINDS, families
from bascule.sim.faults.kinds import Family, fault

FILES = sorted(path.stem for path in Path(faults.__path__[0]).glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("first", FILES)
def test_the_order_of_faults_does_not_depend_on_who_is_imported_first(first: str) -> None:
    """A seed draws by that order."""
    program = f"import bascule.sim.faults.{first}; from bascule.sim.faults.every import KINDS; print(*KINDS)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == list(KINDS)


def test_every_file_of_faults_is_imported_and_they_stand_in_the_order_of_the_files() -> None:
    modules = list(dict.fromkeys(kind.work.__module__.rpartition(".")[2] for kind in KINDS.values()))
    defining = [name for name in FILES if "@fault(" in Path(faults.__path__[0], f"{name}.py").read_text()]
    assert modules == [name for name in defining if name != "kinds"]


def test_a_broker_alone_is_spared_what_takes_several() -> None:
    alone, three = families(1), families(3)
    assert [family for family in three if family in alone] == alone
    assert {family.name for family in three} - {family.name for family in alone} >= {"members", "wipe"}


def test_two_faults_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "REGISTERED", dict(KINDS))

    async def kill(faults: object, host: object) -> None: ...

    with pytest.raises(AssertionError, match="kill"):
        fault(Family("crash", likely=0.9))(kill)
