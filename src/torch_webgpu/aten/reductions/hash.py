"""The hash of tensors: the exclusive or of their elements' bits, each as a float64 or an int64."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.operations import record_reduction
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.torch_abi import aten, infer
from torch_webgpu.dtypes import BY_TORCH

from .reduce import combined, reduced_dims

MANTISSA, LEAST = 23, -149
"""Bits of float32's mantissa; the exponent of its smallest number."""
WIDER = 52 - MANTISSA
"""Bits that float64's mantissa has beyond it."""
BIAS, WIDE_BIAS, LARGEST, WIDE_LARGEST = 127, 1023, 255, 2047
"""Of the exponents of float32 and float64, and the largest, which are those of infinity and NaN."""


def hash_tensor(self: torch.Tensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> torch.Tensor:
    if self.dtype not in BY_TORCH:
        reason = f"no kernel computes with {name_of(self.dtype)}"
        return run_on_cpu(aten.hash_tensor.default, (self, list(dim)), {"keepdim": keepdim, "mode": mode}, reason)
    if self.is_complex():
        raise NotImplementedError(f"\"xor_sum_cpu\" not implemented for '{name_of(self.dtype)}'")
    ((shape, _, _),) = infer(aten.hash_tensor.default, self, list(dim), keepdim=keepdim, mode=mode)
    if mode != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {mode}")
    out = torch.empty(shape, dtype=torch.int64, device=self.device)
    dims = reduced_dims(dim, self.dim())
    record_reduction("aten::hash_tensor", [wide_bits(self)], [out], self.shape, dims, combined, ("xor", torch.int64))
    return out.view(torch.uint64)


def wide_bits(x: torch.Tensor) -> torch.Tensor:
    """The elements as int64; of floats the bits of the equal float64, found by integers: no adapter needs float64."""
    if not x.is_floating_point():
        return x.long()
    if x.dtype == torch.float64:
        return x.view(torch.int64)
    # In halves of 32 bits: where 64-bit integers are emulated, SwiftShader took over a minute to compile it otherwise.
    bits = x.float().view(torch.int32)
    exponent, mantissa = (bits >> MANTISSA) & LARGEST, bits & ((1 << MANTISSA) - 1)
    # A subnormal number is its mantissa, an integer that float32 normalises, times the smallest number.
    normal = mantissa.float().view(torch.int32)
    is_small = (exponent == 0) & (mantissa != 0)
    exponent = torch.where(is_small, (normal >> MANTISSA) + LEAST, exponent) + (WIDE_BIAS - BIAS)
    exponent = torch.where((bits & 0x7FFFFFFF) == 0, 0, exponent)
    exponent = torch.where(exponent == LARGEST + WIDE_BIAS - BIAS, WIDE_LARGEST, exponent)
    mantissa = torch.where(is_small, normal & ((1 << MANTISSA) - 1), mantissa)
    high = bits & -(1 << 31) | exponent << 20 | mantissa >> 32 - WIDER
    low = (mantissa << WIDER).long() & 0xFFFFFFFF
    return high.long() << 32 | low


def register() -> None:
    register_operator(aten.hash_tensor.default, hash_tensor)
