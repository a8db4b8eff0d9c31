"""RMS normalisation: a reduction whose map is stored at every point, in one dispatch."""

import torch
from torch import Tensor


@torch.webgpu.op("examples::rms_norm")
def ours(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> Tensor:
    return torch.webgpu.Reduction("x * x", "sum", map="x * inverseSqrt(sum / count + eps) * weight", dim=-1)


def composed(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def inputs(scale: int = 1) -> tuple[Tensor, ...]:
    return torch.randn(64 * scale, 256), torch.randn(256)
