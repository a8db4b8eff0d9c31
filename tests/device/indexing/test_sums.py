"""Sums through indices that are taken in the order of what the points name, without atomics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.device.against_cpu import HALF_TYPES, layouts
from tests.device.choices import forget

from torch_webgpu.aten.indexing import sums
from torch_webgpu.aten.indexing.sums import add_in_order, order_of, pays
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.indexing.indexed import IndexGeometry, Term
from torch_webgpu.kernels.indexing.sum_by_key import LONGEST, SHORTEST, Level, levels

from .inputs import FLOATS

N, ROWS, WIDTH = 6000, 12, 40
ROUNDING = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture
def either_mode(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In which so few points are ordered, too, as on a GPU; and after which PyTorch's usual mode is on again."""
    adapter = engine().device(0)
    monkeypatch.setattr(adapter, "target", replace(adapter.target, software=False))
    monkeypatch.setattr(sums, "LEAST_POINTS", 1)
    forget(monkeypatch)
    yield
    torch.use_deterministic_algorithms(False)


def in_float64(fn: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    return fn(*(t.double() if t.is_floating_point() else t for t in tensors))


def assert_rounded_once(actual: torch.Tensor, expected: torch.Tensor, terms: int = N) -> None:
    """``actual`` is ``expected``, a sum of so many numbers of about 1 in float64, but for roundings of its dtype at the
    end and of float32 before.
    """
    assert actual.dtype in ROUNDING
    near = ROUNDING[actual.dtype]
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=near, atol=max(1e-6 * terms**0.5, near * 1e-3))


def kernels(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The dispatches of a call that has a recipe."""
    fn(*args)
    return [name for kernel in torch.webgpu.explain(fn, *args).kernels for name in kernel.dispatches]


def vector_of(count: int, n: int) -> IndexGeometry:
    """Points (n) that an index vector names one of ``count`` rows each."""
    return IndexGeometry((n,), ((0,), (1,)), (Term(count, 1, wraps=False, dim=0),))


@settings(max_examples=60)
@given(data=st.data(), deterministic=st.booleans(), dtype=st.sampled_from(FLOATS))
def test_rows_are_added_to_those_that_keys_number(device, data, deterministic, dtype):
    """Runs of every length, in chunks of every length; sources and targets of any layout, in both orders."""
    count = data.draw(st.sampled_from([1, 2, 7, 300, 3000]), "rows")
    width = data.draw(st.sampled_from([1, 3, 4, 8, 20]), "width")
    n = data.draw(
        st.one_of(st.integers(1, 3 * SHORTEST), st.sampled_from([LONGEST, LONGEST + 1, 1000, 4099])), "points"
    )
    skew = data.draw(st.sampled_from([1, 4]), "skew")
    torch.manual_seed(data.draw(st.integers(0, 1000), "seed"))
    keys = (torch.rand(n) ** skew * count).int().clamp_(max=count - 1)
    terms = data.draw(st.sampled_from(list(layouts(torch.randn, n, width).values())), "terms")
    layout = data.draw(st.sampled_from(["contiguous", "transposed", "sliced", "offset"]), "target")
    target = layouts(torch.randn, count, width)[layout].to(dtype)
    expected = target.double().index_add(0, keys, terms.to(dtype).double())
    base = torch.full((2 * width + 3, count + 2), 7.0, dtype=dtype, device=device)
    here = {
        "contiguous": base.view(-1)[: count * width].view(count, width),
        "transposed": base[:width, :count].t(),
        "sliced": base.view(-1)[: count * (2 * width + 3)].view(count, -1)[:, 3::2],
        "offset": base.view(-1)[: count * (width + 1)].view(count, -1)[:, 1:],
    }[layout]
    here.copy_(target)
    there = terms.to(dtype).to(device)
    if terms.stride(1) == 0:
        there = there[:, :1].expand(terms.shape)
    try:
        torch.use_deterministic_algorithms(deterministic)
        add_in_order(here, there, order_of("index_add", count, vector_of(count, n), [keys.to(device)]), 1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_rounded_once(here, expected, n)
    base_after, here_after = base.cpu(), here.cpu()
    here.fill_(7)
    assert bool((base.cpu() == 7).all()), "elements between the target's were written"
    assert not base_after.isnan().any()
    assert here_after.shape == (count, width)


@given(n=st.integers(1, 3_000_000), lanes=st.integers(1, 1000))
def test_launches_leave_ever_fewer_parts(n, lanes):
    plan = levels(n, lanes)
    assert plan[0].n == n
    assert plan[-1].chunks == 1
    for level, following in pairwise(plan):
        assert SHORTEST <= level.length <= LONGEST
        assert following.n == level.slots < max(level.n / 4, 4)
    assert Level(LONGEST + 1, LONGEST).slots == 3


SUMS: dict[str, Callable[..., torch.Tensor]] = {
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_add of int32": lambda x, i, s: x.index_add(0, i.int(), s),
    "index_add of multiples": lambda x, i, s: x.index_add(0, i, s, alpha=-2),
    "index_add of columns": lambda x, i, s: x.t().contiguous().index_add(1, i, s.t()).t(),
    "index_add of columns of strided tensors": lambda x, i, s: x.t().index_add(1, i, s.t()).t(),
    "index_add of planes": lambda x, i, s: x.view(ROWS, 5, 8)
    .movedim(0, 1)
    .contiguous()
    .index_add(1, i, s.view(N, 5, 8).movedim(0, 1))
    .movedim(1, 0)
    .reshape(ROWS, WIDTH),
    "index_add of one row": lambda x, i, s: x.index_add(0, i, s[:1].expand(s.shape)),
    "index_add of one column": lambda x, i, s: x.index_add(0, i, s[:, :1].expand(s.shape)),
    "index_add_ to a part": lambda x, i, s: torch.cat([x, x], 1)[:, 3 : 3 + WIDTH].index_add_(0, i, s),
    "index_add of odd rows": lambda x, i, s: x[:, 1:].index_add(0, i, s[:, 1:]),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i[:, None].expand(s.shape), s),
    "scatter_add to some columns": lambda x, i, s: torch.cat([x, x], 1).scatter_add(0, columns_of(i), s),
    "scatter_reduce": lambda x, i, s: x.scatter_reduce(0, i[:, None].expand(s.shape), s, "sum", include_self=False),
    "means": lambda x, i, s: x.scatter_reduce(0, i[:, None].expand(s.shape), s, "mean"),
    "means to some columns": lambda x, i, s: torch.cat([x, x], 1).scatter_reduce(0, columns_of(i), s, "mean"),
    "index_put": lambda x, i, s: x.index_put((i,), s, accumulate=True),
    "index_put of negative indices": lambda x, i, s: x.index_put((i - ROWS,), s, accumulate=True),
    "index_put of rows of indices": lambda x, i, s: x.index_put(
        (i.view(-1, 2),), s.view(-1, 2, WIDTH), accumulate=True
    ),
    "index_put of one value": lambda x, i, s: x.index_put((i,), s[0, 0], accumulate=True),
    "index_put by two indices": lambda x, i, s: x.view(3, 4, WIDTH)
    .index_put((i // 4, i % 4), s, accumulate=True)
    .view(ROWS, WIDTH),
    "index_put of columns": lambda x, i, s: x.t().contiguous().index_put(
        (slice_of(x), i), s.t(), accumulate=True
    ).t(),
    "index_put apart": lambda x, i, s: torch.ops.aten.index_put(
        x.view(ROWS, 4, 1, 10), [i, None, i * 0], s.view(N, 4, 10), True
    ).view(ROWS, WIDTH),
    "gradient of indexing": lambda x, i, s: gradient(lambda w: w[i], x, s),
    "gradient of index_select": lambda x, i, s: gradient(lambda w: w.index_select(0, i), x, s),
    "gradient of embedding": lambda x, i, s: gradient(lambda w: F.embedding(i, w), x, s),
    "gradient of embedding with padding": lambda x, i, s: gradient(
        lambda w: F.embedding(i.view(2, -1), w, padding_idx=4), x, s.view(2, -1, WIDTH)
    ),
    "gradient of embedding, by frequency": lambda x, i, s: gradient(
        lambda w: F.embedding(i, w, scale_grad_by_freq=True), x, s
    ),
}  # fmt: skip


def columns_of(i: torch.Tensor) -> torch.Tensor:
    """An index for all columns of a row. Of an expanded one CPU PyTorch takes the target to have no more columns."""
    columns = i[:, None].expand(N, WIDTH)
    return columns.contiguous() if i.is_cpu else columns


def slice_of(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(WIDTH, device=x.device)[:, None]


def gradient(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(fn(x), x, seed)[0]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_operators(device, either_mode, name, dtype, deterministic):
    fn = SUMS[name]
    x, index, terms = torch.randn(ROWS, WIDTH).to(dtype), torch.randint(0, ROWS, (N,)), torch.randn(N, WIDTH).to(dtype)
    expected = in_float64(fn, x, index, terms)
    there = x.to(device), index.to(device), terms.to(device)
    torch.use_deterministic_algorithms(deterministic)
    if name == "gradient of embedding, by frequency" and dtype in HALF_TYPES:
        # each term is rounded after the division, as on the CPU
        torch.testing.assert_close(fn(*there).cpu().double(), expected, rtol=2e-2, atol=1e-2)
        return
    if "means" in name and dtype in HALF_TYPES:
        torch.testing.assert_close(fn(*there).cpu().double(), expected, rtol=2e-2, atol=2e-2)
        return
    for _ in range(2):  # as recorded, and by its recipe
        assert_rounded_once(fn(*there), expected)
    if not deterministic and name != "index_put of columns":  # each element has an index of its own
        assert "sum_by_key" in kernels(fn, *there)


def test_sums_that_are_ordered_wait_for_nothing(device, either_mode):
    x, index, terms = torch.zeros(ROWS, WIDTH), torch.randint(0, ROWS, (N,)), torch.randn(N, WIDTH)
    x, index, terms = x.to(device), index.to(device), terms.to(device)
    explained = torch.webgpu.explain(lambda: x.index_add_(0, index, terms))
    assert len(explained.flushes) == 1
    dispatches = kernels(lambda: x.index_add_(0, index, terms))
    assert dispatches.count("sum_by_key") == len(levels(N, WIDTH // 4))
    assert not any("sort" in name or "merge" in name for name in dispatches)


def test_what_is_small_or_scattered_is_added_with_atomics(device):
    few, many = torch.randint(0, 7, (50,), device=device), torch.randint(0, 7, (300_000,), device=device)
    for index, width in ((few, 64), (many, 1), (many, 4)):
        out, terms = torch.zeros(7, width, device=device), torch.ones(len(index), width, device=device)
        assert kernels(lambda i: out.index_add_(0, i, terms), index) == ["index_add"]  # noqa: B023
    x, i, s = torch.zeros(7, 40, device=device), torch.randint(0, 7, (6000, 40), device=device), torch.ones(6000, 40)
    assert kernels(lambda: x.scatter_add_(0, i, s.to(device)))[-1] == "scatter_add"


def test_many_index_tensors(device, either_mode):
    """More of them than one launch can bind beside the counts are summed all the same."""
    for number in (4, 5):
        x, terms = torch.randn(3, 2, 2, 1, 1, WIDTH), torch.randn(N, WIDTH)
        index = [torch.randint(0, x.shape[d], (N,)) for d in range(number)]
        x = x if number == 5 else x[:, :, :, :, 0]
        expected = x.double().index_put(index, terms.double(), accumulate=True)
        there = [i.to(device) for i in index]
        result = x.to(device).index_put(there, terms.to(device), accumulate=True)
        torch.testing.assert_close(result.cpu().double(), expected, rtol=1e-5, atol=1e-3)


def test_what_pays(device, monkeypatch):
    """All but few points are put in order, on a GPU."""
    adapter = engine().device(0)
    t = torch.zeros(1, device=device)
    monkeypatch.setattr(adapter, "target", replace(adapter.target, software=False))
    assert pays(t, 1024, 100_000)
    assert pays(t.half(), 1_200_000, 170_000)
    assert pays(t.bfloat16(), 16_384, 65)
    assert not pays(t, 1000, 100_000)
    assert not pays(t, 2000, 0)
    assert not pays(t.int(), 2000, 1000)
    assert not pays(t, 2000, 1000, indices=5)
    monkeypatch.setattr(adapter, "target", replace(adapter.target, software=True))
    assert not pays(t, 1_200_000, 170_000)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ["index_add", "index_put", "scatter_add"])
def test_indices_out_of_range(device, either_mode, name, deterministic):
    """The error names the index and the dimension, and no other point is lost."""
    torch.use_deterministic_algorithms(deterministic)
    for bad in (ROWS, -1 if name != "index_put" else -ROWS - 1):
        index = torch.randint(0, ROWS, (N,))
        good = index != 3
        index[~good] = bad
        x, terms = torch.zeros(2, ROWS, WIDTH, device=device), torch.ones(2, N, WIDTH, device=device)
        there = index.to(device)
        if name == "index_put":
            x.index_put_((torch.arange(2, device=device)[:, None], there), terms, accumulate=True)
        elif name == "index_add":
            x.index_add_(1, there, terms)
        else:
            x.scatter_add_(1, there[None, :, None].expand(terms.shape), terms)
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds for dimension 1 with size {ROWS}"):
            torch.webgpu.synchronize()
        ones = torch.ones(2, int(good.sum()), WIDTH)
        assert torch.equal(x.cpu(), torch.zeros(2, ROWS, WIDTH).index_add(1, index[good], ones))


def test_indices_out_of_range_touch_no_memory(device):
    """Those around the target least of all."""
    index = torch.randint(-1, ROWS + 1, (N,))
    base = torch.zeros(ROWS + 2, WIDTH, device=device)
    base[1:-1].index_add_(0, index.to(device), torch.ones(N, WIDTH, device=device))
    with pytest.raises(IndexError, match="out of bounds"):
        torch.webgpu.synchronize()
    counts = index[(index >= 0) & (index < ROWS)].bincount(minlength=ROWS).float()
    assert torch.equal(base.cpu(), torch.cat([torch.zeros(1), counts, torch.zeros(1)])[:, None].expand(-1, WIDTH))


def test_sources_and_targets_that_share_memory(device):
    index = torch.randint(0, ROWS, (N,)).to(device)
    base = torch.ones(N + ROWS, WIDTH, device=device)
    base[:ROWS].index_add_(0, index, base[ROWS:])
    expected = torch.ones(N + ROWS, WIDTH)
    expected[:ROWS].index_add_(0, index.cpu(), expected[ROWS:])
    assert torch.equal(base.cpu(), expected)
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        base[:N].index_add_(0, index, base[1 : N + 1])
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        torch.zeros(1, WIDTH, device=device).expand(ROWS, WIDTH).index_add_(0, index, base[:N])


def test_nothing_to_add(device, either_mode):
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        for rows, n, width in ((3, 0, 8), (3, 5, 0), (0, 0, 8)):
            x, index = torch.ones(rows, width, device=device), torch.zeros(n, dtype=torch.int64, device=device)
            assert x.index_add(0, index, torch.ones(n, width, device=device)).cpu().tolist() == x.cpu().tolist()
            assert x.index_put((index,), torch.ones(n, width, device=device), True).cpu().tolist() == x.cpu().tolist()


def test_not_finite_numbers_stay_in_their_rows(device):
    index, terms = torch.arange(N) % ROWS, torch.ones(N, WIDTH)
    terms[5], terms[18, 3], terms[6, 0] = torch.nan, torch.inf, -torch.inf
    result = torch.zeros(ROWS, WIDTH, device=device).index_add_(0, index.to(device), terms.to(device)).cpu()
    expected = torch.zeros(ROWS, WIDTH).index_add_(0, index, terms)
    np.testing.assert_array_equal(result.numpy(), expected.numpy())
