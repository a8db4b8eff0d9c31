"""Products of 8-bit floats with scales: their numbers multiplied in float32, as on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, overloads

from .float8 import NAMES as FLOAT8

TENSOR_WISE, ROW_WISE = 0, 1
"""Of ``torch.nn.functional.ScalingType``."""


def allowed(a: torch.Tensor, b: torch.Tensor, scales: Sequence[torch.Tensor], bias: torch.Tensor | None) -> bool:
    """Whether the CPU takes such arguments: one scale a matrix, or one for each row of ``a`` and column of ``b``."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        return False
    if not all(m.dtype in FLOAT8 and m.dtype != torch.float8_e8m0fnu for m in (a, b)):
        return False
    if any(s.dtype != torch.float32 for s in scales) or (bias is not None and bias.numel() != b.shape[1]):
        return False
    shapes = [s.shape for s in scales]
    return all(s.numel() == 1 for s in scales) or shapes == [(a.shape[0], 1), (1, b.shape[1])]


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: Sequence[torch.Tensor],
    bias: torch.Tensor | None,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """``a @ b`` times the scales, plus ``bias``, of shape (m, n)."""
    result = torch.mm(a.float(), b.float())
    for scale in scales:
        result = result * (scale if scale.dim() == 2 else scale.reshape(()))
    if bias is not None:
        result = result + bias
    return result.to(dtype or a.dtype)


def scaled_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """(m, k) times (k, n); ``scale_result`` is ignored, as on the CPU."""
    if not allowed(self, mat2, (scale_a, scale_b), bias):
        given = (self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)
        return run_on_cpu(aten._scaled_mm.default, given, {}, "it takes no such arguments")
    return product(self, mat2, (scale_a, scale_b), bias, out_dtype)


def scaled_mm_v2(
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: Sequence[torch.Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[torch.Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    *rest: Any,
) -> torch.Tensor:
    """What ``torch.nn.functional.scaled_mm`` calls: per-tensor and row-wise recipes."""
    scales = (*scale_a, *scale_b)
    per_tensor = list(recipe_a) == list(recipe_b) == [TENSOR_WISE] and all(s.numel() == 1 for s in scales)
    by_row = list(recipe_a) == list(recipe_b) == [ROW_WISE] and all(s.dim() == 2 for s in scales)
    if any((*swizzle_a, *swizzle_b)) or not (per_tensor or by_row) or not allowed(self, mat2, scales, bias):
        given = (self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype, *rest)
        return run_on_cpu(aten._scaled_mm_v2.default, given, {}, "it takes no such arguments")
    return product(self, mat2, scales, bias, out_dtype)


def register() -> None:
    register_operator(aten._scaled_mm.default, scaled_mm)
    if overloads("_scaled_mm_v2"):
        register_operator(aten._scaled_mm_v2.default, scaled_mm_v2)
