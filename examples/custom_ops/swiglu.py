"""SwiGLU, the gate of most language models: one expression."""

import torch
from torch import Tensor


@torch.webgpu.op("examples::swiglu")
def ours(x: Tensor, y: Tensor) -> Tensor:
    return "x / (1.0 + exp(-x)) * y"


def composed(x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.silu(x) * y


def inputs(scale: int = 1) -> tuple[Tensor, ...]:
    return torch.randn(64 * scale, 256), torch.randn(64 * scale, 256)
