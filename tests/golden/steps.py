"""What programs come down to that have to run: eager flushes, captured graphs, compiled models.

They run on a WebGPU implementation that checks every call and computes nothing, so no value may decide what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from tests.webgpu_double import CheckedWebGPU
from torch import nn

from torch_webgpu.engine.executable import Executable
from torch_webgpu.engine.record import engine
from torch_webgpu.plan import Plan
from torch_webgpu.runtime import runtime
from torch_webgpu.runtime.commands import Dispatch
from torch_webgpu.runtime.device import Device

from .targets import ALL, OFFERS, TARGETS
from .texts import text


@contextmanager
def noted_plans() -> Iterator[list[Plan]]:
    """The plans that are bound to a device in the block, in order: the one place that knows where that happens.

    All that comes is new to the cache, whatever ran before.
    """
    plans: list[Plan] = []
    bind = Executable.__init__
    engine().plans.clear()

    def noting(self: Executable, *args: Any, **kwargs: Any) -> None:
        bind(self, *args, **kwargs)
        plans.append(self.plan)

    with patch.object(Executable, "__init__", noting):
        yield plans


def commands_of(graph: Any) -> str:
    """What a captured graph holds: a line for each command. Buffers are numbered as they come up."""
    number: dict[int, int] = {}
    lines = []
    for command in graph._captured.commands:
        if isinstance(command, Dispatch):
            bound = [f"b{number.setdefault(id(b), len(number))}" for b in command.buffers]
            words = [f"{word:#x}" for word in memoryview(command.params).cast("I")]
            lines.append(f"{command.kernel.name} {command.grid} {', '.join(bound)}; {', '.join(words)}")
        else:
            rest = [f"b{number.setdefault(id(v), len(number))}" if hasattr(v, "size_bytes") else v for v in command]
            lines.append(f"{type(command).__name__} {rest}")
    return "".join([f"{line}\n" for line in lines])


class Layer(nn.Module):
    """A decoder's layer as Qwen2 has it, with a static cache of its keys and values."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2, tokens: int = 16) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.query = nn.Linear(width, width)
        self.key, self.value = (nn.Linear(width, groups * self.size) for _ in range(2))
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)
        self.norms = nn.ParameterList([torch.ones(width) for _ in range(2)])
        self.register_buffer("keys", torch.zeros(1, groups, tokens, self.size))
        self.register_buffer("values", torch.zeros(1, groups, tokens, self.size))

    def normed(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return self.norms[n] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Of (1, 1, width), the angles of its position, and that position."""

        def heads(t: torch.Tensor) -> torch.Tensor:
            return t.view(1, 1, -1, self.size).transpose(1, 2)

        def rotated(t: torch.Tensor) -> torch.Tensor:
            half = self.size // 2
            return t * cos + torch.cat((-t[..., half:], t[..., :half]), dim=-1) * sin

        y = self.normed(x, 0)
        query, key, value = rotated(heads(self.query(y))), rotated(heads(self.key(y))), heads(self.value(y))
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        mask = torch.arange(self.keys.shape[2], device=x.device) <= position
        keys, values = (t.repeat_interleave(self.heads // self.groups, 1) for t in (self.keys, self.values))
        y = F.scaled_dot_product_attention(query, keys, values, mask[None, None, None])
        x = x + self.out(y.transpose(1, 2).reshape(1, 1, -1))
        y = self.normed(x, 1)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def optimizer_of(model: nn.Module, kind: Callable[..., torch.optim.Optimizer], **kwargs: Any) -> torch.optim.Optimizer:
    """With gradients of no particular values."""
    for p in model.parameters():
        p.grad = torch.empty_like(p)
    return kind(model.parameters(), **kwargs)


def eager_adam() -> str:
    """Two steps: state is made in the first."""
    optimizer = optimizer_of(nn.Linear(6, 8).to("webgpu"), torch.optim.AdamW)
    for _ in range(2):
        torch.webgpu.flush_batch()
        optimizer.step()
    torch.webgpu.flush_batch()
    return ""


def captured_training() -> str:
    """A step with random numbers, the momentum's first one before it."""
    model = nn.Sequential(nn.PReLU(8), nn.Dropout(0.5)).to("webgpu")
    optimizer = optimizer_of(model, torch.optim.SGD, lr=0.1, momentum=0.9)
    x = torch.empty(4, 8, device="webgpu")
    optimizer.step()
    graph = torch.webgpu.Graph()
    with torch.webgpu.graph(graph):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    graph.replay()
    return commands_of(graph)


def compiled_decoding() -> str:
    layer = Layer().to("webgpu").eval()
    x, position = torch.empty(1, 1, 32, device="webgpu"), torch.empty(1, dtype=torch.int64, device="webgpu")
    cos, sin = (torch.empty(1, 1, 1, 8, device="webgpu") for _ in range(2))
    run = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        run(x, cos, sin, position)
    return ""


@dataclass(frozen=True)
class Steps:
    """What is run, and the adapters it is run on. What it returns follows its plans."""

    run: Callable[[], str]
    devices: tuple[str, ...] = ("rich", "browser")


STEPS = {
    "eager_adam": Steps(eager_adam, ALL),
    "captured_training": Steps(captured_training),
    "compiled_decoding": Steps(compiled_decoding),
}


def opened(index: int, target: str) -> Device:
    """A device that can be opened."""
    device = Device(index, OFFERS[target].adapter(CheckedWebGPU()))
    device.target = TARGETS[target]
    return device


def noted() -> dict[str, str]:
    """The plans of each of them on each of its adapters. It is the first use of the device in its process."""
    devices = tuple([opened(index, target) for index, target in enumerate(ALL)])
    runtime.provide(devices)
    torch.webgpu.set_batch_delay(0)
    results = {}
    for name, steps in STEPS.items():
        sources: dict[str, str] = {}
        for target in steps.devices:
            index = ALL.index(target)
            torch._dynamo.reset()
            torch.manual_seed(0)
            with torch.webgpu.device(index), noted_plans() as plans:
                said = steps.run()
            parts = [text(plan, target, sources) for plan in plans]
            results[f"{name}.{target}"] = "\n".join([*parts, said] if said else parts)
    return results
