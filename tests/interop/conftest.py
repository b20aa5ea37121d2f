"""One broker for all tests that need nothing special of theirs, and the foreign clients that talk to it."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bascule.testing.golang import GoMissingError, build_go
from bascule.testing.jsonlines import JsonProgram
from bascule.testing.processes import BrokerProcess, start_broker

HERE = Path(__file__).parent
PROGRAMS = HERE.parent.parent / ".bin"

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("interop")) as running:
        yield running


@pytest.fixture
def stream() -> str:
    """A name no other test uses."""
    return f"interop-{next(_numbers)}"


@pytest.fixture(scope="session")
def go_program() -> Path:
    try:
        return build_go(HERE / "go", PROGRAMS / "interop")
    except GoMissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def go_against(go_program: Path) -> Callable[[BrokerProcess], JsonProgram]:
    """The Go client, as a user of this broker."""

    def against(broker: BrokerProcess) -> JsonProgram:
        return JsonProgram([str(go_program)], address=broker.address, nats=broker.nats_url)

    return against


@pytest.fixture
def go(go_against: Callable[[BrokerProcess], JsonProgram], broker: BrokerProcess) -> JsonProgram:
    return go_against(broker)
