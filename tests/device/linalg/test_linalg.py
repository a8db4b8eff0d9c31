"""Matrix products on the device against the CPU: every kernel, dtype, layout and edge."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch
from tests.device.against_cpu import HALF_TYPES, check, layouts
from tests.device.choices import forget

from torch_webgpu.kernels.matmul import blocked, matmul, tile

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def tolerance(dtype: torch.dtype) -> float:
    return 3e-2 if dtype in HALF_TYPES else 1e-4


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    return torch.randint(-100, 100, shape).to(dtype)


# Sizes that take the matrix-vector kernel, each tile of the blocked one with and without padding, and split sums.
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (1, 1, 1),
        (1, 300, 70),
        (70, 300, 1),
        (1, 5000, 1),
        (5, 7, 9),
        (32, 16, 32),
        (40, 70, 90),
        (3, 1500, 5),
        (70, 33, 66),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sizes(device, m, k, n, dtype):
    a, b = numbers(m, k, dtype=dtype) / k**0.5, numbers(k, n, dtype=dtype)
    check(device, torch.mm, a, b, backward=dtype == torch.float32, tol=tolerance(dtype))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("shape", matmul.TILES, ids=str)
def test_tiles(device, monkeypatch, shape, splits):
    """Every tile, whichever the cost model would choose here, with sums in one part and in several."""

    def plan(slices: int, m: int, n: int, k: int, *_: object) -> tile.Blocking:
        return tile.Blocking(shape, splits, -(-k // splits // shape.k) * shape.k)

    monkeypatch.setattr(blocked, "blocking", plan)
    forget(monkeypatch)
    a, b, c = numbers(2, 140, 70), numbers(2, 70, 133), numbers(133)
    if splits == 1:
        check(device, lambda a, b, c: torch.addmm(c, a, b), a[0], b[0], c, tol=1e-4)
        half = [t.bfloat16() for t in (a[0], b[0, :, :132], c[:132])]
        check(device, lambda a, b, c: torch.addmm(c, a, b), *half, tol=0.2)
    else:
        check(device, lambda a, b: torch.bmm(a.mT, b.mT), a.mT.contiguous(), b.mT.contiguous(), tol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shift", [0, 1, 4])
def test_vectors(device, dtype, shift):
    """Groups of four along the rows or the columns of the matrix, or none because of where it starts."""
    storage = numbers(512 * 68 + shift, dtype=dtype) / 16
    wide = storage[shift:].view(512, 68)
    tall = storage[shift : shift + 512 * 60].view(60, 512)
    for x in (numbers(1, 512, dtype=dtype), numbers(513, dtype=dtype)[1:][None]):
        for matrix in (wide, tall.t(), wide[:, 4:24], wide[:, 1:23]):
            check(device, torch.mm, x, matrix, tol=tolerance(dtype) * 3)
            check(device, lambda x, w: torch.mv(w.t(), x[0]), x, matrix, tol=tolerance(dtype) * 3)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(20, 30, 17), (1, 3000, 4), (33, 5, 1)])
def test_integers_wrap_exactly(device, dtype, m, k, n):
    check(device, torch.mm, numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype))


@pytest.mark.parametrize(("m", "k", "n"), [(20, 30, 17), (1, 3000, 4), (33, 5, 1), (32, 64, 48)])
def test_int8_in_int32(device, m, k, n):
    a, b = torch.randint(-128, 128, (m, k)).to(torch.int8), torch.randint(-128, 128, (k, n)).to(torch.int8)
    check(device, torch._int_mm, a, b)
    check(device, torch._int_mm, a.t().contiguous().t(), b.t().contiguous().t())
    out = torch.empty(m, n, dtype=torch.int32)
    check(device, lambda a, b, out: torch._int_mm(a, b, out=out), a, b, out)


def test_int8_in_int32_refuses_what_pytorch_refuses(device):
    a = torch.ones(4, 5, dtype=torch.int8)
    for b in (a, a.t().int(), a[0]):
        with pytest.raises((RuntimeError, IndexError)) as refused:
            torch._int_mm(a, b)
        with pytest.raises(refused.type):
            torch._int_mm(a.to(device), b.to(device))


def test_int64_beyond_32_bits(device):
    a, b = torch.randint(-(2**40), 2**40, (20, 30)), torch.randint(-(2**40), 2**40, (30, 17))
    check(device, torch.mm, a, b)
    check(device, torch.dot, a[0], b[:, 0])


def test_complex(device):
    a, b = numbers(20, 30, dtype=torch.complex64), numbers(20, 17, dtype=torch.complex64)
    check(device, lambda a, b: a.mH @ b, a, b, tol=1e-4)
    check(device, torch.vdot, a[:, 0], b[:, 0], tol=1e-4)


def test_bool_is_refused(device):
    with pytest.raises(NotImplementedError, match="Bool"):
        torch.ones(2, 2, dtype=torch.bool, device=device) @ torch.ones(2, 2, dtype=torch.bool, device=device)


@pytest.mark.parametrize("left", ["contiguous", "transposed", "sliced", "offset", "expanded"])
@pytest.mark.parametrize("right", ["contiguous", "transposed", "expanded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layouts(device, left, right, dtype):
    def make(*shape: int) -> torch.Tensor:
        return numbers(*shape, dtype=dtype)

    check(device, torch.mm, layouts(make, 40, 24)[left], layouts(make, 24, 34)[right], tol=tolerance(dtype) * 10)


def test_layouts_in_batches(device):
    a = layouts(numbers, 3, 12, 24)
    b = layouts(numbers, 3, 24, 10)
    for left in a.values():
        for right in b.values():
            check(device, torch.bmm, left, right, tol=1e-4)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(13, 17, 20), (13, 1700, 20), (1, 17, 20), (13, 17, 1)])
def test_addmm(device, dtype, m, k, n):
    scale = 1 if not dtype.is_floating_point else k**-0.5
    a, b = numbers(m, k, dtype=dtype) * scale, numbers(k, n, dtype=dtype)
    for c in (numbers(n, dtype=dtype), numbers(m, 1, dtype=dtype), numbers(m, n, dtype=dtype)):
        check(device, lambda c, a, b: torch.addmm(c, a, b, beta=3, alpha=2), c, a, b, tol=tolerance(dtype) * 10)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_beta_zero_ignores_the_input(device, dtype):
    c = torch.full((4, 6), float("nan"), dtype=dtype)
    a, b = numbers(4, 5, dtype=dtype), numbers(5, 6, dtype=dtype)
    check(device, lambda c, a, b: torch.addmm(c, a, b, beta=0), c, a, b, tol=tolerance(dtype))


@pytest.mark.parametrize("sizes", list(product((0, 2), (0, 3), (0, 4), (0, 5))), ids=str)
def test_add_forms_of_no_elements(device, sizes):
    b, m, k, n = sizes
    operands = numbers(m, n), numbers(b, m, k), numbers(b, k, n)
    check(device, lambda c, x, y: torch.addbmm(c, x, y, beta=2), *operands, backward=True, tol=1e-4)
    check(device, lambda c, x, y: torch.baddbmm(c, x, y, beta=2), *operands, backward=True, tol=1e-4)


def test_gelu_after_a_product_is_the_exact_one(device):
    for use_gelu in (True, False):
        activation = partial(torch._addmm_activation, use_gelu=use_gelu)
        check(device, activation, numbers(6), numbers(5, 7), numbers(7, 6), tol=1e-5)


@pytest.mark.parametrize("shape", [(5, 6), (6,), (1, 6), (5, 1), (1,), ()], ids=str)
def test_addbmm_in_place_takes_the_shape_it_is_broadcast_to(device, shape):
    m, a, b = numbers(*shape), numbers(3, 5, 7), numbers(3, 7, 6)
    ours = m.to(device)
    expected = torch.addbmm(m, a, b, beta=0.5, alpha=2)
    assert ours.addbmm_(a.to(device), b.to(device), beta=0.5, alpha=2) is ours
    torch.testing.assert_close(ours.cpu(), expected, rtol=1e-4, atol=1e-4)
    if shape != (5, 1):  # the CPU's then reads what it has already written
        torch.testing.assert_close(m.addbmm_(a, b, beta=0.5, alpha=2), expected)
        assert ours.stride() == m.stride()


@pytest.mark.parametrize("shape", [(1, 5, 6), (2, 5, 6), (7, 6), (1, 6, 6)], ids=str)
@pytest.mark.parametrize("name", ["addmm", "addmm_", "addbmm", "addbmm_"])
def test_add_forms_refuse_what_cannot_be_broadcast(device, name, shape):
    operands = numbers(*shape), numbers(3, 5, 7), numbers(3, 7, 6)
    if name.startswith("addmm"):
        operands = operands[0], operands[1][0], operands[2][0]
    for where in ("cpu", device):
        m, a, b = (t.to(where) for t in operands)
        with pytest.raises(RuntimeError, match=r"size|shape|expand"):
            getattr(m, name)(a, b)


def test_add_forms(device):
    m, a, b = numbers(5, 6), numbers(3, 5, 7), numbers(3, 7, 6)
    check(device, lambda m, a, b: torch.baddbmm(m, a, b, beta=0.5, alpha=2), m, a, b, backward=True, tol=1e-4)
    check(device, lambda m, a, b: torch.addbmm(m, a, b, beta=0.5, alpha=2), m, a, b, backward=True, tol=1e-4)
    v, x = numbers(5), numbers(7)
    check(device, lambda v, a, x: torch.addmv(v, a, x, beta=0.5, alpha=2), v, a[0], x, backward=True, tol=1e-4)
    check(device, lambda m, v, w: torch.addr(m, v, w, beta=0.5, alpha=2), m, v, numbers(6), backward=True, tol=1e-4)
    check(device, torch.dot, x, numbers(7), backward=True, tol=1e-4)
    check(device, torch.mv, a[0], x, backward=True, tol=1e-4)
    check(device, torch.outer, v, x, backward=True, tol=1e-4)


def test_nothing_to_sum(device):
    a, b = numbers(5, 0), numbers(0, 6)
    check(device, torch.mm, a, b)
    check(device, lambda c, a, b: torch.addmm(c, a, b, beta=2), numbers(6), a, b)
    check(device, torch.mm, numbers(0, 5), numbers(5, 6))
    check(device, torch.bmm, numbers(0, 5, 4), numbers(0, 4, 6))
    check(device, torch.dot, numbers(0), numbers(0))


def test_matmul_broadcasts(device):
    check(device, torch.matmul, numbers(2, 1, 5, 4), numbers(3, 4, 6), backward=True, tol=1e-4)
    check(device, torch.matmul, numbers(4), numbers(3, 4, 6), backward=True, tol=1e-4)
    check(device, torch.matmul, numbers(3, 6, 4), numbers(4), backward=True, tol=1e-4)
    check(device, lambda a, b: torch.einsum("bij,bkj->bik", a, b), numbers(2, 5, 4), numbers(2, 6, 4), tol=1e-4)
    check(device, lambda a, b: torch.tensordot(a, b, 2), numbers(4, 5, 6), numbers(5, 6, 3), tol=1e-4)


def test_linear(device):
    for x in (numbers(17), numbers(3, 17), numbers(2, 3, 17)):
        check(device, torch.nn.functional.linear, x, numbers(20, 17), numbers(20), backward=True, tol=1e-4)


def test_out_and_inplace(device):
    a, b, c = numbers(5, 4), numbers(4, 6), numbers(5, 6)
    check(device, lambda a, b: torch.mm(a, b, out=torch.empty(6, 5, device=a.device).t()), a, b, tol=1e-4)
    check(device, lambda a, b, c: c.clone().addmm_(a, b, beta=0.5), a, b, c, tol=1e-4)
    square = numbers(6, 6)
    check(device, lambda x: torch.mm(x, x, out=x.clone()), square, tol=1e-4)
    # Not what the CPU says: its addmm_ reads what it has overwritten.
    x = square.to(device)
    torch.testing.assert_close(x.addmm_(x, x).cpu(), square + square @ square, rtol=1e-4, atol=1e-4)


def test_errors_are_pytorchs(device):
    a, b = numbers(2, 3).to(device), numbers(4, 5).to(device)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(a, b)
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.mm(a, b[:3].half())
