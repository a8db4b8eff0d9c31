"""``TORCH_WEBGPU_DEBUG=where``: an error that a kernel flags is raised by the line that recorded it.

Kernels run long after the call that recorded them, and what one of them flags (an index out of range) comes with the
next read. With this flag every operation whose kernels may flag something is waited for, as CUDA_LAUNCH_BLOCKING does
for all: the traceback then ends where the index was used. Others are batched and fused as ever.
"""

from __future__ import annotations

from torch_webgpu.config import config
from torch_webgpu.ir.operation import Extern, Operation
from torch_webgpu.wgsl.launch import ERRORS

from .flush_reason import WHERE
from .record import Engine
from .sync import synchronize

_append = Engine.append


def append_and_wait(
    eng: Engine, device: int, op: Operation, addresses: tuple[int, ...], params: tuple[int | float, ...]
) -> None:
    """``Engine.append``, and the errors of what was recorded. A capture runs nothing, and has none to wait for."""
    _append(eng, device, op, addresses, params)
    if isinstance(op.body, Extern) and eng.capture is None:
        eng.flush(WHERE, device)
        if may_flag(op):
            synchronize(device)


def may_flag(op: Operation) -> bool:
    """Whether a kernel of an operation that has run is given the device's error flags."""
    return any(ERRORS in launch.bindings for lowered in op.lowered.values() for launch in lowered.launches)


def register() -> None:
    """Makes engines wait, if the flag is set."""
    if "where" in config().debug:
        Engine.append = append_and_wait  # type: ignore[method-assign, assignment]
