"""Devices on the double, closed at the end of each test: what was made and not released fails it there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.runtime import programs
from tests.webgpu_double import CheckedWebGPU, Faults

from torch_webgpu.runtime.device import Device


@pytest.fixture
def webgpu() -> CheckedWebGPU:
    return programs.webgpu()


@pytest.fixture
def faults(webgpu: CheckedWebGPU) -> Faults:
    """Of the device under test."""
    return webgpu.faults


@pytest.fixture
def device(webgpu: CheckedWebGPU) -> Iterator[Device]:
    made = programs.device(webgpu)
    yield made
    made.close()
    assert all(native.closed for native in webgpu.devices)
