"""Options and fixtures of all tests.

``TORCH_WEBGPU_TEST_DEVICE`` names the device under test (``webgpu``); any device PyTorch has will do, ``cpu`` tries
the tests themselves. ``TORCH_WEBGPU_CONFORMANCE`` is ``quick`` (what fits into every run) or ``full``.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import settings as examples
from tests.conformance.report import ConformanceReport
from tests.slow import leave_combinations, skip_slow

# Of this process, and of those that tests start.
os.environ.setdefault("TORCH_WEBGPU_DEBUG", "verify")
os.environ.setdefault("TORCH_WEBGPU_CACHE_DIR", "off")

# No result depends on how busy the machine is.
examples.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
examples.load_profile("any speed")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torch-webgpu")
    group.addoption(
        "--samples", type=int, metavar="N", help="samples of each operator and dtype in the conformance tests"
    )
    group.addoption("--conformance-json", metavar="PATH", help="write the conformance results there")
    group.addoption("--full", action="store_true", help="run the long versions: 10,000 steps, every conformance sample")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "float64: needs an adapter with doubles (see tests/float64.py)")
    config.pluginmanager.register(ConformanceReport(config.getoption("conformance_json")), "conformance-report")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_combinations(config, items)
    skip_slow(config, items)


def pytest_collection_finish() -> None:
    """Modules and tests live until the end: the garbage collector need not look at them, a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device under test."""
    from tests.conformance.target import DEVICE

    return DEVICE


@pytest.fixture(scope="module")
def null() -> Any:
    """A device of Dawn's that computes nothing, but compiles."""
    dawn = pytest.importorskip("torch_webgpu.runtime.dawn", reason="wgpudawn is not installed")
    return dawn.IMPLEMENTATION.null().open()
