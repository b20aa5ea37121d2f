"""What unit tests of several files ask for."""

from types import ModuleType

import pytest

from tests.harness.kernel_inputs import twin


@pytest.fixture(params=["pure", "compiled"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    return twin(request.param)
