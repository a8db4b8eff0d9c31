"""Rotary embeddings that go into a cache: written there by the kernel that computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compile.plans import dispatches, plans

TOLERANCE = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def write(cache: torch.Tensor, rows: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
    return cache.index_copy_(2, rows, rotary(*args)).sum(-1)


def inputs(shape: tuple[int, ...], rows: list[int], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """A cache (B, H, R, D), rows, and what a rotary embedding of (B, H, S, D) takes, x lying as (B, S, H, D)."""
    b, h, _, d = shape
    s = len(rows)
    x = torch.randn(b, s, h, d).to("webgpu", dtype).transpose(1, 2)
    cos, sin = (torch.randn(b, 1, s, d).to("webgpu", dtype) for _ in range(2))
    return torch.randn(shape).to("webgpu", dtype), torch.tensor(rows, device="webgpu"), x, cos, sin


def compare(f: Callable[..., Any], cache: torch.Tensor, *args: torch.Tensor) -> int:
    """Checks results and the cache against eager mode and the CPU's; how many dispatches there are."""
    tolerance = TOLERANCE[cache.dtype]
    own, on_cpu = cache.clone(), cache.cpu()
    with plans() as made:
        got = torch.compile(f, fullgraph=True)(own, *args)
    want, reference = f(cache, *args), f(on_cpu, *[t.cpu() for t in args])
    torch.testing.assert_close(own, cache, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(own.cpu(), on_cpu, rtol=10 * tolerance, atol=10 * tolerance)
    if got is not None:
        torch.testing.assert_close(got, want, rtol=20 * tolerance, atol=20 * tolerance)
        torch.testing.assert_close(got.cpu(), reference, rtol=20 * tolerance, atol=20 * tolerance)
    return dispatches(made)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("shape", "rows"), [((1, 2, 9, 8), [4]), ((2, 3, 7, 6), [6, 0, 3]), ((1, 1, 3, 2), [1, 2]), ((2, 1, 5, 64), [0])]
)
def test_a_write(shape: tuple[int, ...], rows: list[int], dtype: torch.dtype, found: dict[str, int]) -> None:
    assert compare(write, *inputs(shape, rows, dtype)) == 2  # with the sum
    assert found == {"rotary": 1, "rotary into a cache": 1}


def test_keys_and_values_of_a_token(found: dict[str, int]) -> None:
    """The queries' embedding, the keys' into their cache and the values: one dispatch."""

    def step(
        k: torch.Tensor, rows: torch.Tensor, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        k.index_copy_(2, rows, rotary(x, cos, sin))
        v.index_copy_(2, rows, x)
        return rotary(x * 2, cos, sin)

    cache, rows, x, cos, sin = inputs((1, 2, 9, 8), [4])
    assert compare(step, cache, rows, x, cos, sin, torch.zeros_like(cache)) <= 2  # x * 2 comes first
    assert found == {"rotary": 2, "rotary into a cache": 1}


def test_a_cache_that_nothing_reads(found: dict[str, int]) -> None:
    def only_write(cache: torch.Tensor, rows: torch.Tensor, *args: torch.Tensor) -> None:
        cache.index_copy_(2, rows, rotary(*args))

    assert compare(only_write, *inputs((1, 2, 9, 8), [4])) == 1
    assert found["rotary into a cache"] == 1


def test_a_row_out_of_range_is_noticed() -> None:
    cache, rows, *args = inputs((1, 2, 9, 8), [9])
    with pytest.raises(IndexError, match="9"):
        torch.compile(write)(cache, rows, *args).cpu()


OTHERS: dict[str, Callable[..., Any]] = {
    "needed by itself": lambda c, i, *a: c.index_copy_(2, i, r := rotary(*a)).sum() + r,
    "added": lambda c, i, *a: c.index_add_(2, i, rotary(*a)).sum(-1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_looks_like_it_is_left_alone(name: str, found: dict[str, int]) -> None:
    compare(OTHERS[name], *inputs((1, 2, 9, 8), [4, 2]))
    assert found == {"rotary": 1}


def test_deterministic_algorithms(found: dict[str, int]) -> None:
    """Of several writes into one row the last one counts."""
    torch.use_deterministic_algorithms(True)
    try:
        compare(write, *inputs((1, 2, 9, 8), [4, 2, 4]))
    finally:
        torch.use_deterministic_algorithms(False)
    assert found == {"rotary": 1}
