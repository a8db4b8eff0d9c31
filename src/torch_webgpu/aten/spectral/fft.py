"""Fourier transforms: complex to complex, real to complex and back, one dimension after the other.

Every function of ``torch.fft``, ``stft`` and ``istft`` is made of these three operators, and so are their derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod, sqrt
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.torch_abi import aten, infer, outputs_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.fft.fft import lower_fft
from torch_webgpu.kernels.fft.planner import MAX_BLUESTEIN, is_direct
from torch_webgpu.kernels.fft.transform import Form, Transform
from torch_webgpu.layout import contiguous_strides

DOUBLES = (torch.float64, torch.complex128)
DTYPES = (torch.float32, torch.complex64, *DOUBLES)


def fft_c2c(self: torch.Tensor, dim: Sequence[int], normalization: int, forward: bool) -> torch.Tensor:
    if not dim:
        return outputs_of(aten._fft_c2c.default, self, dim, normalization, forward)[0].copy_(self)
    ((shape, _, dtype),) = infer(aten._fft_c2c.default, self, dim, normalization, forward)
    dims = by_stride(wrapped(dim, self), self.stride())
    out = engine().empty(shape, dtype, self.get_device(), strides_of(shape, self.stride(), dims))
    if out.numel():
        transform(self, out, dims, not forward, scale_of(normalization, shape, dims))
    return out


def fft_r2c(self: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> torch.Tensor:
    ((shape, _, dtype),) = infer(aten._fft_r2c.default, self, dim, normalization, onesided)
    *others, last = wrapped(dim, self)
    others = by_stride(others, self.stride())
    out = engine().empty(shape, dtype, self.get_device(), real_strides_of(shape, self.stride(), [*others, last]))
    if out.numel():
        scale = scale_of(normalization, self.shape, [*others, last])
        first = torch.empty_like(out) if others else out
        along(self, first, last, 1.0 if others else scale, source="real", sink="half" if onesided else "complex")
        if others:
            transform(first, out, others, False, scale)
    return out


def fft_c2r(self: torch.Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> torch.Tensor:
    """The spectrum's imaginary parts that a real signal cannot have count as zero."""
    ((shape, _, dtype),) = infer(aten._fft_c2r.default, self, dim, normalization, last_dim_size)
    *others, last = wrapped(dim, self)
    if self.shape[last] < last_dim_size // 2 + 1:
        raise RuntimeError(
            f"_fft_c2r: dimension {last} has {self.shape[last]} elements, and a signal of {last_dim_size} has "
            f"{last_dim_size // 2 + 1}"
        )
    others = by_stride(others, self.stride())
    strides = strides_of(self.shape, self.stride(), others) if others else self.stride()
    out = engine().empty(shape, dtype, self.get_device(), real_strides_of(shape, strides, [last]))
    if out.numel():
        spectrum = self
        if others:
            spectrum = engine().empty(self.shape, self.dtype, self.get_device(), strides)
            transform(self, spectrum, others, True, 1.0)
        scale = scale_of(normalization, shape, [*others, last])
        along(spectrum, out, last, scale, inverse=True, source="half", sink="real")
    return out


# The layouts of results are MKL's: PyTorch's meta kernels tell cuFFT's to whoever asks with tensors on "meta".


def by_stride(dims: Sequence[int], strides: Sequence[int]) -> list[int]:
    return sorted(dims, key=lambda d: -strides[d])


def strides_of(shape: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """Of the result of a transform along ``dims`` of a tensor that has ``strides``: these dimensions are innermost."""
    batch = [d for d in range(len(shape)) if d not in dims]
    order = [*by_stride(batch, strides), *dims]
    dense = contiguous_strides([shape[d] for d in order])
    return tuple([dense[order.index(d)] for d in range(len(shape))])


def real_strides_of(shape: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """The same for a transform of real numbers, or to them."""
    return strides_of(shape, strides, dims) if torch.backends.mkl.is_available() else contiguous_strides(shape)


def wrapped(dim: Sequence[int], tensor: torch.Tensor) -> list[int]:
    return [d % tensor.dim() for d in dim]


def scale_of(normalization: int, shape: Sequence[int], dim: Sequence[int]) -> float:
    """What results are multiplied by, for PyTorch's normalizations: none, by the root of the size, by the size."""
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
    is_double = self.dtype in DOUBLES
    made = Transform(n, dim, self.dim(), inverse, source, sink, scale, "f64" if is_double else "f32")
    tensors = [torch.view_as_real(t) if is_double and t.is_complex() else t for t in (self, out)]
    record_kernel("fft", tensors[:1], tensors[1:], Extern(lower_fft, (made,)))


def natively(target: OpOverload, kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``kernel``, or the CPU for a dtype or a length that it does not take."""

    @wraps(kernel)
    def chosen(self: torch.Tensor, dim: Sequence[int], normalization: int, last: Any) -> torch.Tensor:
        sizes = [self.shape[d] for d in dim]
        if target is aten._fft_c2r.default:
            sizes[-1] = last
        too_long = [n for n in sizes if n > MAX_BLUESTEIN and not is_direct(n)]
        if self.dtype not in DTYPES:
            check_as_cpu(target, self, dim, normalization, last)
        elif not too_long:
            return kernel(self, dim, normalization, last)
        what = f"of length {too_long[0]}" if too_long else f"in {name_of(self.dtype)}"
        return run_on_cpu(target, (self, dim, normalization, last), {}, f"no kernel computes Fourier transforms {what}")

    return chosen


def register() -> None:
    for target, kernel in (
        (aten._fft_c2c.default, fft_c2c),
        (aten._fft_r2c.default, fft_r2c),
        (aten._fft_c2r.default, fft_c2r),
    ):
        register_operator(target, natively(target, kernel))
