"""Options of the suite."""

import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from bascule.node.process.allocator import collect_later, freeze_objects

settings.register_profile("shared machine", deadline=None)  # how long an example takes depends on who else is at work
settings.load_profile("shared machine")

# A shell that starts the suite in the background makes it ignore SIGINT, and what the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what scenarios gave as what they should give")
    parser.addoption("--raft-seeds", type=int, default=40, help="how many random histories of Raft to run")
    conformance = parser.getgroup("conformance", "which server tests/conformance tests")
    conformance.addoption("--address", help="of a server that runs already, host:port; without it, one is started")
    conformance.addoption("--nats", help="the NATS server of --address (nats://HOST:4222)")
    conformance.addoption("--has", action="append", default=[], help="a setting of that server, as key=value")
    conformance.addoption("--brokers", type=int, default=1, help="how many brokers to start")


FIRST = ("spark", "faults", "simulation", "interop", "conformance", "properties", "docs")
"""The folders whose files take longest."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests are a million objects, which a garbage collection would look at for half a second: that of
    each client that is closed, and of each seed that is simulated."""
    collect_later()
    try:
        return (yield)
    finally:
        freeze_objects()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several workers none may be left with a long file when the others have ended: the short ones come last."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: FIRST.index(folder) if (folder := folder_of(item.nodeid)) in FIRST else len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker takes whole files, as `--dist loadfile` says; all of Spark is one, because to start it and to warm it up
    takes longer than a file of its tests. xdist itself would begin with the files of many tests, which are the short
    ones."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    files = LoadFileScheduling(config, log)
    files._split_scope = lambda nodeid: "spark" if folder_of(nodeid) == "spark" else nodeid.partition("::")[0]
    return files


def folder_of(nodeid: str) -> str:
    return nodeid.removeprefix("tests/").partition("/")[0]


@pytest.fixture
def raft_seeds(request: pytest.FixtureRequest) -> int:
    seeds: int = request.config.getoption("--raft-seeds")
    return seeds


LEVELS_AT_FIRST = {name: logging.getLogger(name).level for name in ("", "bascule", "bascule.node.membership.raft")}


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that runs inside a test, or in a fixture of many tests, sets levels and handlers of its own: no other
    test may inherit them."""
    loggers = {name: logging.getLogger(name) for name in LEVELS_AT_FIRST}
    before = {name: (one.propagate, one.handlers[:]) for name, one in loggers.items()}
    for name, one in loggers.items():
        one.setLevel(LEVELS_AT_FIRST[name])
    yield
    for name, one in loggers.items():
        one.setLevel(LEVELS_AT_FIRST[name])
        one.propagate, one.handlers[:] = before[name]
