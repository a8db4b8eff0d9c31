"""``torch.use_deterministic_algorithms``: results that timing has no part in, and alerts where there are none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

N = 30_000  # points that meet in a few elements


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def sums_of(index: torch.Tensor, terms: torch.Tensor, size: int) -> torch.Tensor:
    """Sums of ``terms`` (n, features) by ``index``, in float64."""
    return torch.zeros(size, terms.shape[1], dtype=torch.float64).index_add_(0, index, terms.double())


def gradient(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    x = x.requires_grad_()
    return torch.autograd.grad(fn(x), x, seed)[0]


SUMS: dict[str, Callable[..., torch.Tensor]] = {
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_add of columns": lambda x, i, s: x.t().contiguous().index_add(1, i, s.t()).t(),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i[:, None].expand(s.shape), s),
    "scatter_reduce": lambda x, i, s: x.scatter_reduce(0, i[:, None].expand(s.shape), s, "sum"),
    "index_put": lambda x, i, s: x.index_put((i,), s, accumulate=True),
    "index_put of negative indices": lambda x, i, s: x.index_put((i - 3,), s, accumulate=True),
    "index_put of columns": lambda x, i, s: x.t().contiguous().index_put(
        (torch.arange(2, device=x.device)[:, None], i), s.t(), accumulate=True
    ).t(),
    "put": lambda x, i, s: x.put(i[:, None] * 2 + torch.arange(2, device=x.device), s, accumulate=True),
    "gradient of embedding": lambda x, i, s: gradient(lambda w: F.embedding(i, w), x, s),
    "gradient of indexing": lambda x, i, s: gradient(lambda w: w[i], x, s),
    "gradient of gather": lambda x, i, s: gradient(lambda w: w.gather(0, i[:, None].expand(s.shape)), x, s),
    "gradient of index_select": lambda x, i, s: gradient(lambda w: w.index_select(0, i), x, s),
    "gradient of embedding_bag": lambda x, i, s: gradient(
        lambda w: F.embedding_bag(i, w, torch.arange(N, device=x.device), mode="sum"), x, s
    ),
    "bincount": lambda x, i, s: torch.stack([i.bincount(s[:, k]) for k in range(2)], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_taken_in_an_order_that_follows_from_the_points(device: torch.device, name: str) -> None:
    """Each sum is rounded as the order of its own points says, however those of others come between: atomics, which add
    as threads come, round otherwise.
    """
    index, terms = torch.randint(0, 3, (N,)), torch.randn(N, 2)
    first = SUMS[name](torch.zeros(3, 2, device=device), index.to(device), terms.to(device)).cpu()
    torch.testing.assert_close(first.double(), sums_of(index, terms, 3), rtol=1e-5, atol=1e-3)
    order = index.argsort(stable=True)
    for i, s in ((index, terms), (index[order], terms[order])):
        result = SUMS[name](torch.zeros(3, 2, device=device), i.to(device), s.to(device))
        assert torch.equal(result.cpu(), first)


def test_sums_add_to_what_is_there(device: torch.device) -> None:
    x, index, terms = torch.randn(3, 4, 5), torch.tensor([2, 0, 2, 2]), torch.randn(3, 4, 5)
    for fn in (
        lambda x, i, s: x.index_add(1, i, s, alpha=2),
        lambda x, i, s: x.index_put((torch.arange(3).to(i)[:, None], i), s, accumulate=True),
        lambda x, i, s: x.scatter_reduce(1, i[None, :, None].expand(s.shape), s, "mean", include_self=False),
        lambda x, i, s: x.to(torch.complex64).index_add(1, i, torch.complex(s, -s)),
        lambda x, i, s: x.bfloat16().index_put((i[:3], i[1:]), s[0, :3].bfloat16(), accumulate=True),
    ):
        torch.testing.assert_close(
            fn(x.to(device), index.to(device), terms.to(device)).cpu(), fn(x, index, terms), rtol=1e-2, atol=1e-2
        )


WRITES: dict[str, Callable[..., torch.Tensor]] = {
    "index_put": lambda x, i, s: x.index_put((i,), s),
    "index_put of columns": lambda x, i, s: x.t().contiguous().index_put(
        (torch.arange(2, device=x.device)[:, None], i), s.t()
    ).t(),
    "index_copy": lambda x, i, s: x.index_copy(0, i, s),
    "scatter": lambda x, i, s: x.scatter(0, i[:, None].expand(s.shape), s),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_of_several_writes_the_last_one_stays(device: torch.device, name: str, dtype: torch.dtype) -> None:
    index = torch.randint(0, 3, (N,))
    source = torch.arange(2 * N).remainder(251).view(N, 2).to(dtype)
    expected = torch.stack([source[(index == k).nonzero()[-1, 0]] for k in range(3)])
    result = WRITES[name](torch.zeros(3, 2, dtype=dtype, device=device), index.to(device), source.to(device))
    assert torch.equal(result.cpu(), expected)


def test_what_resizing_adds_is_filled(device: torch.device) -> None:
    for dtype in (torch.float32, torch.int16, torch.bool):
        x, y = (torch.ones(4, dtype=dtype, device=d)[2:].resize_(2, 3) for d in (device, "cpu"))
        torch.testing.assert_close(x.cpu(), y, equal_nan=True)


def test_products_in_order(device: torch.device) -> None:
    index, factors = torch.randint(0, 2, (200,)), 1 + torch.randn(200) / 50
    x = torch.ones(2, device=device).scatter_reduce(0, index.to(device), factors.to(device), "prod")
    expected = [np.cumprod(factors[index == k].numpy(), dtype=np.float32)[-1] for k in range(2)]
    assert x.cpu().tolist() == [float(e) for e in expected]


def test_an_index_out_of_range_is_still_one(device: torch.device) -> None:
    bad = torch.tensor([0, 7], device=device)
    for use in (
        lambda: torch.zeros(3, device=device).index_add_(0, bad, torch.ones(2, device=device)),
        lambda: torch.zeros(3, device=device).index_put_((bad,), torch.ones(2, device=device), accumulate=True),
        lambda: torch.zeros(3, device=device).scatter_(0, bad, torch.ones(2, device=device)),
    ):
        with pytest.raises(IndexError):
            use().cpu()


def test_an_index_out_of_range_is_not_the_first(device: torch.device) -> None:
    x = torch.zeros(3, device=device).scatter_(
        0, torch.tensor([0, 2, 7]).to(device), torch.tensor([1.0, 2, 5]).to(device)
    )
    with pytest.raises(IndexError):
        torch.webgpu.synchronize()
    assert x.tolist() == [1, 0, 2]


def test_both_modes_in_turn(device: torch.device) -> None:
    """Kernels remember what calls record: neither mode gets the other's."""
    index, terms = torch.randint(0, 3, (N,)), torch.randn(N, 2)
    order = index.argsort(stable=True)
    found = []
    for on in (False, True, False, True):
        torch.use_deterministic_algorithms(on)
        i, s = (index[order], terms[order]) if found else (index, terms)
        sums = torch.zeros(3, 2, device=device).index_add_(0, i.to(device), s.to(device)).cpu()
        torch.testing.assert_close(sums.double(), sums_of(index, terms, 3), rtol=1e-4, atol=1e-3)
        found += [sums] if on else []
    assert torch.equal(*found)


def test_alerts_where_there_is_no_such_kernel(device: torch.device) -> None:
    def backward() -> Any:
        x = torch.ones(1, 1, 3, 3, device=device, requires_grad=True)
        F.grid_sample(x, torch.zeros(1, 2, 2, 2, device=device), align_corners=False).sum().backward()
        return x.grad.sum().item()

    with pytest.raises(RuntimeError, match="does not have a deterministic implementation, but you set"):
        backward()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match=r"use_deterministic_algorithms\(True, warn_only=True\)"):
        assert backward() == 4
    torch.use_deterministic_algorithms(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backward() == 4


def test_writes_of_put_alert_as_on_the_cpu(device: torch.device) -> None:
    """Which of several values stays; sums do not, but on CUDA."""

    def put(d: Any, accumulate: bool) -> Any:
        x = torch.zeros(4, device=d)
        return x.put_(torch.tensor([1, 3, 1], device=d), torch.tensor([1.0, 2.0, 5.0], device=d), accumulate)

    for d in (device, "cpu"):
        with pytest.raises(RuntimeError, match=r"put_ does not have a deterministic implementation, but you set"):
            put(d, False)
        assert put(d, True).tolist() == [0, 6, 0, 2]
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        assert put(device, False).tolist() == [0, 5, 0, 2]


def test_medians_alert_of_nothing(device: torch.device) -> None:
    x = torch.randn(5, 4)
    for name in ("median", "nanmedian"):
        values, indices = torch.empty(4, device=device), torch.empty(4, dtype=torch.int64, device=device)
        getattr(torch, name)(x.to(device), 0, out=(values, indices))
        expected = getattr(torch, name)(x, 0)
        assert torch.equal(values.cpu(), expected.values)
        assert torch.equal(indices.cpu(), expected.indices)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
