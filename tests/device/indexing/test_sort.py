"""Sorting, selection, searching, unique and histograms on the device against the CPU."""

from __future__ import annotations

import pytest
import torch
from tests.device.against_cpu import check, layouts, same

from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.kernels.sorting import radix
from torch_webgpu.kernels.sorting import sort as sort_kernels

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
SHAPES = (((6, 5), 0), ((3, 1000), 1), ((2, 1025), 1), ((5000,), 0), ((300, 3), -1), ((4, 1), 1), ((), 0), ((0, 3), 1))


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Numbers with ties, and for floats NaN, infinities and both zeros among them."""
    x = (torch.randn(shape) * 50).to(dtype)
    if dtype.is_floating_point and x.numel() > 9:
        x.view(-1)[[1, 3, 4, 5, 7, 8]] = torch.tensor([float("nan"), -0.0, 0.0, float("inf"), -float("inf"), 0.0]).to(
            dtype
        )
    return x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_stable_sort(device, descending, dtype):
    for shape, dim in SHAPES:
        x = values(dtype, *shape)
        check(device, lambda x, d=dim: torch.sort(x, dim=d, stable=True, descending=descending), x)
        check(device, lambda x, d=dim: torch.argsort(x, dim=d, stable=True, descending=descending), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sort_of_any_layout(device, dtype):
    for x in layouts(lambda *s: values(dtype, *s), 9, 4, 7).values():
        for dim in (0, 1, 2):
            check(device, lambda x, d=dim: torch.sort(x, dim=d, stable=True), x)


@pytest.mark.parametrize("n", [1024, 2048, 2049, 70_000])
def test_sort_of_long_rows(device, n):
    check(device, lambda x: torch.sort(x, stable=True), torch.randint(0, 500, (3, n)))
    check(device, lambda x: torch.sort(x, stable=True, descending=True), torch.randn(2, n))


RADIX_DTYPES = (*DTYPES, torch.int8, torch.int16)


@pytest.mark.parametrize("dtype", RADIX_DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_radix_sort(device, monkeypatch, descending, dtype):
    """Of rows that end within a block, and are not so long that it pays."""
    monkeypatch.setattr(sort_kernels, "by_radix", lambda dtype, rows, n: True)
    for shape in ((2, 4099), (3, 9001), (1, 17_411)):
        x = values(dtype, *shape)
        check(device, lambda x: torch.sort(x, stable=True, descending=descending), x)
    if dtype != torch.bool:
        check(device, lambda x: torch.topk(x, 1111, largest=descending)[0], values(dtype, 3, 4201))


def test_radix_sort_on_small_workgroups(device, monkeypatch):
    """Whose memory has no room for the counters of 256 threads."""
    monkeypatch.setattr(sort_kernels, "by_radix", lambda dtype, rows, n: True)
    monkeypatch.setattr(radix, "THREADS", radix.FEWER_THREADS)
    for x in (torch.randn(3, 7013), torch.randint(-(1 << 40), 1 << 40, (2, 7013))):
        check(device, lambda x: torch.sort(x, stable=True), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_rows_that_pay_for_a_radix_sort(device, dtype):
    n = 600_000
    assert sort_kernels.by_radix(dtype_of(dtype).name, 1, n)
    assert not sort_kernels.by_radix("f32", 3, 70_000)
    check(device, lambda x: torch.sort(x, stable=True), values(dtype, n))


def test_zeros_keep_their_signs_and_order(device):
    x = torch.tensor([0.0, -0.0, -0.0, 0.0, -1.0], device=device)
    found, places = torch.sort(x, stable=True)
    assert places.tolist() == [4, 0, 1, 2, 3]
    assert torch.signbit(found).tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
def test_topk_and_kthvalue(device, dtype):
    for shape, dim in SHAPES[:-1]:
        x = values(dtype, *shape)
        n = x.shape[dim] if x.dim() else 1
        for k in sorted({1, n // 2, min(n, 513), n}):
            for largest in (True, False):
                check(device, lambda x, d=dim, k=k, s=largest: torch.topk(x, k, d, s)[0], x)
            if k:
                check(device, lambda x, d=dim, k=k: torch.kthvalue(x, k, d)[0], x)


def test_topk_indices_name_the_values(device):
    x = torch.randint(0, 50, (4, 3000), device=device)
    found, places = torch.topk(x, 40)
    assert torch.equal(x.cpu().gather(1, places.cpu()), found.cpu())
    assert all(len(set(row)) == 40 for row in places.tolist())


@pytest.mark.parametrize("name", ["sort", "topk", "kthvalue", "median", "msort", "quantile", "nanmedian"])
def test_gradients(device, name):
    fn = {
        "sort": lambda x: x.sort(0)[0],
        "topk": lambda x: x.topk(3, 1)[0],
        "kthvalue": lambda x: x.kthvalue(2, 0)[0],
        "median": lambda x: x.median(1)[0],
        "nanmedian": lambda x: x.nanmedian(),
        "msort": torch.msort,
        "quantile": lambda x: x.quantile(0.3, 1),
    }[name]
    check(device, fn, torch.randperm(63).view(7, 9) / 3, backward=True)


@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
def test_medians(device, dtype):
    for shape, dim in SHAPES[:-1]:
        x = values(dtype, *shape)
        for fn in (torch.median, torch.nanmedian):
            check(device, fn, x)
            check(device, lambda x, d=dim, fn=fn: fn(x, d, keepdim=True)[0], x)
    check(device, lambda x: torch.median(x, 0), torch.tensor([3.0, float("nan"), 1.0, float("nan")]))
    check(device, lambda x: torch.nanmedian(x, 0)[0], torch.full((4,), float("nan")))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mode(device, dtype):
    x = (torch.randn(5, 40) * 4).round().to(dtype)
    for dim in (0, 1):
        check(device, lambda x, d=dim: torch.mode(x, d)[0], x)
        check(device, lambda x, d=dim: torch.mode(x, d, keepdim=True)[0], x)
    if dtype.is_floating_point:  # which the CPU does not sort apart from the numbers
        x = torch.tensor([float("nan"), 2.0, 1.0, float("nan"), 2.0, 3.0, float("nan")], dtype=dtype, device=device)
        assert torch.mode(x)[0].item() == 2.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unique(device, dtype):
    every = {"return_inverse": True, "return_counts": True}
    for shape in ((40,), (3, 8, 2), (3000,), (0,), ()):
        x = (torch.randn(shape) * 3).round().to(dtype)
        check(device, lambda x: torch.unique(x, **every), x)
        check(device, torch.unique, x)
        check(device, lambda x: torch.unique_consecutive(x, **every), x)
    x = (torch.rand(30, 2, 3) * 2).round().to(dtype)
    for dim in (0, 1, -1):
        check(device, lambda x, d=dim: torch.unique(x, dim=d, **every), x)
        check(device, lambda x, d=dim: torch.unique_consecutive(x, dim=d, **every), x)


@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
def test_searches(device, dtype):
    edges = (torch.randn(3, 40) * 9).to(dtype).sort(1)[0]
    x = (torch.randn(3, 70) * 9).to(dtype)
    for right in (False, True):
        check(device, lambda e, x, r=right: torch.searchsorted(e, x, right=r), edges, x)
        check(device, lambda e, x, r=right: torch.bucketize(x, e[0], right=r, out_int32=True), edges, x.t())
        check(device, lambda e, r=right: torch.searchsorted(e[0], 3, right=r), edges)
    check(device, lambda e, x: torch.searchsorted(e[:, :0], x), edges, x)
    shuffled = edges.flip(1)
    check(device, lambda e, x: torch.searchsorted(e, x, sorter=torch.argsort(e, dim=1, stable=True)), shuffled, x)
    check(device, torch.isin, x, edges[0])
    check(device, lambda x, e: torch.isin(x, e[:0], invert=True), x, edges[0])
    check(device, lambda x: torch.isin(x, 3), x)


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
def test_complex_numbers_have_no_order(device):
    """And the device says so as the CPU does."""
    x = torch.tensor([1j, 2.0])
    for fn in (torch.sort, torch.median, torch.mode, torch.unique, lambda x: torch.searchsorted(x, x), torch.argmax):
        assert not same(device, fn, x)
    for fn in (torch.amax, lambda x: torch.topk(x, 1), lambda x: torch.cummin(x, 0), lambda x: torch.softmax(x, 0)):
        assert not same(device, fn, x)


@pytest.mark.parametrize("name", ["sort", "topk"])
def test_out_may_be_the_input(device, name):
    def run(d):
        x = torch.tensor([[3.0, 1, 2], [5, 4, 6]], device=d)
        places = torch.empty(2, 3, dtype=torch.int64, device=d)
        args = (3,) if name == "topk" else ()
        getattr(torch, name)(x, *args, out=(x, places))
        return x.cpu(), places.cpu()

    assert all(map(torch.equal, run(device), run("cpu")))


def test_bad_sorter(device):
    edges = torch.arange(4.0, device=device)
    torch.searchsorted(edges, edges, sorter=torch.tensor([0, 1, 9, 3], device=device))
    with pytest.raises(IndexError, match="searchsorted: index 9 is out of bounds for dimension with size 4"):
        torch.webgpu.synchronize()


def test_histograms(device):
    x = torch.randint(0, 40, (500,))
    check(device, torch.bincount, x)
    check(device, lambda x: torch.bincount(x, minlength=60), x.to(torch.uint8))
    check(device, lambda x, w: torch.bincount(x, w), x, torch.ones(500))
    check(device, lambda x: torch.bincount(x[:0], minlength=3), x)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        y = torch.randn(300).to(dtype)
        check(device, lambda y: torch.histc(y, 10, -1, 2), y)
        check(device, lambda y: torch.histc(y, 7), y)
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([1, -1], device=device))


@pytest.mark.float64
def test_histograms_that_are_doubles(device):
    x = torch.randint(0, 40, (500,))
    for weights in (torch.randn(500).double(), torch.arange(500), torch.randn(500).half()):
        check(device, torch.bincount, x, weights)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_histogram_of_integers(device, dtype):
    """The CPU counts no integers; CUDA does, in their dtype. In float64 the CPU puts them in the same bins."""
    x = torch.randint(0, 100, (20, 25)).to(dtype)
    for bins, *bounds in ((10,), (7, 3, 90), (100, -5, 300), (3, 50, 50), (8, 0, 7), (4, 0.5, 3.5)):
        expected = torch.histc(x.double(), bins, *map(int, bounds)).long().to(dtype)
        assert torch.equal(torch.histc(x.to(device), bins, *bounds).cpu(), expected)
    out = torch.empty(0, dtype=dtype, device=device)
    assert torch.histc(x.to(device).t(), 5, 0, 4, out=out) is out
    assert torch.equal(out.cpu(), torch.histc(x.float(), 5, 0, 4).to(dtype))
    assert torch.histc(x[:0].to(device), 3).tolist() == [0, 0, 0]


def test_histogram_errors(device):
    outcomes = []
    for values, *bounds in (
        ([1.0, float("inf")],),
        ([1.0], 2, 1),
        ([1.0], 0, float("inf")),
        ([1.0, float("nan"), float("inf"), 2.0, -1.0], 0, 2),
        ([],),
    ):
        x = torch.tensor(values)
        outcomes.append(same(device, lambda x, b=bounds: torch.histc(x, 3, *b), x))
    assert outcomes == [False, False, False, True, True]
    with pytest.raises(RuntimeError, match="not finite"):
        torch.histc(torch.tensor([1.0, float("nan")], device=device), 3)
    for wrong in (torch.tensor([True]), torch.tensor([1j])):
        with pytest.raises(NotImplementedError, match="not implemented for"):
            torch.histc(wrong.to(device), 3)
    with pytest.raises(RuntimeError, match="bins must be > 0"):
        torch.histc(torch.ones(3, device=device), 0)
    for wrong in (torch.tensor([1.0]), torch.tensor([True]), torch.tensor([[1]])):
        same(device, torch.bincount, wrong)
