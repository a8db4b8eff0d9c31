"""Results that stand only if something holds of values, which no host has read: else an error is flagged."""

from __future__ import annotations

from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import PointKernel, arithmetic, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Binding
from torch_webgpu.wgsl.launch import ERRORS, Lowered, Source


def lower_checked(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """Arguments: a dense tensor (n), a code (1), int32, and the copy. ``engine/sync.py`` has the words, by operator."""
    x, _, out = op.args
    kernel = PointKernel("checked", target, ("place",))
    kernel.add(arithmetic(x.dtype))
    kernel.param("op", op.id)
    for k, name in enumerate(("x", "code")):
        kernel.binding(Binding(name, op.args[k].dtype), k)
        kernel.param(f"{name}_offset", Source("offset", k))
    kernel.binding(ERROR_FLAGS, ERRORS)
    kernel.output("out", 2, out)
    return Lowered((kernel.launch(wgsl_source("indexing/checked")),))
