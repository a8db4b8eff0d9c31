"""PyTorch's operator database on tensors of more elements than kernels can number, with gradients: right as on the CPU,
or refused.

The limit is lowered to thirty elements, so that about half of PyTorch's samples are beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conformance.expected_failures import reason
from tests.conformance.target import DEVICE
from tests.conformance.trials import Effort, Trial, opinfos, run, trials
from tests.device.engine.few_numbers import few_numbers

pytestmark = pytest.mark.skipif(DEVICE.type != "webgpu", reason="about the webgpu device")
LIMIT = 30
SAMPLES = 4
QUICK = 12
"""One operator of so many runs without ``--full``."""
TRIALS = [
    one for kind in ("forward", "backward") for one in trials(opinfos(), (kind,), ("float32",)) if reason(one) is None
]


@pytest.fixture(scope="module", autouse=True)
def thirty() -> Iterator[None]:
    with few_numbers(LIMIT):
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = TRIALS if metafunc.config.getoption("full") else TRIALS[::QUICK]
    metafunc.parametrize("trial", chosen, ids=lambda trial: f"{trial.kind}-{trial}")


def test_an_operator_is_right_or_refused(trial: Trial) -> None:
    result = run(trial, Effort(SAMPLES, repeated=1))
    assert result.samples
    assert not [failure for failure in result.failures if "AddressError" not in failure]
