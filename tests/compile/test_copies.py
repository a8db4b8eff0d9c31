"""Copies of intermediate results move up to where these are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_webgpu.compile import copies

from .against_eager import assert_equal
from .plans import dispatches, plans

DEVICE = "webgpu"


def graph_of(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def order_of(gm: torch.fx.GraphModule) -> list[str]:
    return [str(node.target).removeprefix("aten.").partition(".")[0] for node in gm.graph.nodes if node.users]


def test_a_copy_and_its_views_move_to_their_source() -> None:
    def late(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        total = (y @ y).sum(0) * 2
        return total, y.t().to(torch.float16)

    x = torch.randn(4, 4, device=DEVICE)
    gm = graph_of(late, x)
    before = order_of(gm)
    assert copies.apply(gm) == 1
    after = order_of(gm)
    assert before.index("mm") < before.index("t") < before.index("_to_copy")
    assert [after.index(name) - after.index("exp") for name in ("t", "_to_copy", "mm")] == [1, 2, 3]
    assert_equal(gm(x), late(x))
    assert copies.apply(gm) == 0


def still_read(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.exp()
    z = (y @ y).sum(0)
    return y.half(), y + z


def returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.exp()
    return (y @ y).half(), y.t()


def of_an_input(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x @ x).sum(0) * 2, x.half()


def larger(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.half()
    return (y @ y).sum(0) * 2, y.float()


@pytest.mark.parametrize("function", [still_read, returned, of_an_input, larger])
def test_copies_that_stay(function) -> None:
    gm = graph_of(function, torch.randn(4, 4, device=DEVICE))
    before = order_of(gm)
    assert copies.apply(gm) == 0
    assert order_of(gm) == before


def test_what_is_written_in_between_is_copied_afterwards() -> None:
    def written(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        z = (y @ y).sum(0)
        y[0].mul_(3)
        return z, y.half()

    x = torch.randn(4, 4, device=DEVICE)
    gm = graph_of(written, x)
    assert copies.apply(gm) == 0
    assert_equal(torch.compile(written)(x), written(x))


def test_a_moved_copy_is_part_of_its_sources_kernel() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.softmax(1)
        return (y @ y) @ x, y.t().half()

    x = torch.randn(300, 300, device=DEVICE)
    with plans() as made:
        assert_equal(torch.compile(step)(x), step(x), 1e-5)
    assert dispatches(made) == 3
