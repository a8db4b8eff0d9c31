"""Reads and writes through indices on the device against the CPU, and what happens to indices out of range."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.device.against_cpu import HALF_TYPES, layouts, same
from tests.device.indexing.inputs import check, indices, values
from torch.nn import functional as F

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
aten = torch.ops.aten
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def distinct(size: int, count: int, columns: int) -> torch.Tensor:
    """(count, columns) indices, those of a column all different, so that the last write is the only one."""
    return torch.stack([torch.randperm(size)[:count] for _ in range(columns)], 1)


# Reads


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reads(device, dtype):
    for name, x in layouts(lambda *s: values(dtype, *s), 7, 5).items():
        backward = dtype.is_floating_point and name != "expanded"
        for kind in (torch.int64, torch.int32):
            i = indices(7, 4, dtype=kind)
            check(device, lambda x, i: torch.index_select(x, 0, i), x, i, backward=backward)
            check(device, lambda x, i: torch.index_select(x.t(), 1, i), x, i)
            check(device, lambda x, i: x[i], x, i - 7 if kind == torch.int64 else i, backward=backward)
        check(device, lambda x, i: torch.gather(x, 0, i), x, indices(7, 9, 3), backward=backward)
        check(device, lambda x, i: torch.gather(x, 1, i), x, indices(5, 6, 8))
        check(device, torch.take, x, indices(35, 2, 3) - 17, backward=backward)
        check(device, lambda x, i: torch.take_along_dim(x, i, 0), x, indices(7, 2, 5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_advanced_indexing(device, dtype):
    x, i, j = values(dtype, 6, 5, 4), indices(5, 3), indices(5, 2, 1) - 5
    backward = dtype.is_floating_point
    for fn in (
        lambda x, i, j: x[:, i],
        lambda x, i, j: x[..., i % 4],
        lambda x, i, j: x[i, j],
        lambda x, i, j: x[i, :, j % 4],
        lambda x, i, j: x[None, i, 1:, j % 4],
        lambda x, i, j: x[:, i, j % 4][:, ::2],
        lambda x, i, j: x[j, 2],
        lambda x, i, j: x[i[:0]],
        lambda x, i, j: x.transpose(0, 2)[i % 4, j],
    ):
        check(device, fn, x, i, j, backward=backward)
    check(device, lambda x, m: x[m], x, values(torch.bool, 6, 5), backward=backward)
    check(device, lambda x, m, i: x[m, i % 4], x, torch.tensor([1, 0, 0, 1, 0, 1], dtype=torch.bool), i[:1])
    check(device, lambda x: x[x != 0], x, backward=backward)


def test_scalar_tensors(device):
    x, i = torch.tensor(3.0), torch.tensor(0)
    check(device, lambda x, i: torch.index_select(x, 0, i), x, i)
    check(device, lambda x, i: torch.gather(x, 0, i), x, i)
    check(device, lambda x, i: x.scatter(0, i, 2.0), x, i)
    check(device, lambda x, i: x.index_add(0, i, x), x, i)
    check(device, lambda x, i: x.index_copy(0, i, x + 1), x, i)
    check(device, lambda x, i: x[None][i], x, i)
    check(device, torch.nonzero, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nonzero_and_masks(device, dtype):
    for x in (*layouts(lambda *s: values(dtype, *s), 6, 4, 3).values(), values(dtype, 0, 3), values(dtype, 700)):
        check(device, torch.nonzero, x)
        check(device, lambda x: torch.nonzero_static(x, size=5, fill_value=-2), x)
        check(device, lambda x: torch.nonzero(x, as_tuple=True), x)
    x, mask = values(dtype, 6, 4, 3), values(torch.bool, 4, 1)
    check(device, torch.masked_select, x, mask, backward=dtype.is_floating_point)
    check(device, lambda x, m, s: x.masked_scatter(m, s), x, mask, values(dtype, 90), backward=dtype.is_floating_point)
    assert torch.nonzero(torch.ones(3, 2, device=device)).stride() == torch.nonzero(torch.ones(3, 2)).stride()


# Writes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writes(device, dtype):
    backward = dtype.is_floating_point
    source, index = values(dtype, 4, 5), distinct(7, 4, 5)
    for name, x in layouts(lambda *s: values(dtype, *s), 7, 5).items():
        if name == "expanded":
            continue
        check(device, lambda x, i, s: x.scatter(0, i, s), x, index, source, backward=backward)
        check(device, lambda x, i: x.scatter(0, i, 1), x, index, backward=backward)
        check(device, lambda x, i, s: x.index_copy(0, i[:, 0], s), x, index, source, backward=backward)
        check(device, lambda x, i: x.index_fill(0, i[:, 0], 1), x, index, backward=backward)
        check(device, lambda x, i, s: x.index_put((i[:, 0] - 7,), s), x, index, source, backward=backward)
        check(device, lambda x, i, s: x.put(i[:, 0], s[:, 0]), x, index, source, backward=backward)
        check(device, lambda x, i, s: x[:, 1:].scatter_(0, i[:, :2], s), x.clone(), index, source)
        check(device, lambda x, m: x.index_put_((m,), torch.ones((), dtype=x.dtype)), x.clone(), x != 0)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64], ids=str)
def test_one_value_through_a_mask(device, dtype):
    """Values that are broadcast over what a mask selects, in every place that they can have."""
    whole = values(dtype, 3, 4, 5)
    for at, dims in ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)):
        mask = values(torch.bool, *whole.shape[at : at + dims])
        slices, before, after = [None] * at, whole.shape[:at], whole.shape[at + dims :]

        def put(x, m, v, accumulate=False, slices=slices):
            return aten.index_put(x, [*slices, m], v, accumulate)

        for shape in {(), (1,), after, (1, *after), (*before, 1, *after), (*before, 1, *[1] * len(after))}:
            value = values(dtype, *shape)
            for x in (whole, whole.mT.contiguous().mT):
                check(device, put, x, mask, value, backward=dtype.is_floating_point)
                if dtype != torch.bool:
                    check(device, partial(put, accumulate=True), x, mask, value)
    empty = values(dtype, 3, 0)
    check(device, lambda x, m, v: x.index_put((m,), v), empty, values(torch.bool, 3), values(dtype, 1))
    check(device, lambda x, m, v: x.index_put((m,), v), empty, values(torch.bool, 3, 0), values(dtype))


def test_what_does_not_fit_a_mask(device):
    x = torch.zeros(3, 4)
    mask = torch.tensor([True, False, True])
    for value in (torch.ones(3), torch.ones(3, 1), torch.ones(2, 1, 4)):
        for where in ("cpu", device):
            with pytest.raises(RuntimeError, match="shape mismatch"):
                x.to(where).index_put_((mask.to(where),), value.to(where))
    with pytest.raises(IndexError, match="shape of the mask"):
        x.to(device)[torch.ones(4, dtype=torch.bool, device=device)] = 1.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_colliding_sums(device, dtype):
    x, source, index = values(dtype, 7, 5), values(dtype, 90, 5), indices(7, 90, 5)
    backward = dtype.is_floating_point
    check(device, lambda x, i, s: x.scatter_add(0, i, s), x, index, source, backward=backward)
    check(device, lambda x, i, s: x.index_add(0, i[:, 0], s, alpha=2), x, index, source, backward=backward)
    check(device, lambda x, i, s: x.index_put((i[:, 0],), s, accumulate=True), x, index, source, backward=backward)
    check(device, lambda x, i, s: x.put(i, s, accumulate=True), x, index, source, backward=backward)
    check(device, lambda x, i, s: x.scatter(0, i, s, reduce="add"), x, index, source)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_fours(device, dtype):
    """Rows whose length is a multiple of four are moved in fours where they lie so that they can."""
    rows, index = values(dtype, 6, 12), torch.randperm(9)[:6]
    for x in (
        *layouts(lambda *s: values(dtype, *s), 9, 12).values(),
        values(dtype, 9, 16)[:, 4:],
        values(dtype, 9, 12, 1),
    ):
        check(device, lambda x, i: x.index_select(0, i), x, index)
        check(device, lambda x, i: x[i[:, None], i - 9], x, index)
        check(device, lambda x, i: x[:, None].transpose(0, 1)[:, i], x, index)
        check(device, lambda x: x.flip(1), x)
        check(device, lambda x: x.flip(0), x)
        x = x.clone().view(9, -1)
        check(device, lambda x, i, r: x.index_put((i,), r), x, index, rows)
        check(device, lambda x, i, r: x.index_put((i,), r[:1, :1]), x, index, rows)
        check(device, lambda x, i: x.index_fill(0, i, 1), x, index)
        check(device, lambda x, i, r: x.index_add(0, i, r), x, index, rows)
        check(device, lambda x, i, r: x.index_copy(0, i, r.t().contiguous().t()), x, index, rows)
        wide = values(dtype, 9, 17)
        check(device, lambda x, i, r: x[:, 4:16].index_copy_(0, i, r), wide, index, rows)
        check(device, lambda x, i, r: x.t()[:12].t().index_put_((i,), r), wide, index, rows)


def test_wide_sums_carry(device):
    """int64 sums are two 32-bit atomics and a carry."""
    source = torch.randint(-(2**62), 2**62, (1000,))
    index = indices(3, 1000)
    check(device, lambda s, i: s.new_zeros(3).scatter_add(0, i, s), source, index)
    check(device, lambda s, i: s.new_zeros(3).scatter_reduce(0, i, s, "amax"), source, index)


def test_half_sums_accumulate_in_float(device):
    """4096 ones added to 1 in bfloat16 would stay 256."""
    ones = torch.ones(4096, dtype=torch.bfloat16, device=device)
    zeros = torch.zeros(4096, dtype=torch.int64, device=device)
    assert torch.zeros(2, dtype=torch.bfloat16, device=device).scatter_add_(0, zeros, ones)[0].item() == 4096


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions(device, reduce, dtype):
    if dtype == torch.bool and reduce == "mean":
        pytest.skip("PyTorch has no mean of bool")
    x, source, index = values(dtype, 7, 5), values(dtype, 6, 5), indices(7, 6, 5)
    for include_self in (True, False):
        check(
            device,
            lambda x, i, s, k=include_self: x.scatter_reduce(0, i, s, reduce, include_self=k),
            x,
            index,
            source,
            backward=dtype == torch.float32,
        )
        if reduce != "sum" and dtype != torch.bool:
            check(
                device,
                lambda x, i, s, k=include_self: x.index_reduce(0, i[:, 0], s, reduce, include_self=k),
                x,
                index,
                source,
            )


def test_nan_wins_reductions(device):
    source = torch.tensor([1.0, float("nan"), -2.0, 5.0, float("-inf"), 0.5])
    for reduce in ("amax", "amin"):
        check(device, lambda s, r=reduce: s.new_zeros(3).scatter_reduce(0, indices_of(s), s, r), source)


def indices_of(s: torch.Tensor) -> torch.Tensor:
    return torch.arange(s.numel(), device=s.device) % 3


def test_source_in_the_target(device):
    """A source that shares the target's memory is refused, as on the CPU, unless it has gaps: then it is read first."""
    index = torch.tensor([4, 0, 1, 2, 3], device=device)
    x = torch.arange(10.0, device=device)
    for write in (
        lambda: x.scatter_(0, index, x),
        lambda: x.index_put_((index[1:],), x[:4]),
        lambda: index.scatter_(0, index, index),
    ):
        with pytest.raises(RuntimeError, match="single memory location"):
            write()
    x.index_put_((index,), x[::2])
    assert x.tolist() == [2, 4, 6, 8, 0, 5, 6, 7, 8, 9]


def test_writes_to_expanded_tensors_are_refused(device):
    x = torch.zeros(1, 3, device=device).expand(4, 3)
    with pytest.raises(RuntimeError, match="single memory location"):
        x.scatter_(0, torch.zeros(1, 3, dtype=torch.int64, device=device), 1.0)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.zeros(5, device=device).as_strided((3, 2), (1, 1)).masked_fill_(torch.ones(2, device=device) > 0, 1.0)


EXPANDED = {
    "masked_fill_": lambda x, mask, index: x.masked_fill_(mask, 2),
    "masked_fill_ with a tensor": lambda x, mask, index: x.masked_fill_(mask, torch.tensor(3.0, device=x.device)),
    "index_fill_": lambda x, mask, index: x.index_fill_(0, index, 4),
    "index_put_": lambda x, mask, index: x.index_put_((index,), torch.full((3,), 5.0, device=x.device)),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_writes_to_expanded_tensors_that_pytorch_warns_of(device, name):
    seen = []
    for where in ("cpu", device):
        base = torch.arange(3.0, device=where)
        x = base.view(3, 1).expand(3, 3)
        mask = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 1]], device=where) > 0
        with pytest.warns(UserWarning, match=f"Use of {name.split()[0]} on expanded tensors is deprecated"):
            EXPANDED[name](x, mask, torch.tensor([0, 2, 0], device=where))
        seen.append(base.tolist())
    assert seen[0] == seen[1]


def test_values_that_do_not_fit_are_refused_before_their_dtype(device):
    for where in ("cpu", device):
        x = torch.arange(4, device=where)
        for wrong in (torch.tensor([]), torch.ones(3)):
            with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape"):
                x[x > -1] = wrong.to(where)
        with pytest.raises(RuntimeError, match="Index put requires the source and destination dtypes match"):
            x[x > -1] = torch.ones(4, device=where)


def test_cpu_tensors_take_no_indices_of_a_device(device):
    x, index = torch.zeros(4, 3), torch.tensor([0, 2], device=device)
    message = r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)"
    for use in (lambda: x[index], lambda: x[:, index], lambda: x[torch.tensor([0, 1]), index]):
        with pytest.raises(RuntimeError, match=message):
            use()
    with pytest.raises(RuntimeError, match=message):
        x[index] = 1.0


def test_masked_scatter_of_too_few_elements(device):
    for x, source in ((torch.zeros(5), torch.ones(2)), (torch.zeros(2, 3), torch.ones(0))):
        for where in ("cpu", device):
            with pytest.raises(RuntimeError, match="Number of elements of source < number of ones in mask"):
                x.to(where).masked_scatter_(torch.ones(x.shape, device=where) > 0, source.to(where)).tolist()
    mask = torch.tensor([False, True, False, True, False], device=device)
    assert torch.zeros(5, device=device).masked_scatter_(mask, torch.ones(2, device=device)).tolist() == [0, 1, 0, 1, 0]


# Embeddings


# Indices out of range


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "fn", "bad", "wraps"),
    [
        ("index_select", lambda x, i: x.index_select(0, i), 7, False),
        ("gather", lambda x, i: x.gather(0, i[:, None]), -1, False),
        ("index", lambda x, i: x[i], -8, True),
        ("take", lambda x, i: x.take(i), 35, True),
        ("scatter", lambda x, i: x.scatter(0, i[:, None], 1), 7, False),
        ("scatter_add", lambda x, i: x.scatter_add(0, i[:, None], x), 2**40, False),
        ("scatter_reduce", lambda x, i: x.scatter_reduce(0, i[:, None], x, "amax"), 7, False),
        ("index_put", lambda x, i: (y := x.clone()).__setitem__(i, x[:2]) or y, 7, True),
        ("embedding", lambda x, i: F.embedding(i, x), 7, False),
        ("index_put", lambda x, i: x.index_put((i,), x[:2]), 7, True),
        ("index_copy", lambda x, i: x.index_copy(0, i, x[:2]), -1, False),
        ("index_add", lambda x, i: x.index_add(0, i, x[:2]), -(2**40), False),
        ("embedding_bag", lambda x, i: F.embedding_bag(i, x, i[:1] * 0), 7, False),
    ],
)
def test_out_of_range(device, name, fn, bad, wraps, dtype):
    """An IndexError that names operator and index at the next synchronisation; the device lives on."""
    x = torch.arange(35, device=device).view(7, 5).to(dtype)
    fn(x, torch.tensor([0, bad], device=device))
    dimension = "dimension" if name == "embedding_bag" else "dimension 0"
    words = rf"{name}: index {bad} is out of bounds for {dimension} with size 7"
    if name == "take":
        words = rf"out of range: tried to access index {bad} on a tensor of 35 elements\. \(take"
    with pytest.raises(IndexError, match=words):
        torch.webgpu.synchronize()
    torch.webgpu.synchronize()
    assert x.sum(dtype=torch.float32).item() == 595
    assert fn(x, torch.tensor([0, -1 if wraps else 1], device=device)).isfinite().all()


PYTORCHS_WORDS = {
    "one_hot": lambda d: F.one_hot(torch.tensor([0, 5], device=d), 3),
    "one_hot of a negative class": lambda d: F.one_hot(torch.tensor([0, -1], device=d), 3),
    "one_hot, classes counted": lambda d: F.one_hot(torch.tensor([0, -1], device=d)),
    "one_hot of no class": lambda d: F.one_hot(torch.tensor([0, 1], device=d), 0),
    "cross_entropy": lambda d: F.cross_entropy(torch.zeros(2, 3, device=d), torch.tensor([0, 5], device=d)),
    "cross_entropy of images": lambda d: F.cross_entropy(
        torch.zeros(2, 3, 4, 4, device=d), torch.full((2, 4, 4), 7, device=d)
    ),
    "multi_margin_loss": lambda d: F.multi_margin_loss(torch.zeros(2, 3, device=d), torch.tensor([0, 5], device=d)),
    "multilabel_margin_loss": lambda d: F.multilabel_margin_loss(
        torch.zeros(1, 3, device=d), torch.tensor([[0, 5, -1]], device=d)
    ),
    "max_unpool2d": lambda d: F.max_unpool2d(torch.ones(1, 2, 1, 1, device=d), torch.full((1, 2, 1, 1), 5).to(d), 2),
    "max_unpool3d": lambda d: F.max_unpool3d(
        torch.ones(1, 2, 1, 1, 1, device=d), torch.full((1, 2, 1, 1, 1), 9).to(d), 2
    ),
}


def synchronized(call, device):
    call(device)
    torch.webgpu.synchronize()


@pytest.mark.parametrize("call", PYTORCHS_WORDS.values(), ids=PYTORCHS_WORDS)
def test_what_is_out_of_range_has_pytorchs_words(device, call):
    """Where an index is a class, a target, a place to the user. Indices of planes must not reach the next plane."""
    with pytest.raises((IndexError, RuntimeError)) as expected:
        call("cpu")
    with pytest.raises(expected.type) as actual:
        synchronized(call, device)
    words = str(expected.value).split(" (output")[0]
    assert str(actual.value).startswith(words)
    assert (torch.ones(2, device=device) + 1).tolist() == [2, 2]


@pytest.mark.parametrize("classes", [-1, 3, 7])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)], ids=str)
def test_one_hot(device, shape, classes):
    if classes > 0 or shape != (0,):
        assert same(device, lambda x: F.one_hot(x, classes), torch.randint(0, 3, shape))
    for bad in (torch.randint(0, 3, shape).int(), torch.zeros(0, dtype=torch.int64)):
        same(device, lambda x: F.one_hot(x, classes), bad)


def test_no_index_is_in_a_dimension_of_size_0(device):
    """Seen by the shapes: raised at once, in PyTorch's words."""
    for use in (
        lambda d: torch.ones(10, 0, device=d)[:, [0, 1]],
        lambda d: torch.ones(0, 3, device=d)[torch.zeros(2, dtype=torch.int64, device=d)],
    ):
        with pytest.raises(IndexError, match="index is out of bounds for dimension with size 0"):
            use("cpu")
        with pytest.raises(IndexError, match="index is out of bounds for dimension with size 0"):
            use(device)
    assert torch.ones(10, 0, device=device)[:, []].shape == (10, 0)


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("reduce", ["mean", "prod"])
@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
def test_half_types_are_rounded_where_the_cpu_rounds_them(device, dtype, reduce, include_self, dim):
    """``index_reduce`` rounds each partial result, the others what is divided by a mean's count: bit for bit."""
    x, source = torch.randn(12, 12).to(dtype), torch.randn(12, 40).to(dtype)
    index = torch.randint(0, 12, (40,))
    if dim is None:
        x, source, dim = x[0], source[0], 0
    elif dim == 0:
        source = source.T
    points = index.view(-1, *[1] * (source.dim() - 1 - dim)).expand(source.shape)
    for call in (
        lambda x, i, p, s: x.index_reduce(dim, i, s, reduce, include_self=include_self),
        lambda x, i, p, s: x.scatter_reduce(dim, p, s, reduce, include_self=include_self),
    ):
        tensors = x, index, points, source
        actual, expected = call(*(t.to(device) for t in tensors)).cpu(), call(*tensors)
        assert torch.equal(actual, expected)


def test_values_of_another_dtype_are_refused_in_pytorchs_words(device):
    values = torch.tensor(2j, dtype=torch.complex128)
    for dtype in (torch.complex64, torch.float32):
        x, index = torch.zeros(5, dtype=dtype), torch.tensor([0, 2])
        assert not same(device, lambda x, i: x.index_put((i,), values), x, index)


def test_byte_masks_are_warned_of(device):
    mask = torch.tensor([1, 0, 1], dtype=torch.uint8, device=device)
    with pytest.warns(UserWarning, match="indexing with dtype torch.uint8 is now deprecated"):
        assert torch.arange(3, device=device)[mask].tolist() == [0, 2]


def test_means_of_complex_numbers(device):
    x = torch.zeros(2, dtype=torch.complex64)
    index, source = torch.tensor([0, 1, 0]), torch.tensor([1 + 1j, 2, 3])
    for include_self in (True, False):
        check(
            device, lambda x, i, s, k=include_self: x.scatter_reduce(0, i, s, "mean", include_self=k), x, index, source
        )
    with pytest.raises(NotImplementedError):
        x.to(device).scatter_reduce(0, index.to(device), source.to(device), "amax")


@pytest.mark.parametrize("method", ["index_add", "scatter", "index_copy"])
def test_out_may_be_the_first_argument(device, method):
    def run(d):
        x = torch.tensor([[3.0, 1, 2], [5, 4, 6]], device=d)
        if method == "scatter":
            return torch.scatter(x, 1, torch.zeros(2, 3, dtype=torch.int64, device=d), 9.0, out=x)
        return getattr(torch, method)(x, 0, torch.tensor([1, 0], device=d), torch.ones(2, 3, device=d), out=x)

    assert torch.equal(run(device).cpu(), run("cpu"))


def test_index_into_nothing(device):
    x = torch.empty(0, 4, device=device)
    x.index_select(0, torch.tensor([0], device=device))
    with pytest.raises(IndexError, match="size 0"):
        torch.webgpu.synchronize()
    assert x.index_select(0, torch.empty(0, dtype=torch.int64, device=device)).shape == (0, 4)
