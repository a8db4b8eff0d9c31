"""Decoding with packed weights: one token through the products and norms of a Llama-like model, compiled.

python benchmarks/packed_decoding.py --layers 8 [--size 4096 --inner 11008] [--weights float16 int8 int4] [--cuda]

``--cuda`` adds the float16 model on CUDA, in a CUDA graph. A step's time is the median of runs of steps that are
waited for together, after the GPU's clock has risen.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from _harness import Device, Effort, measure
from torch import Tensor, nn


class Layer(nn.Module):
    """The products, norms and gates of a layer, with a product of its numbers in the place of attention."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.norm, self.inner_norm = nn.RMSNorm(size), nn.RMSNorm(size)
        self.query, self.key, self.value, self.out = [nn.Linear(size, size, bias=False) for _ in range(4)]
        self.gate, self.up = [nn.Linear(size, inner, bias=False) for _ in range(2)]
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        x = x + self.out(torch.sigmoid(self.query(n) * self.key(n)) * self.value(n))
        n = self.inner_norm(x)
        return x + self.down(nn.functional.silu(self.gate(n)) * self.up(n))


def model(options: argparse.Namespace, device: str) -> nn.Module:
    torch.manual_seed(0)
    with torch.device(device):
        layers = [Layer(options.size, options.inner) for _ in range(options.layers)]
    return nn.Sequential(*layers).half().requires_grad_(False)


def milliseconds(step: Callable[[], object], device: Device, seconds: float) -> float:
    """A step's median time, of seven runs of so many seconds; what they return is small."""
    effort = Effort(warm_up_s=2 * seconds, repeats=7, repeat_s=seconds)
    return measure(step, device, effort, small=True).median_s * 1e3


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=11008)
    parser.add_argument("--weights", nargs="+", default=["float16", "int8", "int4"])
    parser.add_argument("--seconds", type=float, default=0.2, help="of a run")
    parser.add_argument("--cuda", action="store_true")
    options = parser.parse_args()
    if options.cuda:
        plain, x = model(options, "cuda"), torch.randn(1, options.size, dtype=torch.half, device="cuda")
        plain(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plain(x)
        print(f"CUDA, float16: {milliseconds(graph.replay, Device.of('cuda'), options.seconds):.3f} ms")
        del graph, plain
    device = Device.of("webgpu")
    x = torch.randn(1, options.size, dtype=torch.half, device="webgpu")
    for weights in options.weights:
        packed = model(options, "webgpu")
        if weights != "float16":
            packed = torch.webgpu.quantize_(packed, weights)
        step = torch.compile(packed)
        print(f"{weights}: {milliseconds(lambda step=step: step(x), device, options.seconds):.3f} ms")


if __name__ == "__main__":
    main()
