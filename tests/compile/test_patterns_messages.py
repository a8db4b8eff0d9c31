"""Sums of messages along a graph's edges: gathered as they are added, where that is as much as there is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.compile.against_eager import assert_equal
from torch import nn

from torch_webgpu.aten.indexing import indexing, scatter
from torch_webgpu.compile import messages_pattern

NODES, EDGES = 40, 300
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are taken in order, as they are on GPUs."""
    for module in (indexing, scatter, messages_pattern):
        monkeypatch.setattr(module, "pays", lambda t, *_: t.dtype == torch.float32)


def by_index_add(x: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add(0, ends, x[starts] * w[:, None])


def by_scatter_add(x: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As PyG does: an index is as wide as what it names."""
    messages = w.view(-1, 1) * x.index_select(0, starts)
    return x.new_zeros(x.shape).scatter_add(0, ends.view(-1, 1).expand_as(messages), messages)


def without_weights(x: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add(0, ends, x.index_select(0, starts))


def to_a_sum(x: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x + 1).index_add(0, ends, x[starts] * w[:, None])


def put(x: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(x.shape).index_put((ends,), w.unsqueeze(1) * x[starts], accumulate=True)


FUNCTIONS = [by_index_add, by_scatter_add, without_weights, to_a_sum, put]


def graph(features: int, dtype: torch.dtype = torch.int64) -> tuple[torch.Tensor, ...]:
    ends = torch.randint(0, NODES, (2, EDGES), dtype=dtype)
    return torch.randn(NODES, features), ends[0], ends[1], torch.rand(EDGES)


def compiled_and_not(fn: Function, *inputs: torch.Tensor) -> tuple[Any, Any]:
    """The result and the gradient of the first input, on webgpu and on the CPU."""
    pairs = []
    for device in ("webgpu", "cpu"):
        given = [t.to(device) for t in inputs]
        given[0].requires_grad_()
        y = (torch.compile(fn, fullgraph=True) if device == "webgpu" else fn)(*given)
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape).to(device)).sum().backward()
        pairs.append((y, given[0].grad))
    return pairs[0], pairs[1]


@pytest.mark.parametrize("features", [8, 5])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_messages_are_not_made(fn: Function, features: int, found: dict[str, int]) -> None:
    ours, theirs = compiled_and_not(fn, *graph(features))
    assert_equal(ours, theirs, 1e-4)
    assert found["messages"] == 2  # forward and backward


def test_layers_put_edges_in_order_once(found: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    order = messages_pattern.order_of_vector
    monkeypatch.setattr(messages_pattern, "order_of_vector", lambda *a: made.append(1) or order(*a))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def forward(self, x: torch.Tensor, *edges: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = F.relu(by_index_add(layer(x), *edges))
            return x

    theirs = Network()
    ours, inputs = copy.deepcopy(theirs).to("webgpu"), graph(8)
    got, want = torch.compile(ours)(*[t.to("webgpu") for t in inputs]), theirs(*inputs)
    got.square().sum().backward()
    want.square().sum().backward()
    assert_equal(got, want, 1e-4)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-4)
    assert found["messages"] == 6
    assert len(made) == 2  # by the ends and, backward, by the starts


def test_indices_of_32_bits_and_from_the_end(found: dict[str, int]) -> None:
    x, starts, ends, w = graph(8, torch.int32)
    assert_equal(*compiled_and_not(by_index_add, x, starts.long() - NODES, ends, w), 1e-4)
    assert found["messages"] == 2


@pytest.mark.parametrize("fn", [by_index_add, without_weights])
@pytest.mark.parametrize("wrong", ["starts", "ends"])
def test_what_is_out_of_range_is_told(fn: Function, wrong: str) -> None:
    x, starts, ends, w = graph(8)
    (starts if wrong == "starts" else ends)[7] = NODES
    with pytest.raises((IndexError, RuntimeError), match=f"index {NODES} is out of bounds.* with size {NODES}|out of"):
        torch.compile(fn)(*[t.to("webgpu") for t in (x, starts, ends, w)]).cpu()
    assert torch.ones(2, device="webgpu").sum().item() == 2


def test_what_others_see_is_made(found: dict[str, int]) -> None:
    def messages_too(x, starts, ends, w):
        messages = x[starts] * w[:, None]
        return torch.zeros_like(x).index_add(0, ends, messages), messages

    def weighted_by_column(x, starts, ends, w):
        return torch.zeros_like(x).index_add(0, ends, x[starts] * w[: x.shape[1]])

    def of_columns(x, starts, ends, w):
        return torch.zeros(NODES, NODES, device=x.device).index_add(1, ends[:8], (x[starts] * w[:, None])[:NODES])

    inputs = graph(8)
    for fn in (messages_too, weighted_by_column, of_columns):
        ours, theirs = torch.compile(fn)(*[t.to("webgpu") for t in inputs]), fn(*inputs)
        assert_equal(ours, theirs, 1e-4)
    assert found["messages"] == 0


def test_weights_that_learn(found: dict[str, int]) -> None:
    """Their gradients are sums over features: messages' rows are gathered for them."""
    x, starts, ends, w = graph(8)
    results = []
    for device in ("webgpu", "cpu"):
        given = [t.to(device) for t in (x, starts, ends)]
        given[0].requires_grad_()
        weights = w.to(device).requires_grad_()
        y = (torch.compile(by_index_add) if device == "webgpu" else by_index_add)(*given, weights)
        y.square().sum().backward()
        results.append((y, given[0].grad, weights.grad))
    assert_equal(*results, 1e-3)


def test_keys_that_are_written_between(found: dict[str, int]) -> None:
    def moved(x, starts, ends, w):
        one = by_index_add(x, starts, ends, w)
        ends.copy_((ends + 1) % NODES)
        return one + by_index_add(x, starts, ends, w)

    inputs = graph(8)
    got = [t.to("webgpu") for t in inputs]
    assert_equal(torch.compile(moved)(*got), moved(*inputs), 1e-4)
    assert_equal(got[2], inputs[2], strides=False)
