"""Products whose rows are transposed before and after: multiplied in the order in which they lie."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule

from torch_webgpu.compile.matching import aten

from .against_eager import assert_equal

DEVICE = "webgpu"


def copies(gm: GraphModule) -> int:
    """Copies that bring elements into another order."""
    clones = [node for node in gm.graph.nodes if node.target is aten.clone.default]
    return sum(node.args[0].meta["val"].stride() != node.meta["val"].stride() for node in clones)


def test_multihead_attention_copies_nothing(laid_out: list[GraphModule]) -> None:
    layers = [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)]
    eager = nn.Sequential(*layers).to(DEVICE)
    model, x = deepcopy(eager), torch.randn(3, 10, 32, device=DEVICE)
    compiled = torch.compile(model)
    with torch.no_grad():
        assert_equal(compiled(x), eager(x), 1e-5)
    assert [copies(gm) for gm in laid_out] == [0]
    expected, found = eager(x), compiled(x)
    assert_equal(found, expected, 1e-5)
    expected.sin().sum().backward()
    found.sin().sum().backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        assert_equal(p.grad, q.grad, 1e-4)


def biased(x: torch.Tensor, w: torch.Tensor) -> Any:
    """A bias for each column, and one for each row, which stay where they are."""
    rows = x.transpose(0, 1).reshape(-1, x.shape[-1])
    one = torch.addmm(w[0], rows, w).view(x.shape[1], x.shape[0], -1)
    return one, torch.addmm(rows[:, :1] * 2, rows, w).view(x.shape[1], x.shape[0], -1) + 1


def seen(x: torch.Tensor, w: torch.Tensor) -> Any:
    """What else reads the rows, or a product."""
    rows = x.transpose(0, 1).reshape(-1, x.shape[-1])
    y = rows @ w
    return rows.cumsum(0), y.view(x.shape[1], x.shape[0], -1), y.cumsum(0)


def in_another_shape(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = (x.transpose(0, 1).reshape(-1, x.shape[-1]) @ w).view(x.shape[0], x.shape[1], -1)
    return y.softmax(1), F.linear(x.transpose(0, 1), w.t()).view(-1, w.shape[1]).cumsum(0)


def heads(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Rows of four dimensions, which lie apart in some orders."""
    x = x.unflatten(-1, (2, -1))
    return [F.linear(x.permute(order).flatten(2), w.t()).transpose(0, 1) for order in ((1, 0, 2, 3), (1, 0, 3, 2))]


@pytest.mark.parametrize("program", [biased, seen, in_another_shape, heads], ids=lambda f: f.__name__)
def test_programs(laid_out: list[GraphModule], program: Any) -> None:
    x, w = torch.randn(3, 5, 8, device=DEVICE), torch.randn(8, 6, device=DEVICE)
    with torch.no_grad():
        assert_equal(torch.compile(program)(x, w), program(x, w), 1e-5)
    assert len(laid_out) == 1
