"""Kernels of custom_kernels.py in Triton, for CUDA."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _saxpy(x, y, alpha, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < n
    tl.store(y + at, tl.load(y + at, inside) + alpha * tl.load(x + at, inside), inside)


def saxpy(x: torch.Tensor, y: torch.Tensor, alpha: float) -> None:
    _saxpy[(triton.cdiv(x.numel(), BLOCK),)](x, y, alpha, x.numel(), BLOCK)


@triton.jit
def _swiglu(x, y, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < n
    a = tl.load(x + at, inside)
    tl.store(out + at, a / (1.0 + tl.exp(-a)) * tl.load(y + at, inside), inside)


def swiglu(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    _swiglu[(triton.cdiv(x.numel(), BLOCK),)](x, y, out, x.numel(), BLOCK)


@triton.jit
def _blur(image, out, height, width, row_stride, block: tl.constexpr):
    row = tl.program_id(1)
    column = tl.program_id(0) * block + tl.arange(0, block)
    inside = column < width
    total = tl.zeros((block,), tl.float32)
    for dy in range(-1, 2):
        r = tl.minimum(tl.maximum(row + dy, 0), height - 1)
        for dx in range(-1, 2):
            c = tl.minimum(tl.maximum(column + dx, 0), width - 1)
            total += tl.load(image + r * row_stride + c, inside)
    tl.store(out + row * width + column, total / 9.0, inside)


def blur(image: torch.Tensor, out: torch.Tensor) -> None:
    height, width = image.shape
    _blur[(triton.cdiv(width, BLOCK), height)](image, out, height, width, image.stride(0), BLOCK)
