"""Attention's operands as views of where they come from: that they have the same elements."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx import GraphModule

from torch_webgpu.compile import strided_heads
from torch_webgpu.compile.matching import ATTENTION, aten

from .against_eager import assert_equal

DEVICE = "webgpu"


def copied_operands(gm: GraphModule) -> int:
    attention = [node for node in gm.graph.nodes if node.target in ATTENTION]
    assert attention
    return sum(x.target is aten.clone.default for node in attention for x in node.all_input_nodes)


def split(x: torch.Tensor) -> Any:
    return [t.unflatten(-1, (2, 8)).transpose(1, 2).contiguous() for t in x.split(16, -1)]


def split_with_sizes(x: torch.Tensor) -> Any:
    q, kv = x.split((16, 32), -1)
    k, v = kv.contiguous().unflatten(-1, (2, 2, 8)).unbind(2)
    return [t.transpose(1, 2) for t in (q.unflatten(-1, (2, 8)), k, v)]


def packed_first(x: torch.Tensor) -> Any:
    x = x.unflatten(-1, (3, 16)).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
    return [t.view(5, 6 * 2, 8).transpose(0, 1).view(6, 2, 5, 8).transpose(0, 1)[:, :3] for t in x]


def sliced(x: torch.Tensor) -> Any:
    x = x.contiguous()[1:, :, -48:].reshape(5, 3, 3, 2, 8).permute(2, 0, 3, 1, 4).clone()
    return [x[k] for k in range(3)]


def in_steps(x: torch.Tensor) -> Any:
    """Which are no view that is followed."""
    return [x[:, ::2, 8 * k : 8 * k + 16].unflatten(-1, (2, 8)).transpose(1, 2).contiguous() for k in range(3)]


PROGRAMS = {
    split: (4, 6, 48),
    split_with_sizes: (4, 6, 48),
    packed_first: (5, 6, 48),
    sliced: (6, 3, 48),
    in_steps: (4, 6, 48),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs(laid_out: list[GraphModule], program: Callable[[torch.Tensor], Any]) -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*program(x * 1.5)).sin()

    x = torch.randn(PROGRAMS[program], device=DEVICE)
    with torch.no_grad():
        assert_equal(torch.compile(attend)(x), attend(x), 1e-5)
    assert copied_operands(laid_out[0]) == (3 if program is in_steps else 0)
    here, there = x.clone().requires_grad_(), x.clone().requires_grad_()
    for fn, leaf in ((attend, here), (torch.compile(attend), there)):
        fn(leaf).square().sum().backward()
    assert_equal(there.grad, here.grad, 1e-4)


@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention(laid_out: list[GraphModule], batch_first: bool) -> None:
    """PyTorch's module packs queries, keys and values, and merges heads with the batch."""
    eager = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=batch_first, norm_first=True).to(DEVICE)
    model, x = deepcopy(eager), torch.randn(3, 10, 32, device=DEVICE)
    expected, found = eager(x), torch.compile(model)(x)
    assert_equal(found, expected, 1e-5)
    expected.sin().sum().backward()
    found.sin().sum().backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        assert_equal(p.grad, q.grad, 1e-4)
    assert [copied_operands(gm) for gm in laid_out] == [0]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_chains_of_views_have_the_elements_of_what_they_follow(data: st.DataObject) -> None:
    """Whatever views and copies follow each other: where there is one view, it has the elements of all of them."""
    graph = torch.fx.Graph()
    shape = data.draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=2, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    base = torch.arange(torch.Size(shape).numel()).view([shape[d] for d in order])
    base = base.permute([order.index(d) for d in range(len(shape))])
    node = graph.call_function(aten.mul.Tensor, (graph.placeholder("x"), 1))
    node.meta["val"] = base

    def call(target: Any, *args: Any) -> None:
        nonlocal node
        source = node
        node = graph.call_function(target, (source, *args))
        node.meta["val"] = target(source.meta["val"], *args)

    for _ in range(data.draw(st.integers(1, 6))):
        t = node.meta["val"]
        dim = data.draw(st.integers(-t.dim(), t.dim() - 1)) if t.dim() else 0
        kind = data.draw(st.sampled_from(("clone", "view", "permute", "transpose", "unsqueeze", "squeeze", "part")))
        if kind == "clone":
            call(aten.clone.default)
        elif kind == "view":
            sizes, rest = [], t.numel()
            while rest > 1 and len(sizes) < 4:
                sizes.append(data.draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0])))
                rest //= sizes[-1]
            call(aten.reshape.default, [*sizes, rest])
        elif kind == "permute" and t.dim():
            call(aten.permute.default, data.draw(st.permutations(range(t.dim()))))
        elif kind == "transpose" and t.dim():
            call(aten.transpose.int, dim, data.draw(st.integers(-t.dim(), t.dim() - 1)))
        elif kind == "unsqueeze":
            call(aten.unsqueeze.default, dim)
        elif kind == "squeeze" and t.dim():
            call(aten.squeeze.dim, dim)
        elif kind == "part" and t.dim() and t.shape[dim]:
            start = data.draw(st.integers(-t.shape[dim], t.shape[dim] - 1))
            if data.draw(st.booleans()):
                call(aten.select.int, dim, start)
            else:
                call(aten.slice.Tensor, dim, start, data.draw(st.sampled_from((2**63 - 1, 2, -1))))
    is_webgpu, strided_heads.is_webgpu = strided_heads.is_webgpu, lambda t: True
    try:
        chain = strided_heads.chain_to(node)
    finally:
        strided_heads.is_webgpu = is_webgpu
    if chain is not None and (view := strided_heads.as_view(chain, base)) is not None:
        assert torch.equal(torch.as_strided(base, view.sizes, view.strides, view.offset), node.meta["val"])
