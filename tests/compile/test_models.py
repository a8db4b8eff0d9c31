"""Models, compiled: forward, backward, three optimizer steps and generation, against eager and the CPU.

Those of ``transformers`` are small and have random weights. One of each kind is in the usual run, ``--full`` runs all.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from tests.conformance.target import DEVICE
from tests.ecosystem.architectures import ARCHITECTURES
from torch.utils._pytree import tree_map_only

from .against_eager import assert_equal, counting

STEPS = 3
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def named(names: str, usual: str) -> list[Any]:
    """Names as parameters of a test: those that are not in the usual run marked slow."""
    return [pytest.param(n, marks=() if n in usual.split() else pytest.mark.slow) for n in names.split()]


def to(tree: Any, device: torch.device | str) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.to(device), tree)


# PyTorch alone


class Block(nn.Module):
    """A residual block of a ResNet, which halves the image where it widens it."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        stride = 1 if n == m else 2
        self.convs = nn.ModuleList([nn.Conv2d(n, m, 3, stride, 1, bias=False), nn.Conv2d(m, m, 3, 1, 1, bias=False)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(m), nn.BatchNorm2d(m)])
        self.short = nn.Identity() if n == m else nn.Sequential(nn.Conv2d(n, m, 1, 2, bias=False), nn.BatchNorm2d(m))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.convs[0](x)), inplace=True)
        return F.relu(self.norms[1](self.convs[1](y)) + self.short(x))


def resnet() -> nn.Module:
    stem = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, Block(8, 8), Block(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


class UNet(nn.Module):
    """Two levels, as diffusion models have them: group norms, a time step, skipped connections, upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.enter, self.down, self.middle = (
            nn.Conv2d(n, m, 3, s, 1) for n, m, s in ((3, 8, 1), (8, 16, 2), (16, 16, 1))
        )
        self.norm, self.up, self.leave = nn.GroupNorm(4, 16), nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(len(x), device=x.device)[:, None] * torch.linspace(0.1, 1, 4, device=x.device)
        time = self.time(torch.cat([steps.sin(), steps.cos()], 1))
        high = F.silu(self.enter(x))
        low = self.down(high)
        low = low + F.silu(self.norm(self.middle(low) + time[:, :, None, None]))
        blurred = F.interpolate(low, scale_factor=2, mode="nearest")[:, :8] + self.up(low)
        return self.leave(torch.cat([blurred, high], 1))


class Recurrent(nn.Module):
    """Words, a bidirectional LSTM of two layers, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cells = nn.Embedding(20, 6), nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        outputs, (last, _) = self.cells(self.words(ids))
        return self.head(outputs.mean(1) + torch.cat([last[-2], last[-1]], 1))


PLAIN: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "resnet": (resnet, lambda: torch.randn(2, 3, 32, 32)),
    "unet": (UNet, lambda: torch.randn(2, 3, 8, 8)),
    "lstm": (Recurrent, lambda: torch.randint(0, 20, (2, 6))),
}


def plain(name: str) -> tuple[nn.Module, Callable[[Any, Any], torch.Tensor], Any]:
    make, inputs = PLAIN[name]
    torch.manual_seed(0)
    return make(), lambda model, x: model(x).square().mean(), inputs()


def from_transformers(name: str) -> tuple[nn.Module, Callable[[Any, Any], torch.Tensor], Any]:
    return ARCHITECTURES[name].model(), lambda model, batch: model(**batch).loss, ARCHITECTURES[name].batch()


# Training


def train(model: nn.Module, run: Any, loss_of: Callable[[Any, Any], torch.Tensor], batch: Any) -> list[list[Any]]:
    """Of each of the steps: the loss, the gradients, and what the model is afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(run, batch)
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        steps.append([loss.detach(), gradients, [t.detach().clone() for t in model.state_dict().values()]])
    return steps


def check_training(model: nn.Module, loss_of: Callable[[Any, Any], torch.Tensor], batch: Any) -> None:
    host, eager, twin = (copy.deepcopy(model).to(device) for device in ("cpu", DEVICE, DEVICE))
    given = to(batch, DEVICE)
    wanted = train(eager, eager, loss_of, given)
    with counting() as stats:
        found = train(twin, torch.compile(twin), loss_of, given)
    assert_equal(found, wanted, 2e-5, strides=False)
    assert_equal(found, train(host, host, loss_of, batch), 1e-3, strides=False)
    assert stats.graphs == stats.plans <= 4  # some set a field of their configuration in the first step, or log
    assert stats.runs >= 2 * STEPS


@pytest.mark.parametrize("name", named(" ".join(PLAIN), usual="unet"))
def test_training(name: str) -> None:
    with torch._dynamo.config.patch(allow_rnn=True):  # or else the LSTM is a graph break
        check_training(*plain(name))


@needs_transformers
@pytest.mark.parametrize("name", named("gpt2 llama qwen2 mistral gemma bert t5 vit clip whisper", usual="llama"))
def test_training_of_transformers(name: str) -> None:
    check_training(*from_transformers(name))


# Generation

WAYS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
}


def generate(model: Any, batch: Any, **options: Any) -> torch.Tensor:
    inputs = {k: v for k, v in batch.items() if isinstance(v, torch.Tensor) and k != "labels"}
    given = {"max_new_tokens": 8, "do_sample": False, "repetition_penalty": 2.0, **options}
    return model.generate(**to(inputs, model.device), **given).cpu()


@needs_transformers
@pytest.mark.parametrize("way", named(" ".join(WAYS), usual="static"))
@pytest.mark.parametrize("name", named("gpt2 llama qwen2 mistral gemma t5 whisper", usual="gpt2"))
def test_generation(name: str, way: str) -> None:
    """With a static cache ``generate`` compiles by itself; with a dynamic one, the model is compiled before."""
    architecture, options = ARCHITECTURES[name], WAYS[way]
    batch = architecture.batch()
    expected = generate(architecture.model(), batch, **options)
    assert len(set(expected.flatten().tolist())) > 4, "the model repeats itself: equal tokens would say nothing"
    model: Any = architecture.model().to(DEVICE)
    if way == "dynamic":
        model.forward = torch.compile(model.forward, dynamic=True)
    with counting() as stats:
        actual = generate(model, batch, **options)
        again = generate(model, batch, **options)
    assert actual.tolist() == again.tolist() == expected.tolist()
    assert stats.runs >= 2 * 7
    if way == "static":
        assert stats.between == set()
        assert stats.plans <= 2  # until the window of attention is full, and then


@needs_transformers
def test_generation_is_not_compiled_where_that_is_not_wanted() -> None:
    model: Any = ARCHITECTURES["gpt2"].model().to(DEVICE)
    with counting() as stats:
        generate(model, ARCHITECTURES["gpt2"].batch(), max_new_tokens=3)
        generate(
            model, ARCHITECTURES["gpt2"].batch(), max_new_tokens=3, cache_implementation="static", disable_compile=True
        )
    assert stats.graphs == 0
