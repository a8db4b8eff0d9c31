"""Packed matrices: what products with weights of 8 and 4 bits read, and how its numbers are made of that.

Weights of 4 bits lie as on MPS: eight numbers of a row in an int32, the first in its lowest bits.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.matmul.component_loads import Component, Elements, load_of
from torch_webgpu.kernels.matmul.components import described

PER_WORD = 8


class PackedMatrix(NamedTuple):
    """A matrix (n, k) as products read it: ``elements`` says how its numbers are made of ``tensors``."""

    n: int
    k: int
    tensors: tuple[torch.Tensor, ...]
    elements: Elements


def product(name: str, x: torch.Tensor, matrix: PackedMatrix) -> torch.Tensor:
    """``x`` (m, k) times the transpose of a matrix (n, k), in the dtype of ``x``."""
    layout = (x.shape[0], matrix.n), (matrix.n, 1), x.dtype
    body = described(dtypes.of(x.dtype).name, matrix.elements)
    (out,) = kernel_outputs(name, (x, *matrix.tensors), [layout], body)
    return out


@cache
def int8_elements(in_words: bool, scale: str | None) -> Elements:
    """int8 numbers, four in an int32 if ``in_words``, and perhaps a scale for each row."""
    scales = () if scale is None else (Component("scale", scale, 0),)
    scaled = None if scale is None else load_of(1, scale)
    if not in_words:
        return Elements(load_of(0, "i8"), (Component("codes", "i8", 1), *scales), 1, scaled)
    # The byte goes to the top, so that the shift down brings its sign.
    up = (ops.constant(3, "i32") - ops.load(1 + len(scales), "i32")) * 8
    code = ops.bitwise_right_shift(ops.bitwise_left_shift(ops.load(0, "i32"), up), 24)
    return Elements(ops.to_dtype(code, "f32"), (Component("codes", "i32", 4), *scales), 4, scaled)


def int8_matrix(codes: torch.Tensor, scales: torch.Tensor | None = None) -> PackedMatrix:
    """``codes`` (n, k) of int8, and ``scales`` (n,) of its rows."""
    n, k = codes.shape
    in_words = codes.is_contiguous() and k % 4 == 0 and codes.storage_offset() % 4 == 0
    elements = int8_elements(in_words, None if scales is None else dtypes.of(scales.dtype).name)
    numbers = codes.view(torch.int32) if in_words else codes
    return PackedMatrix(n, k, (numbers,) if scales is None else (numbers, scales), elements)


@cache
def int4_elements(group: int, scale: str, zero: str | None, points: bool) -> Elements:
    """4-bit numbers q, and of each group a scale and a zero: ``(q - zero) * scale`` if ``points``, where zero is one of
    the numbers, else ``(q - 8) * scale + zero``, as PyTorch has it on CUDA. ``zero``: its dtype, None where scales and
    zeros are pairs in one tensor.
    """
    pair = "scale" if zero is None else ""
    zero = zero or scale
    components = (
        Component("codes", "i32", PER_WORD),
        Component("scale", scale, group),
        Component("zero", zero, group, pair_of=pair),
    )
    # Every other one stands in a byte of its own, from which GPUs convert at once.
    at = ops.load(len(components), "i32")
    apart = ops.bitwise_and(ops.bitwise_right_shift(ops.load(0, "i32"), ops.bitwise_and(at, 1) * 4), 0x0F0F0F0F)
    byte = ops.bitwise_and(ops.bitwise_right_shift(apart, ops.bitwise_right_shift(at, 1) * 8), 0xFF)
    code = ops.to_dtype(byte, "f32")
    scales, zeros = load_of(1, scale), load_of(2, zero)
    return Elements(code, components, PER_WORD, scales, -(zeros * scales) if points else zeros - scales * 8.0)


def int4_matrix(codes: torch.Tensor, pairs: torch.Tensor, group: int) -> PackedMatrix:
    """``codes`` (n, k / 8) of int32; ``pairs`` (n, k / group, 2) of scales and zeros, of any strides."""
    elements = int4_elements(group, dtypes.of(pairs.dtype).name, None, points=False)
    return PackedMatrix(codes.shape[0], codes.shape[1] * PER_WORD, (codes, pairs), elements)


def int4pack_matrix(mat2: torch.Tensor, group: int, scales_and_zeros: torch.Tensor) -> PackedMatrix:
    """What :func:`convert_weight_to_int4pack` packed; scales and zeros are (k / group, n, 2)."""
    n = mat2.shape[0] * 8
    return int4_matrix(mat2.view(n, -1), scales_and_zeros.permute(1, 0, 2), group)


def int4_points_matrix(mat2: torch.Tensor, group: int, scales: torch.Tensor, zeros: torch.Tensor) -> PackedMatrix:
    """``mat2`` (n, k / 8) of int32, scales and zeros (k / group, n), as on XPU: ``(q - zero) * scale``."""
    elements = int4_elements(group, dtypes.of(scales.dtype).name, dtypes.of(zeros.dtype).name, points=True)
    return PackedMatrix(mat2.shape[0], mat2.shape[1] * PER_WORD, (mat2, scales.t(), zeros.t()), elements)
