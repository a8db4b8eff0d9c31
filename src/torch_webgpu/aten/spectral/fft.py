"""Fourier transforms: complex to complex, real to complex and back, one dimension after the other.

Every function of ``torch.fft``, ``stft`` and ``istft`` comes down to these three operators, and so do their derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.ir.ops import MissingKindError
from torch_webgpu.kernels.fft.fft import Form, Transform, lower_fft
from torch_webgpu.kernels.fft.planner import MAX_BLUESTEIN, is_direct
from torch_webgpu.layout import contiguous_strides

DOUBLES = (torch.float64, torch.complex128)


def fft_c2c(self: torch.Tensor, dim: Sequence[int], normalization: int, forward: bool) -> torch.Tensor:
    (out,) = outputs_of(aten._fft_c2c.default, self, dim, normalization, forward)
    if not dim:
        return out.copy_(self)
    if out.numel():
        scale = scale_of(normalization, self.shape, dim)
        transform(self, out, wrapped(dim, self), not forward, scale)
    return out


def fft_r2c(self: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> torch.Tensor:
    (out,) = outputs_of(aten._fft_r2c.default, self, dim, normalization, onesided)
    if out.numel():
        *others, last = wrapped(dim, self)
        scale = scale_of(normalization, self.shape, dim)
        first = torch.empty_like(out) if others else out
        along(self, first, last, 1.0 if others else scale, sink="half" if onesided else "complex", source="real")
        if others:
            transform(first, out, others, False, scale)
    return out


def fft_c2r(self: torch.Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> torch.Tensor:
    """The spectrum's imaginary parts that a real signal cannot have count as zero."""
    (out,) = outputs_of(aten._fft_c2r.default, self, dim, normalization, last_dim_size)
    *others, last = wrapped(dim, self)
    if self.shape[last] < last_dim_size // 2 + 1:
        raise RuntimeError(
            f"_fft_c2r: dimension {last} has {self.shape[last]} elements, and a signal of {last_dim_size} has "
            f"{last_dim_size // 2 + 1}"
        )
    if out.numel():
        scale = scale_of(normalization, out.shape, dim)
        spectrum = self
        if others:
            spectrum = engine().empty(self.shape, self.dtype, self.get_device(), contiguous_strides(self.shape))
            transform(self, spectrum, others, True, 1.0)
        along(spectrum, out, last, scale, inverse=True, source="half", sink="real")
    return out


def wrapped(dim: Sequence[int], tensor: torch.Tensor) -> list[int]:
    return [d % tensor.dim() for d in dim]


def scale_of(normalization: int, shape: Sequence[int], dim: Sequence[int]) -> float:
    """What results are multiplied by, for PyTorch's three normalizations: none, by the root of the size, by the size."""
    size = prod([shape[d] for d in dim])
    return (1.0, 1 / sqrt(size), 1 / size)[normalization]


def transform(self: torch.Tensor, out: torch.Tensor, dims: Sequence[int], inverse: bool, scale: float) -> None:
    """Records a complex transform over ``dims`` of ``self`` into ``out``, of the same shape."""
    for k, dim in enumerate(reversed(dims)):
        is_last = k == len(dims) - 1
        result = out if is_last else torch.empty_like(out)
        along(self, result, dim, scale if is_last else 1.0, inverse=inverse)
        self = result


def along(
    self: torch.Tensor,
    out: torch.Tensor,
    dim: int,
    scale: float,
    *,
    inverse: bool = False,
    source: Form = "complex",
    sink: Form = "complex",
) -> None:
    """Records a transform along one dimension."""
    n = (out if source == "half" else self).shape[dim]
    if not is_direct(n) and n > MAX_BLUESTEIN:
        raise MissingKindError("Fourier transforms of this length", "f32")
    is_double = self.dtype in DOUBLES
    if is_double and not engine().device(self.get_device()).target.float64:
        raise MissingKindError("Fourier transforms", "f64")
    made = Transform(n, dim, self.dim(), inverse, source, sink, scale, "f64" if is_double else "f32")
    tensors = [torch.view_as_real(t) if is_double and t.is_complex() else t for t in (self, out)]
    record_kernel("fft", tensors[:1], tensors[1:], Extern(lower_fft, (made,)))


def register() -> None:
    register_operator(aten._fft_c2c.default, fft_c2c)
    register_operator(aten._fft_r2c.default, fft_r2c)
    register_operator(aten._fft_c2r.default, fft_c2r)
