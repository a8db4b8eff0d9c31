"""Parts of inputs that a compiled function writes: where they are, without a copy of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compile.plans import dispatches, plans

from torch_webgpu.compile import backend, in_place

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many copies went, of each graph that is compiled from now on."""
    counts: list[int] = []
    apply = in_place.apply
    monkeypatch.setattr(backend.in_place, "apply", lambda gm: counts.append(apply(gm)))
    return counts


def compare(f: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """Checks results and what is written against eager mode; the number of the compiled function's dispatches."""
    given, on_cpu = [t.clone() for t in inputs], [t.cpu() for t in inputs]
    with plans() as made:
        got = torch.compile(f, fullgraph=True)(*given)
    want, reference = f(*inputs), f(*on_cpu)
    for one, other in zip((got, *given), (want, *inputs), strict=True):
        assert torch.equal(one, other)
    for one, other in zip((got, *given), (reference, *on_cpu), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-2, atol=1e-2)
    return dispatches(made)


WRITES: dict[str, Callable[..., Any]] = {
    "index_copy": lambda cache, new, at: cache.index_copy_(1, at, new),
    "index_put": lambda cache, new, at: cache.index_put_((torch.zeros_like(at), at), new[0]),
    "index_add": lambda cache, new, at: cache.index_add_(1, at, new),
    "index_fill": lambda cache, new, at: cache.index_fill_(1, at, 3),
    "scatter": lambda cache, new, at: cache.scatter_(1, at.view(1, -1, 1), new),
    "slice": lambda cache, new, at: cache[:, 2:5].copy_(new),
    "select": lambda cache, new, at: cache[:, 3].copy_(new[:, 0]),
    "every other": lambda cache, new, at: cache[:, 1:6:2].copy_(new),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_a_write_into_a_part(name: str, dtype: torch.dtype, found: list[int]) -> None:
    def f(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        WRITES[name](cache, new * 2, at)
        return cache.sum()

    torch.manual_seed(0)
    cache, new = (torch.randint(-9, 9, (2, n, 5)).to("webgpu", dtype) for n in (7, 3))
    dispatches = compare(f, cache, new, torch.tensor([5, 0, 2], device="webgpu"))
    assert found == [1]
    assert dispatches <= 4  # what is written, its place, the write, the sum


def test_a_layer_of_caches(found: list[int]) -> None:
    """Keys and values of two layers: one dispatch a layer writes both, and nothing copies a cache."""

    def f(k: torch.Tensor, v: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        k.index_copy_(1, at, new)
        v.index_copy_(1, at, new + 1)
        return new.cos()

    k, v = (torch.randn(2, 64, 8, device="webgpu") for _ in range(2))
    new, at = torch.randn(2, 1, 8, device="webgpu"), torch.tensor([9], device="webgpu")
    assert compare(f, k, v, new, at) <= 2
    assert found == [2]


def test_an_index_out_of_range_is_noticed() -> None:
    cache, new = torch.zeros(2, 4, device="webgpu"), torch.ones(2, 1, device="webgpu")
    write = torch.compile(lambda cache, new, at: cache.index_copy_(1, at, new).sum())
    with pytest.raises(IndexError, match="4"):
        write(cache, new, torch.tensor([4], device="webgpu")).cpu()


KEPT: dict[str, Callable[..., Any]] = {
    "old contents are read later": lambda x, new, at: (x.clone(), x.index_copy_(1, at, new))[0] + x.flip(1),
    "an old view is read later": lambda x, new, at: _written_elsewhere(x, new, at),
    "the source is a view of it": lambda x, new, at: x.index_copy_(1, at, x[:, 2:5]).sum(),
    "the source is computed of it": lambda x, new, at: x.index_copy_(1, at, x[:, 2:5] * 2).sum(),
    "written twice": lambda x, new, at: x.index_copy_(1, at, new).index_add_(1, at, new).sum(),
    "written and scaled": lambda x, new, at: x.index_copy_(1, at, new).mul_(2).sum(),
    "the result is another tensor": lambda x, new, at: _apart(x, new, at),
    "the result is the input": lambda x, new, at: x.index_copy_(1, at, new),
    "the result is a view": lambda x, new, at: x.index_copy_(1, at, new)[:, 2:],
    "what runs after the plan reads it": lambda x, new, at: (x[:, :3].copy_(new), x.cpu() + 1)[1].sum(),
    "what runs between plans reads it": lambda x, new, at: (x[:, :3].copy_(new), x.cpu() + 1)[1].to(x.device).sum(),
    "two parts": lambda x, new, at: (x[:, :3].copy_(new), x[:, 4:].copy_(new))[0].sum(),
}


def _written_elsewhere(x: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    other = x.index_copy(1, at, new)
    before = x.transpose(1, 2) + 1
    x.copy_(other)
    return before


def _apart(x: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    other = x.index_copy(1, at, new)
    x.copy_(other)
    return other


@pytest.mark.parametrize("name", KEPT)
def test_what_else_depends_on_it_does_not_change(name: str) -> None:
    torch.manual_seed(0)
    x, new = (torch.randint(-9, 9, (2, n, 5)).to("webgpu", torch.float32) for n in (7, 3))
    at = torch.tensor([5, 0, 2], device="webgpu")
    compare(KEPT[name], x, new, at)
    copy = x.clone()
    other = KEPT[name](x, new, at)
    result = torch.compile(KEPT[name])(copy, new, at)
    result.add_(1)
    other.add_(1)
    assert torch.equal(copy, x)  # also what is a view stays one, and what is none does not become one


def test_dynamic_sizes() -> None:
    def f(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return cache.index_copy_(1, at, new).sum()

    compiled = torch.compile(f, dynamic=True)
    for n in (3, 5, 8):
        cache, new = torch.randn(2, n, device="webgpu"), torch.randn(2, 1, device="webgpu")
        at, copy = torch.tensor([n - 1], device="webgpu"), cache.clone()
        torch.testing.assert_close(compiled(copy, new, at), f(cache, new, at))
        assert torch.equal(copy, cache)
