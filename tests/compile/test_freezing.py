"""``torch.compile(model, options={"freezing": True})``: what depends on parameters alone is computed once."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch._inductor
import torch._inductor.config as inductor
from tests.compile.plans import plans
from torch import Tensor, nn

FREEZING = {"freezing": True}


class Layers(nn.Module):
    """Weights that are transformed on the way: normalised, cast by autocast, a buffer that becomes a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.utils.parametrizations.weight_norm(nn.Linear(12, 8)), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.seen: Tensor
        self.register_buffer("seen", torch.ones(8, 8).tril(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x).relu())
        return self.second(x.masked_fill(self.seen[: len(x)] == 0, 0.5)) @ (self.second.weight * 2).exp().t()


def made() -> tuple[Layers, Tensor]:
    model = Layers().eval()
    return model, torch.randn(5, 12)


class Scaled(nn.Module):
    """A product with a function of its weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight * 0.5).tanh()


@pytest.mark.parametrize("how", ["options", "backend", "config"])
def test_what_depends_on_parameters_is_computed_once(how: str) -> None:
    model, x = made()
    with torch.no_grad():
        expected = model(x)
        model, x = model.to("webgpu"), x.to("webgpu")
        with plans() as found:
            plain = torch.compile(model)(x)
        torch._dynamo.reset()
        with inductor.patch(freezing=how == "config"), plans() as frozen:
            settings: dict[str, Any] = {"config": {}, "options": {"options": FREEZING}}.get(
                how, {"options": FREEZING, "backend": "webgpu"}
            )
            compiled = torch.compile(model, fullgraph=True, **settings)
            results = [compiled(x) for _ in range(3)]
    torch.testing.assert_close(plain.cpu(), expected)
    for y in results:
        torch.testing.assert_close(y.cpu(), expected)
    (whole,), (constants, rest) = found, frozen
    assert len(constants.steps) > 0
    assert len(rest.steps) < len(whole.steps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_are_cast_once_for_autocast(dtype: torch.dtype) -> None:
    model, x = made()
    model, x = model.to("webgpu"), x.to("webgpu")
    casts = []
    for options in ({}, FREEZING):
        torch._dynamo.reset()
        with torch.no_grad(), torch.autocast("webgpu", dtype), plans() as found:
            compiled = torch.compile(model, options=options)
            y, expected = [compiled(x) for _ in range(2)][1], model(x)
        torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
        casts.append(len(found[-1].steps))
    assert casts[1] < casts[0]


def test_writes_are_not_seen_and_other_tensors_are() -> None:
    model, x = Scaled(4).to("webgpu"), torch.randn(3, 4, device="webgpu")
    with torch.no_grad():
        f = torch.compile(model, options=FREEZING)
        before = f(x)
        model.weight.zero_()
        torch.testing.assert_close(f(x), before)
        model.weight = nn.Parameter(torch.ones(4, 4, device="webgpu"))
        torch.testing.assert_close(f(x), model(x))
        model.weight.zero_()
        torch._dynamo.reset()
        torch.testing.assert_close(f(x), torch.zeros_like(x))


def test_modules_that_share_a_graph() -> None:
    """As when each layer is compiled by itself: one graph, and constants for each."""
    layers = [Scaled(6) for _ in range(3)]
    x = torch.randn(2, 6)
    with torch.no_grad():
        expected = [layer(x) for layer in layers]
        for layer in layers:
            layer.to("webgpu").compile(options=FREEZING)
        before = torch.webgpu.compile_stats().graphs
        for _ in range(2):
            for layer, want in zip(layers, expected, strict=True):
                torch.testing.assert_close(layer(x.to("webgpu")).cpu(), want)
    assert torch.webgpu.compile_stats().graphs == before + 1


def test_constants_live_as_long_as_the_parameters() -> None:
    layer = Scaled(512).to("webgpu")
    x = torch.randn(2, 512, device="webgpu")

    def f(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x)

    compiled = torch.compile(f, options=FREEZING)
    with torch.no_grad():
        compiled(layer, x)
    held = torch.webgpu.memory_allocated()
    del layer
    gc.collect()
    assert held - torch.webgpu.memory_allocated() >= 2 * 512 * 512 * 4


def test_what_is_returned_is_the_callers() -> None:
    model, x = nn.Linear(4, 4, device="webgpu"), torch.randn(3, 4, device="webgpu")

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w = model.weight.exp()
        return x @ w, w, (w + 1).t()[1:]

    with torch.no_grad():
        compiled, expected = torch.compile(f, options=FREEZING), f(x)
        for _ in range(2):
            results = compiled(x)
            torch.testing.assert_close(results, expected)
            for y in results:
                y.zero_()


def test_buffers_that_a_graph_writes_and_tensors_of_no_module() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count: Tensor
            self.register_buffer("count", torch.zeros(3, device="webgpu"))
            self.cache = torch.zeros(3, device="webgpu")

        def forward(self, x: Tensor) -> Tensor:
            y = x * (self.count + 1).exp() + (self.cache * 2).exp()
            self.count.add_(1)
            return y

    model, other = Counts(), Counts()
    compiled, x = torch.compile(model, options=FREEZING), torch.ones(3, device="webgpu")
    with torch.no_grad():
        for n in range(3):
            for m in (model, other):
                m.cache.fill_(n)
            torch.testing.assert_close(compiled(x), other(x))


def test_training_and_dynamic_shapes() -> None:
    model, _ = made()
    model = model.to("webgpu")
    compiled = torch.compile(model, options=FREEZING, dynamic=True)
    for n in (3, 5, 4):
        x = torch.randn(n, 12, device="webgpu")
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
        compiled(x).square().sum().backward()
        grads = [p.grad for p in model.parameters()]
        model.zero_grad()
        model(x).square().sum().backward()
        torch.testing.assert_close(grads, [p.grad for p in model.parameters()])
        model.zero_grad()


@pytest.mark.parametrize("backend", ["webgpu", "inductor"])
def test_options_are_inductors(backend: str) -> None:
    x = torch.ones(3, device="webgpu")
    known = {"max_autotune": True, "triton.cudagraphs": True, "epilogue_fusion": False}
    assert known.keys() <= set(torch._inductor.list_options())
    torch.testing.assert_close(torch.compile(torch.exp, backend=backend, options=known)(x), x.exp())
    torch.testing.assert_close(torch.compile(torch.sin, backend=backend, mode="max-autotune")(x), x.sin())
    for options, words in (
        ({"frezing": True}, "Unexpected optimization option frezing, known options are"),
        ({"freezing": "yes"}, "Unexpected type of attr freezing"),
    ):
        with pytest.raises(Exception, match=words):
            torch.compile(torch.cos, backend=backend, options=options)(x)
    with pytest.raises(Exception, match="Unrecognized mode"):
        torch.compile(torch.tan, backend=backend, mode="fastest")(x)
