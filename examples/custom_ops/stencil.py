"""A 2-D stencil, the five-point Laplacian with zeros around, and its backward, written by hand."""

from typing import Any

import torch
from torch import Tensor

SOURCE = """
@group(0) @binding(0) var<storage, read> u: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> size: vec2u;

fn at(x: i32, y: i32) -> f32 {
  let is_inside = x >= 0 && y >= 0 && x < i32(size.x) && y < i32(size.y);
  return select(0.0, u[u32(y) * size.x + u32(x)], is_inside);
}

@compute @workgroup_size(16, 16)
fn laplacian(@builtin(global_invocation_id) id: vec3u) {
  let x = i32(id.x);
  let y = i32(id.y);
  out[id.y * size.x + id.x] = at(x - 1, y) + at(x + 1, y) + at(x, y - 1) + at(x, y + 1) - 4.0 * at(x, y);
}
"""


def composed(u: Tensor) -> Tensor:
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], device=u.device)
    return torch.nn.functional.conv2d(u[None, None], kernel[None, None], padding=1)[0, 0]


def keep_size(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.size = inputs[1]


def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return laplacian(grad.contiguous(), ctx.size), None  # the operator is symmetric


@torch.webgpu.op("examples::laplacian", backward=backward, setup_context=keep_size)
def laplacian(u: Tensor, size: list[int]) -> Tensor:
    return torch.webgpu.Kernel(SOURCE, threads=lambda u, size: size, reference=lambda u, size: composed(u))


def ours(u: Tensor) -> Tensor:
    return laplacian(u, [u.shape[1], u.shape[0]])


def inputs(scale: int = 1) -> tuple[Tensor, ...]:
    return (torch.randn(40 * scale, 56),)
