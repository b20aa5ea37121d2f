"""Bounds that the simulator draws smaller: every copy of a name is set, all code reads what is set, and all are as
before when a run is over."""

import ast
import asyncio
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import bascule.sim.run
from bascule import limits
from bascule.core.metadata.operations import Operations
from bascule.core.replication import feed
from bascule.node.partition import repair
from bascule.node.process import broker
from bascule.sim.knobs import KNOBS, Knob, turned
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from tests.harness.broker import Node
from tests.harness.paths import ROOT

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


# --- a value that is drawn has an effect --------------------------------------------------------------------------

SOURCE = ROOT / "src" / "bascule"
MODULES = {
    ".".join(("bascule", *path.relative_to(SOURCE).with_suffix("").parts)): path.read_text()
    for path in sorted(SOURCE.rglob("*.py"))
    if path.name != "__init__.py" and path.relative_to(SOURCE).parts[0] not in ("sim", "testing")
}
DRAWN_BESIDE = {
    # A copy that is made once, and is a knob of its own.
    ("bascule.core.metadata.operations", "REMEMBERED_OPERATIONS"): Operations,
}


def unset(knob: Knob, name: str, tree: ast.Module) -> Iterator[str]:
    """Places in the module `name` that would have the usual value in a run that drew another one."""
    assert isinstance(knob.owner, ModuleType)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == knob.owner.__name__:
            for each in node.names:
                if each.name == knob.name and (each.asname or not is_set(knob, name)):
                    yield f"{name}:{node.lineno} imports a copy of {knob.name}"
    for node in at_import(tree):
        owner = knob.owner.__name__.rpartition(".")[2]
        if reads(node, knob.name, owner, name == knob.owner.__name__ or is_set(knob, name)):
            yield f"{name}:{node.lineno} reads {knob.name} when it is imported"


def is_set(knob: Knob, name: str) -> bool:
    return sys.modules.get(name) in knob.places


def at_import(tree: ast.Module) -> Iterator[ast.expr]:
    """What is computed when a module is imported: everything but the bodies of functions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [*node.args.defaults, *(each for each in node.args.kw_defaults if each), *node.decorator_list]
        elif isinstance(node, ast.Lambda):
            waiting += node.args.defaults
        else:
            waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node


def reads(node: ast.expr, name: str, owner: str, has_it: bool) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name and ast.unparse(node.value).rpartition(".")[2] == owner
    return isinstance(node, ast.Name) and node.id == name and has_it


@pytest.mark.parametrize("name", [name for name, knob in KNOBS.items() if isinstance(knob.owner, ModuleType)])
def test_no_code_goes_on_with_the_usual_value(name: str) -> None:
    """If this fails, read the constant through its module (`repair.SCRUB_EVERY_S`), when it is needed."""
    knob = KNOBS[name]
    found = [
        each
        for path, text in MODULES.items()
        if knob.name in text and (path, knob.name) not in DRAWN_BESIDE
        for each in unset(knob, path, ast.parse(text))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("knob", "module", "text", "count"),
    [
        (Knob(repair, "SCRUB_EVERY_S", ()), broker, "from bascule.node.partition.repair import SCRUB_EVERY_S", 1),
        (Knob(repair, "SCRUB_EVERY_S", ()), broker, "x = repair.SCRUB_EVERY_S", 1),
        (Knob(repair, "SCRUB_EVERY_S", ()), repair, "def f(every_s=SCRUB_EVERY_S): pass", 1),
        (Knob(repair, "SCRUB_EVERY_S", ()), broker, "def f():\n    return repair.SCRUB_EVERY_S", 0),
        (Knob(limits, "FEED_SLICE", ()), feed, "from bascule.limits import FEED_SLICE as many", 1),
        (Knob(limits, "FEED_SLICE", ()), feed, "class Feed:\n    slice = 2 * limits.FEED_SLICE", 1),
        (Knob(limits, "FEED_SLICE", ()), feed, "from bascule.limits import FEED_SLICE", 0),
        (Knob(limits, "FEED_SLICE", ()), bascule.sim.run, "from bascule.limits import FEED_SLICE", 1),
    ],
)
def test_the_check_itself_catches_what_it_should(knob: Knob, module: ModuleType, text: str, count: int) -> None:
    assert len(list(unset(knob, module.__name__, ast.parse(text)))) == count


def test_all_records_are_read_as_often_as_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval of a broker's scrubs: a day, and 3 s where that was drawn."""

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        scrubs: list[float] = []

        async def scrub() -> None:
            scrubs.append(asyncio.get_running_loop().time())

        monkeypatch.setattr(node.broker.manager, "scrub", scrub)
        await asyncio.sleep(40)
        assert 10 <= len(scrubs) <= 14

    with turned((("repair.SCRUB_EVERY_S", 3.0),)):
        run(main())
