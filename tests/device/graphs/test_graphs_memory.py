"""The memory of captured graphs: theirs as long as they live, nobody's afterwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torch_webgpu.engine.record import engine

from .graphs import (
    captured,
    goes_on,  # noqa: F401  runs around every test
    in_use,
)


def test_memory_is_the_graphs_until_it_dies(device):
    x = torch.ones(100_000, device=device)
    size = 400_000
    before = in_use()
    g, y = captured(lambda: (x.cumsum(0) * 2).cumsum(0).flip(0).contiguous())
    held = in_use() - before
    assert held >= 2 * size
    # Intermediates share memory by lifetime, even though there are more of them.
    assert held < 4 * size
    others = [torch.full_like(x, float(k)) for k in range(12)]
    g.replay()
    expected = y.clone()
    assert all(t.eq(k).all() for k, t in enumerate(others))
    del others
    g.replay()
    assert torch.equal(y, expected)
    del expected
    g.reset()
    y += 1  # a tensor outlives its graph
    assert size <= in_use() - before < 2 * size
    del y
    assert in_use() == before


def test_memory_comes_back_when_the_graph_is_forgotten(device):
    x = torch.ones(50_000, device=device)
    before = in_use()
    g, y = captured(lambda: x.cumsum(0).cumsum(0))
    assert in_use() > before
    del g, y
    assert in_use() == before


def test_an_input_that_dies_stays_the_graphs(device):
    inputs = [torch.full((50_000,), 3.0, device=device)]
    before = in_use()
    g, y = captured(lambda: inputs[0] + 1)
    inputs.clear()
    others = [torch.full((50_000,), float(k), device=device) for k in range(4)]
    g.replay()
    assert y.eq(4).all()
    assert all(t.eq(k).all() for k, t in enumerate(others))
    del others, y, g
    assert in_use() < before


def test_what_dies_inside_the_capture_is_given_to_nobody_outside(device):
    x = torch.full((20_000,), 2.0, device=device)

    def step() -> torch.Tensor:
        nonlocal x
        y = x * 2
        x = torch.zeros(1, device=device)
        return y.cumsum(0)

    g, y = captured(step)
    others = [torch.full((20_000,), -1.0, device=device) for _ in range(8)]
    for _ in range(2):
        g.replay()
        assert torch.equal(y.cpu(), torch.arange(1, 20_001) * 4.0)
    assert all(t.eq(-1).all() for t in others)


def test_dead_inputs_are_told_when_asked_for(device):
    inputs = [torch.ones(3, device=device), torch.ones(3, device=device)]
    g, y = captured(lambda: inputs[0] + inputs[1], check_input_liveness=True)
    g.replay()
    inputs.pop()
    with pytest.raises(RuntimeError, match=r"1 dead tensor"):
        g.replay()
    assert y.tolist() == [2, 2, 2]


def test_two_graphs_share_a_pool(device):
    x = torch.randn(30_000, device=device)

    def step() -> torch.Tensor:
        return x.cumsum(0).flip(0).contiguous().cumsum(0).sum()

    g, a = captured(step)
    before = in_use()
    h, b = captured(step, pool=g.pool())
    shared = in_use() - before
    assert h.pool() == g.pool()
    k, c = captured(step, pool=torch.webgpu.graph_pool_handle())
    assert shared < in_use() - before - shared
    x.copy_(torch.randn(30_000))
    expected = step().item()
    for graph, result in ((g, a), (h, b), (k, c)):
        graph.replay()
        assert result.item() == expected
    g.reset()
    h.replay()
    assert b.item() == expected
    assert torch.webgpu.graph_pool_handle() != torch.webgpu.graph_pool_handle()


def test_a_graph_uses_what_another_made(device):
    x = torch.ones(4, device=device)
    g, y = captured(lambda: [x * 2])
    h, z = captured(lambda: y[0] + 1)
    x.fill_(5)
    g.replay()
    h.replay()
    assert z.tolist() == [11] * 4
    y.clear()
    g.reset()
    others = [torch.zeros(4, device=device) for _ in range(4)]
    h.replay()
    assert z.tolist() == [11] * 4
    assert all(t.eq(0).all() for t in others)


def test_cached_objects_may_be_evicted(device):
    x = torch.ones(8, device=device)
    g, y = captured(lambda: (x * 3).cumsum(0))
    opened = engine().device(0)._opened
    with engine().lock:
        opened.pipelines._pipelines.evict()
    torch.webgpu.empty_cache()
    x.fill_(2)
    g.replay()
    assert y.tolist() == [6.0 * k for k in range(1, 9)]


def test_graphs_that_come_and_go_leave_nothing(device):
    x = torch.randn(2_000, device=device)

    def once() -> None:
        g, y = captured(lambda: F.dropout(x.cumsum(0), 0.5).flip(0).contiguous())
        g.replay()
        y.sum().item()

    once()
    before, reserved = in_use(), torch.webgpu.memory_reserved()
    for _ in range(20):
        once()
    assert in_use() == before
    assert torch.webgpu.memory_reserved() <= reserved
