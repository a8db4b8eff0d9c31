"""An operation whose kernel does not compile."""

from __future__ import annotations

import torch

from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern, Operation
from torch_webgpu.wgsl.kernel import Binding, Kernel
from torch_webgpu.wgsl.launch import Launch, Lowered

TEXT = "@compute @workgroup_size(256) fn main() { let x: nothing = 1; }"
"""Read as WGSL it has all its parts; what it says means nothing."""


def lower_broken(op: Operation, alias: tuple[int, ...], target: object) -> Lowered:
    kernel = Kernel("broken", TEXT, (Binding("y", "f32", "read_write"),))
    return Lowered((Launch(kernel, (1,), (), (1, 1, 1)),))


def record_broken(x: torch.Tensor) -> torch.Tensor:
    """What the operation would make of ``x``."""
    out = engine().empty(x.shape, x.dtype, x.device.index)
    engine().record("test.broken", [x], [out], Extern(lower_broken))
    return out
