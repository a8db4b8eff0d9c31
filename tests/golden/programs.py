"""Small programs, and what they are compiled to for targets that need not be there: plans and WGSL as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch.optim.adam import adam

from torch_webgpu.plan import trace
from torch_webgpu.runtime import runtime

from .targets import ALL, TARGETS
from .texts import text


@dataclass(frozen=True)
class Program:
    """A function, the tensors it is traced with, and the targets that it is compiled for."""

    run: Callable[..., object]
    inputs: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    devices: tuple[str, ...] = ("rich",)


def f32(*shape: int) -> tuple[torch.dtype, tuple[int, ...]]:
    return torch.float32, shape


def f16(*shape: int) -> tuple[torch.dtype, tuple[int, ...]]:
    return torch.float16, shape


def i64(*shape: int) -> tuple[torch.dtype, tuple[int, ...]]:
    return torch.int64, shape


def write_through_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:].mul_(y[:-1])
    return x + 1


def sgd(weight: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    weight = weight.detach().requires_grad_()
    loss = F.cross_entropy(x @ weight, labels)
    (gradient,) = torch.autograd.grad(loss, weight)
    return weight.detach() - 0.1 * gradient


def gradients(
    run: Callable[..., torch.Tensor], of: int
) -> Callable[..., tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    """Of the first ``of`` inputs, where that of the result is the result; and the result."""

    def compute(*inputs: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        leaves = [t.detach().requires_grad_() for t in inputs[:of]]
        y = run(*leaves, *inputs[of:])
        return torch.autograd.grad(y, leaves, y.detach()), y.detach()

    return compute


def attention(dropout_p: float = 0.0, is_causal: bool = False) -> Callable[..., torch.Tensor]:
    return partial(F.scaled_dot_product_attention, dropout_p=dropout_p, is_causal=is_causal)


def optimizer_step(*tensors: torch.Tensor, decoupled: bool) -> tuple[torch.Tensor, ...]:
    """The fourth step of Adam or AdamW: parameters, their gradients, the averages of these and of their squares."""
    n = len(tensors) // 4
    weights, gradients, averages, squares = [[*tensors[k * n : k * n + n]] for k in range(4)]
    steps = [torch.tensor(3.0) for _ in weights]
    rates = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
    kind = {"foreach": True, "capturable": False, "decoupled_weight_decay": decoupled, "amsgrad": False}
    adam(weights, gradients, averages, squares, [], steps, maximize=False, **kind, **rates)
    return (*weights, *averages, *squares)


def batch_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, var: torch.Tensor
) -> torch.Tensor:
    return F.batch_norm(x, mean, var, weight, bias, training=True)


IMAGES, CHANNELS = f32(2, 8, 12, 12), f32(8)
NORMED = (f32(4, 8, 6, 6), CHANNELS, CHANNELS, CHANNELS, CHANNELS)
QUERIES, TILED, TILED_HALF = f32(1, 2, 24, 32), f32(4, 25, 64, 16), f16(4, 25, 64, 16)
"""Few enough for products; as many blocks of queries as tiles of scores need to be faster."""
LAYERS = (f32(3, 4), f32(5))

PROGRAMS = {
    "chain": Program(lambda x, y: (x * 2 + 1).relu() * y, (f32(64, 48), f32(48)), ALL),
    "halves": Program(lambda x: (x.half() * 3).bfloat16().exp(), (f32(7, 5),), ALL),
    "integers": Program(lambda x, y: (x * y) // 3, (i64(9), i64(9)), ALL),
    "softmax": Program(partial(torch.softmax, dim=-1), (f32(16, 40),), ALL),
    "layer_norm": Program(lambda x, w, b: F.layer_norm(x, (40,), w, b), (f32(16, 40), f32(40), f32(40))),
    "sums": Program(lambda x: (x.sum(0), (x * x).mean()), (f32(300, 20),)),
    "cumsum": Program(lambda x: x.cumsum(1), (f32(4, 100),)),
    "transposed": Program(lambda x, y: x.t() + y, (f32(33, 17), f32(17, 33))),
    "write_through_a_view": Program(write_through_a_view, (f32(6, 4), f32(6, 4))),
    "linear_gelu": Program(lambda x, w, b: F.gelu(F.linear(x, w, b)), (f32(32, 64), f32(48, 64), f32(48)), ALL),
    "linear_relu": Program(
        lambda x, w, b: F.relu(F.linear(x, w, b)), (f16(32, 64), f16(48, 64), f16(48)), ("matrices",)
    ),
    "embedding": Program(lambda i, w: F.embedding(i, w) + 1, (i64(2, 5), f32(11, 8)), ALL),
    "dropout": Program(lambda x: F.dropout(x, 0.5), (f32(64),), ALL),
    "training_step": Program(sgd, (f32(8, 3), f32(5, 8), i64(5)), ("rich", "browser")),
    "conv3x3": Program(partial(F.conv2d, padding=1), (IMAGES, f32(16, 8, 3, 3), f32(16)), ALL),
    "conv1x1": Program(F.conv2d, (IMAGES, f32(16, 8, 1, 1), f32(16)), ALL),
    "conv3x3_backward": Program(gradients(partial(F.conv2d, padding=1), 3), (IMAGES, f32(16, 8, 3, 3), f32(16)), ALL),
    "conv1x1_backward": Program(gradients(F.conv2d, 3), (IMAGES, f32(16, 8, 1, 1), f32(16)), ALL),
    "conv_grouped_backward": Program(
        gradients(partial(F.conv2d, padding=1, stride=2, groups=4), 3), (IMAGES, f32(16, 2, 3, 3), f32(16)), ALL
    ),
    "attention_few": Program(attention(), (f32(1, 4, 1, 32), f32(1, 4, 100, 32), f32(1, 4, 100, 32)), ALL),
    "attention_products": Program(attention(), (QUERIES,) * 3, ("rich", "browser")),
    "attention_products_backward": Program(gradients(attention(0.1), 3), (QUERIES,) * 3, ("rich", "browser")),
    "attention_tiles": Program(attention(is_causal=True), (TILED,) * 3, ALL),
    "attention_tiles_half": Program(attention(is_causal=True), (TILED_HALF,) * 3, ("matrices",)),
    "attention_tiles_backward": Program(gradients(attention(0.1, is_causal=True), 3), (TILED,) * 3, ("browser",)),
    "attention_tiles_half_backward": Program(
        gradients(attention(0.1, is_causal=True), 3), (TILED_HALF,) * 3, ("matrices",)
    ),
    "lists": Program(lambda a, b, c, d: torch._foreach_add([a, b], [c, d], alpha=2), LAYERS * 2, ALL),
    "adam": Program(partial(optimizer_step, decoupled=False), LAYERS * 4, ALL),
    "adamw": Program(partial(optimizer_step, decoupled=True), LAYERS * 4, ALL),
    "sort": Program(torch.sort, (f32(3, 100),), ALL),
    "sort_integers": Program(torch.sort, (i64(3, 100),), ALL),
    "sort_long": Program(partial(torch.sort, stable=True, descending=True), (f32(3, 5000),), ALL),
    "topk": Program(lambda x: x.topk(5), (f32(2, 5000),), ALL),
    "cumsum_long": Program(lambda x: x.cumsum(1), (f32(2, 50000),), ALL),
    "cummax": Program(lambda x: x.cummax(1), (f32(2, 5000),), ALL),
    "fft": Program(torch.fft.rfft, (f32(5, 6),), ALL),
    "fft_long": Program(torch.fft.rfft, (f32(3, 2560),), ("browser",)),
    "batch_norm": Program(batch_norm, NORMED, ALL),
    "batch_norm_backward": Program(gradients(batch_norm, 3), NORMED, ALL),
    "index_select": Program(lambda x, i: x.index_select(1, i), (f32(6, 7), i64(5)), ALL),
    "scatter_add": Program(lambda x, i, y: x.scatter_add(0, i, y), (f32(6, 7), i64(4, 7), f32(4, 7)), ALL),
    "embedding_backward": Program(gradients(lambda weight, i: F.embedding(i, weight), 1), (f32(11, 8), i64(2, 5)), ALL),
}


def compiled() -> dict[str, str]:
    """What each program is compiled to for each of its targets. No adapter is looked for."""
    results = {}
    for name, program in PROGRAMS.items():
        sources: dict[str, str] = {}
        for target in program.devices:
            meta = [torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in program.inputs]
            plan = trace(program.run, *meta, target=TARGETS[target])
            results[f"{name}.{target}"] = text(plan, target, sources)
    assert not runtime._runtime.cache_info().misses
    return results
