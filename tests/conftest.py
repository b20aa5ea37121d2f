"""Options of the suite."""

import pytest
from hypothesis import settings

settings.register_profile("shared machine", deadline=None)  # how long an example takes depends on who else is at work
settings.load_profile("shared machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what scenarios gave as what they should give")
    parser.addoption("--raft-seeds", type=int, default=40, help="how many random histories of Raft to run")
    conformance = parser.getgroup("conformance", "which server tests/conformance tests")
    conformance.addoption("--address", help="of a server that runs already, host:port; without it, one is started")
    conformance.addoption("--nats", help="the NATS server of --address (nats://HOST:4222)")
    conformance.addoption("--has", action="append", default=[], help="a setting of that server, as key=value")
    conformance.addoption("--brokers", type=int, default=1, help="how many brokers to start")


@pytest.fixture
def raft_seeds(request: pytest.FixtureRequest) -> int:
    seeds: int = request.config.getoption("--raft-seeds")
    return seeds
