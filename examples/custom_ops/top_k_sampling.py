"""Sampling of a token among the ``k`` likeliest, in one kernel: a threshold by radix selection, then a walk."""

import torch
from torch import Tensor

SOURCE = """
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> uniform_: array<f32>;
@group(0) @binding(2) var<storage, read_write> tokens: array<i32>;
@group(0) @binding(3) var<uniform> size: u32;
@group(0) @binding(4) var<uniform> k: u32;
var<workgroup> count: atomic<u32>;
var<workgroup> shares: array<f32, 256>;

fn key(x: f32) -> u32 {  // in the order of the numbers
  let bits = bitcast<u32>(x);
  return bits ^ select(0x80000000u, 0xffffffffu, bits >> 31u == 1u);
}

@compute @workgroup_size(256)
fn sample(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) l: u32) {
  let row = group.x * size;
  let each = (size + 255u) / 256u;
  let first = min(l * each, size);
  let end = min(first + each, size);
  var threshold = 0u;
  for (var bit = 0u; bit < 32u; bit++) {
    let candidate = threshold | (0x80000000u >> bit);
    if (l == 0u) { atomicStore(&count, 0u); }
    workgroupBarrier();
    var own = 0u;
    for (var i = first; i < end; i++) { own += select(0u, 1u, key(logits[row + i]) >= candidate); }
    atomicAdd(&count, own);
    workgroupBarrier();
    if (workgroupUniformLoad(&count) >= k) { threshold = candidate; }
  }
  // Relative to the least of the k; the clamp is far above what softmax tells apart.
  let bits = threshold ^ select(0xffffffffu, 0x80000000u, threshold >> 31u == 1u);
  let least = bitcast<f32>(bits);
  var share = 0.0;
  for (var i = first; i < end; i++) {
    let x = logits[row + i];
    if (key(x) >= threshold) { share += exp(min(x - least, 80.0)); }
  }
  shares[l] = share;
  workgroupBarrier();
  var before = 0.0;
  var total = 0.0;
  for (var i = 0u; i < 256u; i++) {
    if (i == l) { before = total; }
    total += shares[i];
  }
  let wanted = min(uniform_[group.x], 0.99999994) * total;
  if (wanted < before || wanted >= before + share) { return; }
  for (var i = first; i < end; i++) {
    let x = logits[row + i];
    if (key(x) >= threshold) {
      before += exp(min(x - least, 80.0));
      tokens[group.x] = i32(i);
      if (before > wanted) { return; }
    }
  }
}
"""


def composed(logits: Tensor, uniform: Tensor, k: int = 20) -> Tensor:
    least = logits.topk(k).values[:, -1:]
    chances = logits.masked_fill(logits < least, float("-inf")).softmax(-1).cumsum(-1)
    return (chances > uniform[:, None]).int().argmax(-1).int()


@torch.webgpu.op("examples::top_k_sample")
def sample(logits: Tensor, uniform_: Tensor, size: int, k: int) -> Tensor:
    return torch.webgpu.Kernel(
        SOURCE,
        shape=lambda logits, *_: logits.new_empty(logits.shape[0], dtype=torch.int32),
        threads=lambda logits, *_: 256 * logits.shape[0],
        reference=lambda logits, uniform, size, k: composed(logits, uniform, k),
    )


def ours(logits: Tensor, uniform: Tensor, k: int = 20) -> Tensor:
    """A token for each row of ``logits``, by the number in [0, 1) that ``uniform`` has for it: int32."""
    return sample(logits, uniform, logits.shape[1], k)


def inputs(scale: int = 1) -> tuple[Tensor, ...]:
    return torch.randn(8 * scale, 1000) * 3, torch.rand(8 * scale)
