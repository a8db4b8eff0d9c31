"""Products with weights of 8 and 4 bits, which kernels unpack while they load them: ``_weight_int8pack_mm`` and others.

Weights of 4 bits lie as on MPS: eight numbers of a row in an int32, the first in its lowest bits, in a tensor of the
shape that CUDA has. What the CPU packs for ``_weight_int4pack_mm_for_cpu`` depends on its vector instructions, so that
this operator runs there.
"""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, infer

from .packed_matrix import int4_points_matrix, int4pack_matrix, int8_matrix, product

GROUP_SIZES = (32, 64, 128, 256)
INNER_K_TILES = (2, 4, 8)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def check_float(name: str, x: torch.Tensor) -> None:
    if x.dtype not in FLOATS:
        raise RuntimeError(f"{name} : expect A to be either 32-bit or 16-bit float tensor.")


def weight_int8pack_mm(self: torch.Tensor, mat2: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """``self`` (m, k) times the transpose of int8 ``mat2`` (n, k), its rows scaled by ``scales`` (n,)."""
    infer(aten._weight_int8pack_mm.default, self, mat2, scales)
    return product("aten::_weight_int8pack_mm", self, int8_matrix(mat2, scales))


def integer_product(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """``x`` (m, k) times the transpose of int8 ``codes`` (n, k), in the dtype of ``x``."""
    return product("integer_product", x, int8_matrix(codes))


def convert_weight_to_int4pack(self: torch.Tensor, innerKTiles: int) -> torch.Tensor:
    """uint8 (n, k / 2), of two numbers the first in the higher bits, as CUDA's (n / 8, k / (tiles * 16), 32, tiles / 2)
    of int32; within it numbers lie in order.
    """
    name = "_convert_weight_to_int4pack"
    if innerKTiles not in INNER_K_TILES:
        raise RuntimeError(f"{name}: innerKTiles need to be 2, 4, or 8, got {innerKTiles}")
    ((shape, _, _),) = infer(aten._convert_weight_to_int4pack.default, self, innerKTiles)
    n, k = self.shape[0], self.shape[1] * 2
    if n % 8 or k % (innerKTiles * 16):
        raise RuntimeError(f"{name}: expects n ({n}) to be a multiple of 8 and k ({k}) of {innerKTiles * 16}")
    swapped = (self << 4) | (self >> 4)
    return swapped.contiguous().view(torch.int32).view(shape)


def check_groups(name: str, x: torch.Tensor, group: int, scales: torch.Tensor, n: int) -> None:
    check_float(name, x)
    if group not in GROUP_SIZES:
        raise RuntimeError(f"{name}: expects qGroupSize to be 32, 64, 128 or 256, got {group}")
    if x.shape[1] % group:
        raise RuntimeError(f"{name}: expects k ({x.shape[1]}) to be a multiple of qGroupSize ({group})")
    if scales.shape[:2] != (x.shape[1] // group, n):
        raise RuntimeError(f"{name}: expects scales and zeros for {x.shape[1] // group} groups of {n} rows")


def weight_int4pack_mm(
    self: torch.Tensor, mat2: torch.Tensor, qGroupSize: int, qScaleAndZeros: torch.Tensor
) -> torch.Tensor:
    """``self`` (m, k) times the transpose of what :func:`convert_weight_to_int4pack` packed; scales and zeros are (k /
    group, n, 2).
    """
    name = "_weight_int4pack_mm"
    if mat2.dim() != 4 or mat2.dtype != torch.int32 or not mat2.is_contiguous():
        raise RuntimeError(f"{name} : expect B to be a contiguous 4-D int32 tensor of _convert_weight_to_int4pack")
    n, words = mat2.shape[0] * 8, mat2.numel() // max(mat2.shape[0] * 8, 1)
    if self.dim() != 2 or self.shape[1] != words * 8:
        raise RuntimeError(f"{name} : expect A to be a matrix of {words * 8} columns, got {tuple(self.shape)}")
    if qScaleAndZeros.dim() != 3 or qScaleAndZeros.shape[2] != 2:
        raise RuntimeError(f"{name} : expect qScaleAndZeros to be 3d tensor with sizes [:, {n}, 2]")
    check_groups(name, self, qGroupSize, qScaleAndZeros, n)
    return product(f"aten::{name}", self, int4pack_matrix(mat2, qGroupSize, qScaleAndZeros))


def weight_int4pack_mm_with_scales_and_zeros(
    self: torch.Tensor, mat2: torch.Tensor, qGroupSize: int, qScale: torch.Tensor, qZeros: torch.Tensor
) -> torch.Tensor:
    """``self`` (m, k) times the transpose of ``mat2``, int32 (n, k / 8), as on XPU: ``(q - zero) * scale``, scales and
    zeros (k / group, n).
    """
    name = "_weight_int4pack_mm_with_scales_and_zeros"
    infer(aten._weight_int4pack_mm_with_scales_and_zeros.default, self, mat2, qGroupSize, qScale, qZeros)
    if self.shape[1] != mat2.shape[1] * 8 or qZeros.shape != qScale.shape:
        raise RuntimeError(f"{name} : expect A to have {mat2.shape[1] * 8} columns, and as many zeros as scales")
    check_groups(name, self, qGroupSize, qScale, mat2.shape[0])
    return product(f"aten::{name}", self, int4_points_matrix(mat2, qGroupSize, qScale, qZeros))


def register() -> None:
    register_operator(aten._weight_int8pack_mm.default, weight_int8pack_mm)
    register_operator(aten._convert_weight_to_int4pack.default, convert_weight_to_int4pack)
    register_operator(aten._weight_int4pack_mm.default, weight_int4pack_mm)
    register_operator(aten._weight_int4pack_mm_with_scales_and_zeros.default, weight_int4pack_mm_with_scales_and_zeros)
