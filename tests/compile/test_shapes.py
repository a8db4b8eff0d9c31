"""Dynamic shapes: one compiled graph, a plan for each set of sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torch_webgpu.compile.compiled_graph import laid_out

from .against_eager import assert_equal, check, counting


def test_sizes_known_to_vary() -> None:
    f = lambda x: F.softmax(x @ x.t(), -1).sum(0) * x.shape[0]
    compiled = torch.compile(f, dynamic=True, fullgraph=True)
    with counting() as stats:
        for n in (3, 7, 8, 20, 5, 3, 20):
            check(f, torch.randn(n, 6), compiled=compiled, calls=1)
    assert stats.graphs == 1
    assert stats.plans == 5


def test_sizes_found_to_vary() -> None:
    f = lambda x: torch.cat([x, x * 2]).relu().view(2, -1)
    compiled = torch.compile(f, fullgraph=True)
    with counting() as stats:
        for n in (4, 6, 10, 12, 7, 9):
            check(f, torch.randn(n, 6), compiled=compiled)
    assert stats.graphs == 2  # of the first size, and of any
    assert stats.plans == 6


def test_sizes_of_zero_and_one() -> None:
    f = lambda x: (x * 2).sum(-1)
    compiled = torch.compile(f, dynamic=True, fullgraph=True)
    for n in (1, 5, 0, 1, 3):
        check(f, torch.randn(n, 6), compiled=compiled)


EMPTY_INTERMEDIATES: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: (x[:0] * 2).sum(0),
    "sum of all": lambda x: (x[:0] * 2).mean(1).sum(),
    "var": lambda x: (x[:0] * 2).var(),
    "product": lambda x: (x[:0] * 2).t() @ (x[:0] + 1),
    "cat": lambda x: torch.cat([x[:0] * 2, x]),
    "scan": lambda x: (x[:0] * 2).cumsum(0).sum(0),
    "sort": lambda x: (x[:0] * 2).sort(0)[0].sum(0),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None, :0] * 2, x[None, :0].exp()),
    "returned": lambda x: (h := x[:0] * 2, h.sum(0)),
}


@pytest.mark.parametrize("name", EMPTY_INTERMEDIATES)
def test_empty_intermediates(name: str) -> None:
    """A kernel that reads an empty tensor binds a buffer that nothing wrote."""
    check(EMPTY_INTERMEDIATES[name], torch.randn(6, 6))


def test_marked_dimensions() -> None:
    f = lambda x: x.cumsum(0) / x.shape[0]
    compiled = torch.compile(f, fullgraph=True)
    with counting() as stats:
        for n in (4, 9, 30):
            x = torch.randn(n, 3, device="webgpu")
            torch._dynamo.mark_dynamic(x, 0)
            assert_equal(compiled(x), f(x), 1e-5)
    assert stats.graphs == 1


def test_training_at_several_sizes() -> None:
    model = nn.Linear(6, 5, device="webgpu")
    compiled = torch.compile(model, dynamic=True, fullgraph=True)
    for n in (3, 7, 8, 3):
        x, gradients = torch.randn(n, 6, device="webgpu"), []
        for call in (model, compiled):
            model.zero_grad()
            call(x).square().sum().backward()
            gradients.append([p.grad for p in model.parameters()])
        assert_equal(gradients[1], gradients[0], 1e-5)


def test_a_plan_for_each_length_and_no_more_than_the_cache_takes(monkeypatch) -> None:
    from torch_webgpu.compile import compiled_graph

    monkeypatch.setattr(compiled_graph, "MAX_PLANS", 4)
    f = lambda x: x.exp() + 1
    compiled = torch.compile(f, dynamic=True, fullgraph=True)
    xs = [torch.randn(n, device="webgpu") for n in range(2, 10)]

    def sweep() -> None:
        for x in xs:
            assert_equal(compiled(x), f(x))

    with counting() as stats:
        sweep()
    assert (stats.graphs, stats.plans) == (1, len(xs))
    with counting() as stats:
        for x in xs[-2:]:  # half of them at least are those that were used last
            compiled(x)
    assert (stats.graphs, stats.plans) == (0, 0)
    with counting() as stats:
        sweep()  # each one is dropped before it comes again, and made again
    assert stats.graphs == 0


def test_a_number_that_no_tensor_is_made_of_needs_no_plan_of_its_own() -> None:
    """Such as how many tokens a cache holds."""
    compiled = torch.compile(lambda x, n: (x * 2, n + 1, n), dynamic=True, fullgraph=True)
    x = torch.randn(4, device="webgpu")
    with counting() as stats:
        for n in range(2, 8):
            y, *numbers = compiled(x, n)
            assert_equal(y, x * 2)
            assert numbers == [n + 1, n]
    assert (stats.graphs, stats.plans) == (1, 1)


def test_several_dimensions_and_numbers_from_them() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n, m = x.shape[0], y.shape[1]
        mask = torch.arange(m, device=x.device)[None] < torch.arange(n, device=x.device)[:, None]
        return (x @ y).masked_fill(mask, 0.0) / (n + m)

    compiled = torch.compile(f, dynamic=True, fullgraph=True)
    for n, m in ((3, 4), (5, 4), (5, 9), (3, 4)):
        check(f, torch.randn(n, 6), torch.randn(6, m), compiled=compiled)


def test_strides_may_vary() -> None:
    f = lambda x: x * 2 + x.sum(0)
    compiled = torch.compile(f, dynamic=True)
    for x in (torch.randn(4, 5), torch.randn(5, 4).t(), torch.randn(7, 6)[:, ::2], torch.randn(6, 1).expand(6, 4)):
        check(f, x, compiled=compiled)


def test_views_of_inputs_of_several_sizes() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x[1:].add_(1)
        return x[:-1].t(), x.view(-1)

    compiled = torch.compile(f, dynamic=True)
    for n in (3, 5, 8):
        check(f, torch.randn(n, 4), compiled=compiled)


def test_results_are_laid_out_as_the_graph_knows_them() -> None:
    """PyTorch's function for fake tensors may return another layout than a kernel, also where sizes are symbols."""
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.STATIC, DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * 2])
    mode = FakeTensorMode(shape_env=ShapeEnv())
    plain, turned = torch.randn(2, 9, 4, 8), torch.randn(2, 4, 9, 8).transpose(1, 2)
    fakes = [mode.from_tensor(t, symbolic_context=dynamic) for t in (plain, turned)]
    for n in (9, 12):
        for found in (torch.randn(2, n, 4, 8), torch.randn(2, 4, n, 8).transpose(1, 2)):
            for fake, strides in zip(fakes, ((32 * n, 32, 8, 1), (32 * n, 8, 8 * n, 1))):
                result = laid_out(found, fake)
                assert result.stride() == strides
                assert torch.equal(result, found)
