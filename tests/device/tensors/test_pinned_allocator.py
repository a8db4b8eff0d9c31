"""Memory that C++ allocates as pinned: ``torch.empty(…, pin_memory=True)``."""

from __future__ import annotations

import sys

import pytest
import torch
from tests.device.processes import assert_ends_well

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the table of virtual functions is not known there")


@pytest.fixture(autouse=True)
def used() -> None:
    """The allocator is there from the device's first use on."""
    torch.ones(1, device="webgpu")


@pytest.mark.parametrize("make", [torch.empty, torch.zeros, torch.ones])
def test_factories_pin(make: object) -> None:
    t = make(3, 4, pin_memory=True)  # type: ignore[operator]
    assert t.is_pinned()
    assert t[1:].is_pinned()
    assert torch.empty_like(torch.ones(2), pin_memory=True).is_pinned()
    assert torch.tensor([1, 2], pin_memory=True).tolist() == [1, 2]


def test_other_memory_is_not_pinned() -> None:
    held = [torch.ones(n, pin_memory=True) for n in range(1, 50)]
    assert not any(torch.ones(n).is_pinned() for n in range(50))
    assert not torch.frombuffer(bytearray(64), dtype=torch.uint8).is_pinned()
    assert not held[0].clone().is_pinned()
    assert not torch.ones(2, device="webgpu").is_pinned()


def test_downloads_into_it_do_not_wait() -> None:
    x = torch.arange(1000, device="webgpu")
    host = torch.zeros(1000, dtype=torch.int64, pin_memory=True)
    host.copy_(x, non_blocking=True)
    event = torch.webgpu.Event()
    event.record()
    event.synchronize()
    assert torch.equal(host, torch.arange(1000))


def test_canary_python_backends_name_no_allocator() -> None:
    """Until the device is used, when the function is replaced that raises."""
    script = """
    with pytest.raises(NotImplementedError, match="getPinnedMemoryAllocator"):
        torch.empty(1, pin_memory=True)
    torch.ones(1, device="webgpu")
    assert torch.empty(1, pin_memory=True).is_pinned()
    """
    assert_ends_well(script)
