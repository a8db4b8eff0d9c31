"""Training steps of a model of GPT-2's size, by one process or by ranks in DistributedDataParallel."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from _ranks import Row
from torch import distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Shape:
    """Of a GPT-2, and of its batch on each rank."""

    width: int = 768
    depth: int = 12
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024
    batch: int = 8
    length: int = 512

    @property
    def tokens(self) -> int:
        return self.batch * self.length


SMALL = Shape(64, 2, 2, 512, 64, 2, 32)
"""To try the benchmark where there is no GPU."""


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention, self.before_mlp = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv, self.out = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)
        self.up, self.down = nn.Linear(shape.width, 4 * shape.width), nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class GPT2(nn.Module):
    """Its sizes: 124 million parameters, of which the head's are the embedding's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(shape.vocabulary, shape.width),
            nn.Embedding(shape.positions, shape.width),
        )
        self.blocks = nn.Sequential(*[Block(shape) for _ in range(shape.depth)])
        self.last = nn.LayerNorm(shape.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.last(self.blocks(self.tokens(tokens) + self.places(places)))
        return x @ self.tokens.weight.t()


@dataclass(frozen=True)
class Variant:
    """How a step is run. ``hook``: what compresses the gradients of several ranks."""

    dtype: str = "float32"
    is_compiled: bool = False
    hook: str = "none"

    def __str__(self) -> str:
        hook = "" if self.hook == "none" else f", {self.hook} hook"
        return f"{self.dtype} {'compiled' if self.is_compiled else 'eager'}{hook}"


def register_hook(model: DistributedDataParallel, hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif hook == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def step_of(shape: Shape, variant: Variant, device: str, ranks: int) -> Callable[[], Any]:
    """A step that returns when its loss is known."""
    torch.manual_seed(0)
    model: Any = GPT2(shape).to(device)
    if ranks > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        register_hook(model, variant.hook)
    run = torch.compile(model) if variant.is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    half = variant.dtype == "float16"
    scaler = torch.amp.GradScaler(device, enabled=half)
    tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.length + 1)).to(device)

    def step() -> float:
        with torch.autocast(device, dtype=torch.float16) if half else nullcontext():
            logits = run(tokens[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
        return loss.item()

    return step


def steps(shape: Shape, variants: Sequence[Variant], device: str, repeats: int, ranks: int) -> Iterator[Row]:
    """A row of each variant, measured on this rank. A variant that fails costs only itself, if all ranks fail alike."""
    if ranks > 1:
        dist.init_process_group("gloo" if device == "cpu" else None)
    for variant in variants:
        begin = time.perf_counter()
        step = step_of(shape, variant, device, ranks)
        warm_up_s, losses = [], []
        for _ in range(4):
            losses.append(step())
            warm_up_s.append(round(time.perf_counter() - begin, 2))
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            losses.append(step())
            times.append(time.perf_counter() - begin)
        row = {
            "part": "step", "ranks": ranks, "variant": str(variant), "device": device, "tokens": shape.tokens * ranks,
            "ms": round(1e3 * statistics.median(times), 2), "least_ms": round(1e3 * min(times), 2),
            "tokens_per_s": round(ranks * shape.tokens / statistics.median(times)), "warm_up_s": warm_up_s,
            "first_loss": round(losses[0], 4), "last_loss": round(losses[-1], 4),
        }  # fmt: skip
        yield row | (watched(step) if ranks > 1 and device == "webgpu" else {})
        del step
    if ranks > 1:
        dist.destroy_process_group()


def watched(step: Callable[[], Any]) -> Row:
    """One more step, and the times of its collectives: milliseconds since it began."""
    from torch_webgpu.distributed.timeline import STEPS, watching

    begin = time.perf_counter_ns()
    with watching() as seen:
        step()
    took_ms = (time.perf_counter_ns() - begin) / 1e6
    buckets = [
        {"bytes": t.size_bytes} | {s: round((t.times_ns[s] - begin) / 1e6, 2) for s in STEPS}
        for t in seen
        if t.collective.startswith("all_reduce") and not t.error
    ]
    row: Row = {"watched_ms": round(took_ms, 2), "transport": seen[0].transport if seen else "", "buckets": buckets}
    if buckets:
        row["bytes"] = sum(b["bytes"] for b in buckets)
        row["exchanging_ms"] = round(union((b["issued"], b["reduced"]) for b in buckets), 2)
        # The last to be read tells when the backward pass had run: what comes later has nothing to hide behind.
        row["not_overlapped_ms"] = round(max(b["uploaded"] for b in buckets) - max(b["read"] for b in buckets), 2)
    return row


def union(spans: Any) -> float:
    """How long at least one of these lasts."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total
