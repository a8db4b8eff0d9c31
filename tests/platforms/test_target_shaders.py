"""Every kernel that models need on GPUs which are not here: Dawn's compiler accepts its WGSL.

Steps of models in the sizes that people train are traced for a target, which takes a second and computes nothing. What
depends on a GPU's tensor cores is nowhere else compiled on machines without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from torch_webgpu.aten.attention.flex_kernels import (
    flex_attention_in_tiles,
    flex_attention_in_tiles_backward,
    written,
)
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.attention.score_function import Element, ScoreFunction
from torch_webgpu.plan import trace
from torch_webgpu.target import named, names
from torch_webgpu.wgsl.link import link

SCORES_BYTES = 4 * 8 * 512 * 50257
"""The largest tensor here, in float32."""
TARGETS = [name for name in names() if named(name).dialect == "tint" and named(name).max_buffer_bytes > SCORES_BYTES]
AUTOCAST = {"float32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Bottleneck(nn.Module):
    """Of a ResNet: three convolutions with batch norms, and a fourth where the sizes change."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        down = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.down = nn.Identity() if channels == 4 * width else down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.main(x) + self.down(x))


class Causal(nn.Module):
    """A layer of a language model: RMS norms, fewer heads of keys than of queries, a gated linear unit."""

    def __init__(self, features: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(features), nn.RMSNorm(features)])
        size = features // heads
        self.q, self.k, self.v = (nn.Linear(features, n * size) for n in (heads, groups, groups))
        self.out = nn.Linear(features, features, bias=False)
        self.gate, self.up = (nn.Linear(features, 4 * features, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * features, features, bias=False)
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norms[0](x)
        q, k, v = (layer(h).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(a.transpose(1, 2).flatten(-2))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Scores(nn.Module):
    """The loss over a vocabulary whose size divides by nothing."""

    def __init__(self, features: int, words: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(features), nn.Linear(features, words, bias=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Denoiser(nn.Module):
    """A residual block of a diffusion model, and attention over its positions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, channels) for _ in range(3)])
        self.convs = nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)])
        self.attention = nn.MultiheadAttention(channels, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x
        for norm, conv in zip(self.norms, self.convs, strict=False):
            h = conv(F.silu(norm(h)))
        x = x + h
        tokens = self.norms[2](x).flatten(2).transpose(1, 2)
        return x + self.attention(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).view_as(x)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def models() -> Iterator[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    """Without memory, and what they are called with."""
    for layout in (torch.contiguous_format, torch.channels_last):
        last = "" if layout == torch.contiguous_format else ", channels last"
        blocks = nn.Sequential(Bottleneck(256, 128, 2), Bottleneck(512, 128, 1)).to(memory_format=layout)
        yield f"ResNet's second stage{last}", blocks, (meta(32, 256, 56, 56).to(memory_format=layout),)
        blocks = nn.Sequential(Bottleneck(1024, 512, 2), Bottleneck(2048, 512, 1)).to(memory_format=layout)
        yield f"ResNet's last stage{last}", blocks, (meta(32, 1024, 14, 14).to(memory_format=layout),)
    encoder = nn.TransformerEncoderLayer(768, 12, 3072, 0.1, F.gelu, batch_first=True)
    yield "encoder layer", encoder, (meta(8, 512, 768),)
    yield "language model's layer", Causal(896, 14, 2), (meta(1, 512, 896),)
    yield "longer lines", Causal(1024, 8, 8), (meta(2, 300, 1024),)
    yield "scores", Scores(768, 50257), (meta(8, 512, 768), meta(8, 512, dtype=torch.int64))
    yield "diffusion", Denoiser(320), (meta(2, 320, 64, 64),)
    yield "depthwise", nn.Conv2d(96, 96, 7, padding=3, groups=96), (meta(32, 96, 56, 56),)


def training_step(model: nn.Module, autocast: torch.dtype | None) -> Callable[..., Any]:
    def step(parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], *inputs: torch.Tensor) -> Any:
        parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        with torch.autocast("webgpu", dtype=autocast, enabled=autocast is not None):
            result = functional_call(model, {**parameters, **buffers}, inputs)
        return result.detach(), torch.autograd.grad(result.float().square().mean(), list(parameters.values()))

    return step


def inference(model: nn.Module) -> Callable[..., Any]:
    def run(parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], *inputs: torch.Tensor) -> Any:
        with torch.no_grad():
            return functional_call(model, {**parameters, **buffers}, inputs)

    return run


def assert_compiles(null: Any, target: str, model: str, step: Callable[..., Any], *inputs: Any) -> set[str]:
    """The names of the kernels."""
    plan = trace(step, *inputs, target=target)
    for kernel in plan.kernels:
        source = link(kernel, named(target)).source
        null.create_shader(source, kernel.name, True)
        assert not null.sink.errors, f"{model}: {kernel.name}:\n{null.sink.take()}\n{source}"
        assert prod(kernel.workgroup_size) <= named(target).workgroup_threads, f"{model}: {kernel.name}"
    return {kernel.name for kernel in plan.kernels}


@pytest.mark.parametrize("dtype", AUTOCAST)
@pytest.mark.parametrize("target", TARGETS)
def test_training_steps_compile(null: Any, target: str, dtype: str) -> None:
    with torch.device("meta"):
        for name, model, inputs in models():
            parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
            step = training_step(model, AUTOCAST[dtype])
            kernels = assert_compiles(null, target, name, step, parameters, buffers, *inputs)
            if target == "h200-dawn" and dtype != "float32" and name != "depthwise":
                assert any("_matri" in kernel for kernel in kernels), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_inference_compiles(null: Any, target: str, dtype: torch.dtype) -> None:
    with torch.device("meta"):
        for name, model, inputs in models():
            model = model.to(dtype).eval()
            inputs = tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)
            parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
            assert_compiles(null, target, name, inference(model), parameters, buffers, *inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_products_into_float32_compile(null: Any, target: str, dtype: torch.dtype) -> None:
    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.bmm(q, k.transpose(1, 2), out_dtype=torch.float32) / 20) * 20

    with torch.device("meta"):
        q, k = (torch.empty(64, 1024, 64, dtype=dtype) for _ in range(2))
        kernels = assert_compiles(null, target, "scores", scores, q, k)
    assert target != "h200-dawn" or any("_matri" in kernel for kernel in kernels), kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", [target for target in TARGETS if not named(target).software])
def test_attention_with_functions_of_scores_compiles(null: Any, target: str, dtype: torch.dtype) -> None:
    """FlexAttention of documents, with scores that are capped, forward and backward."""
    score = ops.tanh(ops.acc(0, "f32") / 20.0)
    documents = tuple([Element(0, (ops.index(d),)) for d in (2, 3)])
    is_seen = (ops.index(2) + ops.param(0, "i32") >= ops.index(3)) & ops.eq(ops.load(0, "i64"), ops.load(1, "i64"))
    function = written(ScoreFunction(1, 1, documents, score * 20.0, is_seen, 1.0 - score * score, (128, 128)))

    def step(q: torch.Tensor, numbers: torch.Tensor, blocks: torch.Tensor) -> Any:
        out, lse, _ = flex_attention_in_tiles(q, q, q, (numbers, blocks), function, (7,), 0.125)
        return out, flex_attention_in_tiles_backward(
            out, q, q, q, out, lse, None, (numbers, blocks, blocks), function, (7,), 0.125
        )

    with torch.device("meta"):
        q, numbers = torch.empty(4, 16, 2048, 64, dtype=dtype), torch.empty(2048, dtype=torch.int64)
        blocks = torch.empty(1, 1, 16, 1, dtype=torch.int32)
        kernels = assert_compiles(null, target, "documents", step, q, numbers, blocks)
        few = assert_compiles(null, target, "one query", step, q[:, :, :1], numbers, blocks[:, :, :1])
    assert {
        "flash_attention_matrix" if target == "h200-dawn" and dtype != torch.float32 else "flash_attention"
    } <= kernels
    assert "attention_few" in few
