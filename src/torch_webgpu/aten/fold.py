"""``im2col`` and ``col2im``, which ``nn.Unfold`` and ``nn.Fold`` are; each is the other's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_webgpu.engine.record import engine
from torch_webgpu.ir.graph import Extern
from torch_webgpu.kernels import fold
from torch_webgpu.kernels.fold import Patches

from .torch_abi import aten, outputs_of
from .variants import register_functional

Sizes = Sequence[int]


def patches(kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Patches:
    def pair(values: Sizes) -> tuple[int, int]:
        return values[0], values[-1]

    return Patches(pair(kernel_size), pair(dilation), pair(padding), pair(stride))


def record(
    name: str, source: torch.Tensor, out: torch.Tensor, body: Callable[[Patches], Extern], p: Patches
) -> torch.Tensor:
    if not out.numel():
        return out
    if not source.numel():
        return out.zero_()
    engine().record(name, [source], [out], lambda specs: body(p), static=p)
    return out


def im2col(self: torch.Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> torch.Tensor:
    (out,) = outputs_of(aten.im2col.default, self, kernel_size, dilation, padding, stride)
    return record("aten.im2col", self, out, fold.unfold, patches(kernel_size, dilation, padding, stride))


def col2im(
    self: torch.Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> torch.Tensor:
    (out,) = outputs_of(aten.col2im.default, self, output_size, kernel_size, dilation, padding, stride)
    return record("aten.col2im", self, out, fold.fold, patches(kernel_size, dilation, padding, stride))


def register() -> None:
    register_functional(aten.im2col.default, im2col)
    register_functional(aten.col2im.default, col2im)
