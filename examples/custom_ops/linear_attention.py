"""Causal linear attention by chunks: inside a chunk as products, between chunks by a state (Yang et al., 2024).

``out[t] = sum(dot(q[t], k[s]) * v[s] for s <= t)``. A workgroup takes one head, a thread one column of the state.
"""

import torch
from torch import Tensor

SIZE, CHUNK = 32, 32
SOURCE = f"""
const D = {SIZE}u;
const C = {CHUNK}u;
@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> length: u32;
var<workgroup> queries: array<f32, {SIZE * CHUNK}>;
var<workgroup> keys: array<f32, {SIZE * CHUNK}>;
var<workgroup> scores: array<f32, {CHUNK * CHUNK}>;

@compute @workgroup_size({SIZE})
fn attend(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) j: u32) {{
  var state: array<f32, {SIZE}>;
  var values: array<f32, {CHUNK}>;
  for (var start = 0u; start < length; start += C) {{
    let row = (group.x * length + start) * D;
    for (var t = 0u; t < C; t++) {{
      let is_inside = start + t < length;
      queries[t * D + j] = select(0.0, q[row + t * D + j], is_inside);
      keys[t * D + j] = select(0.0, k[row + t * D + j], is_inside);
      values[t] = select(0.0, v[row + t * D + j], is_inside);
    }}
    workgroupBarrier();
    for (var n = j; n < C * C; n += D) {{  // scores of the chunk, masked
      var score = 0.0;
      for (var i = 0u; i < D; i++) {{ score += queries[n / C * D + i] * keys[n % C * D + i]; }}
      scores[n] = select(0.0, score, n % C <= n / C);
    }}
    workgroupBarrier();
    for (var t = 0u; t < min(C, length - start); t++) {{
      var sum = 0.0;
      for (var i = 0u; i < D; i++) {{ sum += queries[t * D + i] * state[i]; }}
      for (var s = 0u; s <= t; s++) {{ sum += scores[t * C + s] * values[s]; }}
      out[row + t * D + j] = sum;
    }}
    for (var i = 0u; i < D; i++) {{
      for (var t = 0u; t < C; t++) {{ state[i] += keys[t * D + i] * values[t]; }}
    }}
    workgroupBarrier();
  }}
}}
"""


def composed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).tril() @ v


@torch.webgpu.op("examples::linear_attention")
def attend(q: Tensor, k: Tensor, v: Tensor, length: int) -> Tensor:
    return torch.webgpu.Kernel(
        SOURCE,
        threads=lambda q, *_: q[..., 0, 0].numel() * SIZE,
        reference=lambda q, k, v, length: composed(q, k, v),
    )


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(batch, heads, length, size), of ``SIZE`` elements."""
    return attend(q, k, v, q.shape[-2])


def inputs(scale: int = 1) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 4, 100 * scale, SIZE) / SIZE**0.5 for _ in range(3))
