"""Tensors that are host memory, and marks of when the device has done with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import torch

from torch_webgpu.errors import DeviceLostError, WebGPUError
from torch_webgpu.runtime.imported_memory import FEATURE

from .flush_reason import EXCHANGED
from .interrupt import Uninterrupted
from .record import engine
from .sync import pause


def takes_host_memory(index: int) -> bool:
    """Whether a device can have tensors of :func:`host_memory_tensor`."""
    return FEATURE in engine().device(index).features


def host_memory_tensor(index: int, memory: memoryview) -> torch.Tensor:
    """The bytes of host memory, whole pages, as an uint8 tensor of a device. WebGPUError where it is refused.

    Operations read and write them when they run: see :func:`submit`.
    """
    eng = engine()
    with Uninterrupted(), eng.lock:
        imported = eng.device(index).opened.imported
        imported.retire()
        buffer = imported.buffer(memory)
        tensor, allocation = eng.make_with(eng.template((memory.nbytes,), torch.uint8, index))
        allocation.buffer = buffer
    return tensor


def release_host_memory(index: int) -> None:
    """Lets the host memory of tensors go that have died."""
    eng = engine()
    with Uninterrupted(), eng.lock:
        device = eng.device(index)
        with suppress(DeviceLostError):  # a device that was lost has let it go
            eng.flush(EXCHANGED, index)
        eng.reclaim()
        with suppress(WebGPUError):
            device.opened.release_imported()


def submit(index: int) -> Callable[[], bool]:
    """Submits what the calling thread recorded for a device. Tells, without waiting, whether it is done.

    Raises what went wrong so far.
    """
    eng = engine()
    with Uninterrupted(), eng.lock:
        device = eng.device(index)
        eng.flush_lane(eng.lane(index), EXCHANGED)
        eng.raise_pending()
        reached, opened = device.mark(), device.opened

    def is_done() -> bool:
        with Uninterrupted(), eng.lock:
            done = reached()
            device.raise_errors(opened)
            return done

    return is_done


def wait_until(is_done: Callable[[], bool], look: Callable[[], None]) -> None:
    """Waits by asking. ``look`` is called now and then, and raises where there is no use in waiting."""
    begin_s = time.perf_counter()
    while not is_done():
        look()
        pause(begin_s)
