"""``im2col`` and ``col2im``, which ``nn.Unfold`` and ``nn.Fold`` are; each is the other's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, infer
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.spatial.im2col import PatchGeometry, fold, unfold

Sizes = Sequence[int]


def patches(kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> PatchGeometry:
    def pair(values: Sizes) -> tuple[int, int]:
        return values[0], values[-1]

    return PatchGeometry(pair(kernel_size), pair(dilation), pair(padding), pair(stride))


def recorded(
    overload: OpOverload, args: Sequence[Any], body: Callable[[PatchGeometry], Extern], geometry: Sequence[Sizes]
) -> torch.Tensor:
    """What ``overload(*args)`` returns, computed from the first argument."""
    outputs = infer(overload, *args)
    (out,) = kernel_outputs(overload._schema.name, args[:1], outputs, body(patches(*geometry)))
    return out


def im2col(self: torch.Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> torch.Tensor:
    geometry = (kernel_size, dilation, padding, stride)
    return recorded(aten.im2col.default, (self, *geometry), unfold, geometry)


def col2im(
    self: torch.Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> torch.Tensor:
    geometry = (kernel_size, dilation, padding, stride)
    return recorded(aten.col2im.default, (self, output_size, *geometry), fold, geometry)


def register() -> None:
    register_operator(aten.im2col.default, im2col)
    register_operator(aten.col2im.default, col2im)
