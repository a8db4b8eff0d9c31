"""A segmented scan: running sums of each row that begin anew where ``heads`` is not 0. A kernel."""

import torch
from torch import Tensor

SOURCE = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> heads: array<i32>;
@group(0) @binding(2) var<storage, read_write> sums: array<f32>;
@group(0) @binding(3) var<uniform> width: u32;
var<workgroup> value: array<f32, 256>;
var<workgroup> is_head: array<u32, 256>;

@compute @workgroup_size(256)
fn scan(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) l: u32) {
  var carry = 0.0;
  for (var start = 0u; start < width; start += 256u) {  // 256 elements at a time, by Hillis and Steele's algorithm
    let at = group.x * width + start + l;
    let is_inside = start + l < width;
    value[l] = select(0.0, x[at], is_inside);
    is_head[l] = select(0u, 1u, is_inside && heads[at] != 0);
    workgroupBarrier();
    for (var step = 1u; step < 256u; step *= 2u) {
      var v = value[l];
      var h = is_head[l];
      if (l >= step) {
        if (h == 0u) { v += value[l - step]; }
        h |= is_head[l - step];
      }
      workgroupBarrier();
      value[l] = v;
      is_head[l] = h;
      workgroupBarrier();
    }
    if (is_inside) { sums[at] = value[l] + select(carry, 0.0, is_head[l] != 0u); }
    carry = value[255] + select(carry, 0.0, is_head[255] != 0u);
    workgroupBarrier();
  }
}
"""


def composed(x: Tensor, heads: Tensor) -> Tensor:
    sums = x.cumsum(-1)
    first = torch.where(heads != 0, torch.arange(x.shape[-1], device=x.device), 0).cummax(-1).values
    return sums - (sums - x).gather(-1, first)


@torch.webgpu.op("examples::segmented_scan")
def scan(x: Tensor, heads: Tensor, width: int) -> Tensor:
    return torch.webgpu.Kernel(
        SOURCE,
        threads=lambda x, heads, width: 256 * x.shape[0],
        reference=lambda x, heads, width: composed(x, heads),
    )


def ours(x: Tensor, heads: Tensor) -> Tensor:
    return scan(x, heads, x.shape[-1])


def inputs(scale: int = 1) -> tuple[Tensor, ...]:
    return torch.rand(4 * scale, 700), (torch.rand(4 * scale, 700) < 0.05).int()
