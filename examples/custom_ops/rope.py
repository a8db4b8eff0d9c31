"""Rotary position embedding: an expression with two results. Its gradients are derived."""

import torch
from torch import Tensor


@torch.webgpu.op("examples::rotate")
def rotate(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return "a * cos - b * sin", "b * cos + a * sin"


def ours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x`` (batch, heads, length, size) turned by angles whose ``cos`` and ``sin`` are (length, size / 2)."""
    return torch.cat(rotate(*x.chunk(2, -1), cos, sin), -1)


def composed(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * torch.cat([cos, cos], -1) + torch.cat([-b, a], -1) * torch.cat([sin, sin], -1)


def inputs(scale: int = 1) -> tuple[Tensor, ...]:
    length, size = 32 * scale, 64
    angles = torch.outer(torch.arange(length), 1e4 ** -(torch.arange(size // 2) / (size // 2)))
    return torch.randn(2, 4, length, size), angles.cos(), angles.sin()
