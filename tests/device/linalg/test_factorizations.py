"""Factorizations and what is solved with them, against float64 and beside the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from tests.device.against_cpu import check, layouts
from tests.device.linalg.decompositions import regular
from torch.utils._pytree import tree_leaves

from torch_webgpu.aten.linalg import cholesky
from torch_webgpu.plan import trace
from torch_webgpu.target import named

DTYPES = (torch.float32, torch.complex64, torch.float64)
SIZES = (1, 2, 5, 16, 31, 32, 33, 64, 70)
SHAPES = ((5, 3), (3, 5), (33, 32), (32, 33), (40, 100), (150, 40))
WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128, torch.float64: torch.float64}


@pytest.fixture(autouse=True)
def natively():
    """No test may have run on the CPU."""
    before = torch.webgpu.fallback_stats()
    yield
    assert torch.webgpu.fallback_stats() == before


def bound(dtype: torch.dtype, n: int) -> float:
    return 100 * torch.finfo(dtype).eps * max(n, 4)


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(*shape, dtype=dtype)
    return x @ x.mH / shape[-1] + torch.eye(shape[-1])


def agree(device: torch.device, fn: Callable[..., object], *tensors: torch.Tensor) -> None:
    """``fn`` gives what it gives in float64, within some roundings, in the layouts of the CPU."""
    results = tree_leaves(fn(*[t.to(device) for t in tensors]))
    exact = tree_leaves(fn(*[t.to(WIDE.get(t.dtype, t.dtype)) for t in tensors]))
    like = tree_leaves(fn(*tensors))
    for result, x, cpu in zip(results, exact, like, strict=True):
        assert (result.dtype, result.shape, result.stride()) == (cpu.dtype, cpu.shape, cpu.stride())
        if x.numel() and x.dtype.is_floating_point | x.dtype.is_complex:
            n = max(tensors[0].shape[-2:])
            error = (result.cpu().to(x.dtype) - x).abs().max() / x.abs().max().clamp(min=1e-30)
            assert error < bound(cpu.dtype, n), (error, tensors[0].shape)
        elif x.numel():
            assert torch.equal(result.cpu(), cpu)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(device, dtype, upper):
    for n in SIZES:
        agree(device, lambda a: torch.linalg.cholesky(a, upper=upper), positive(2, n, n, dtype=dtype))
    a, b = positive(3, 40, 40, dtype=dtype), torch.randn(3, 40, 35, dtype=dtype)
    agree(device, lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a, upper=upper), upper), a, b)
    agree(device, lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a, upper=upper), upper), a)


@pytest.fixture
def stepwise(monkeypatch):
    """As on GPUs: up to 96 rows a dispatch for each block of columns, halves above."""
    monkeypatch.setattr(cholesky, "is_stepwise", lambda n, target: n <= 96)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_step_by_step(device, dtype, upper, stepwise):
    for n in (33, 47, 48, 64, 65, 96, 150):
        agree(device, lambda a: torch.linalg.cholesky(a, upper=upper), positive(2, n, n, dtype=dtype))
    agree(device, lambda a: torch.linalg.cholesky(a.mT, upper=upper), positive(70, 70, dtype=dtype))


def test_steps_of_cholesky_tell_what_is_not_positive(device, stepwise):
    for row in (0, 20, 31, 32, 50, 63, 64, 69):
        a = positive(3, 70, 70)
        a[1, row, row] = -1
        a[2, row, row] = torch.nan
        assert torch.equal(torch.linalg.cholesky_ex(a.to(device)).info.cpu(), torch.linalg.cholesky_ex(a).info)


def test_cholesky_takes_a_gpu_a_dispatch_for_each_block_of_columns():
    def factor(a):
        return torch.linalg.cholesky_ex(a)[0]

    large = torch.empty(1024, 1024, device="meta")
    assert len(trace(factor, large, target="h200-dawn").steps) <= 1024 // 32 + 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems(device, dtype, left, upper, unit):
    def solve(a, b):
        return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)

    for n in (1, 7, 32, 70):
        a, b = regular(n, n, dtype=dtype).roll(-1, -2) / (n if unit else 1), torch.randn(2, n, 40, dtype=dtype)
        agree(device, solve, a, b if left else b.mT)
        agree(device, solve, a.mT.contiguous().mT, b if left else b.mH)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lu(device, dtype):
    for n in SIZES:
        agree(device, torch.linalg.lu_factor_ex, regular(2, n, n, dtype=dtype))
    for shape in SHAPES:
        agree(device, torch.linalg.lu, torch.randn(2, *shape, dtype=dtype))
        a = torch.randn(2, *shape, dtype=dtype).to(device)
        factors = torch.linalg.lu_factor_ex(a, pivot=False)
        p, *_ = torch.lu_unpack(*factors[:2])
        assert torch.equal(p.cpu(), torch.eye(shape[0], dtype=dtype).expand(2, -1, -1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_systems_inverses_and_determinants(device, dtype):
    for n in (1, 5, 32, 33, 70):
        a, b, v = regular(2, n, n, dtype=dtype), torch.randn(2, n, 3, dtype=dtype), torch.randn(2, n, dtype=dtype)
        agree(device, torch.linalg.solve, a, b)
        agree(device, torch.linalg.solve, a, v)
        agree(device, lambda a, b: torch.linalg.solve(a, b, left=False), a, b.mT)
        agree(device, torch.linalg.inv, a)
        agree(device, torch.linalg.slogdet, a)
        agree(device, torch.linalg.det, a[..., :16, :16])
        for left in (True, False):
            for adjoint in (True, False):
                factors = torch.linalg.lu_factor(a)

                def solve(lu, pivots, b, left=left, adjoint=adjoint):
                    return torch.linalg.lu_solve(lu, pivots, b if left else b.mT, left=left, adjoint=adjoint)

                agree(device, solve, *factors, b)


def indefinite(*shape: int, dtype: torch.dtype, hermitian: bool) -> torch.Tensor:
    """Matrices with pivots of one row and of two."""
    x = torch.randn(*shape, dtype=dtype)
    return x + (x.mH if hermitian else x.mT)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hermitian", [False, True])
def test_ldl(device, dtype, hermitian):
    """The pivots are LAPACK's, where rounding decides nothing; systems are solved as well as the CPU solves them."""
    for n in (1, 2, 3, 5, 16, 33, 70):
        a = indefinite(3, n, n, dtype=dtype, hermitian=hermitian)
        b = torch.randn(3, n, 4, dtype=dtype)
        cpu = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
        found = torch.linalg.ldl_factor_ex(a.to(device), hermitian=hermitian)
        for here, there in zip(found, cpu, strict=True):
            assert (here.dtype, here.shape, here.stride()) == (there.dtype, there.shape, there.stride())
        assert torch.equal(found.pivots.cpu(), cpu.pivots)
        assert torch.equal(found.info.cpu(), cpu.info)
        error = (found.LD.cpu() - cpu.LD).abs().max() / cpu.LD.abs().max()
        assert error < bound(dtype, n)
        x = torch.linalg.ldl_solve(found.LD, found.pivots, b.to(device), hermitian=hermitian)
        exact = torch.linalg.ldl_solve(cpu.LD, cpu.pivots, b, hermitian=hermitian)
        assert x.stride() == exact.stride()
        residual = (a @ x.cpu() - b).abs().max() / (a.abs().max() * x.cpu().abs().max())
        assert residual < bound(dtype, n)


def test_ldl_without_a_pivot(device):
    """Zero columns are told in the info, and skipped."""
    for a in (torch.zeros(4, 4), torch.diag(torch.tensor([1.0, 0, 2])), torch.zeros(70, 70), torch.eye(2).flip(0)):
        cpu, found = torch.linalg.ldl_factor_ex(a), torch.linalg.ldl_factor_ex(a.to(device))
        for here, there in zip(found, cpu, strict=True):
            assert torch.equal(here.cpu(), there)
    nan = torch.linalg.ldl_factor_ex(torch.full((70, 70), torch.nan, device=device))
    assert nan.LD.cpu().tril().isnan().any()
    assert nan.info.item() > 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (32, 32), (70, 70), *SHAPES], ids=str)
def test_qr(device, dtype, shape):
    a = torch.randn(2, *shape, dtype=dtype)
    exact, limit = a.to(WIDE[dtype]), bound(dtype, max(shape))
    for mode in ("reduced", "complete"):
        q, r = torch.linalg.qr(a.to(device), mode)
        cpu = torch.linalg.qr(a, mode)
        assert [(t.shape, t.stride()) for t in (q, r)] == [(t.shape, t.stride()) for t in cpu]
        q, r = q.cpu().to(exact.dtype), r.cpu().to(exact.dtype)
        assert (q @ r - exact).abs().max() < limit
        assert (q.mH @ q - torch.eye(q.shape[-1])).abs().max() < limit
        assert torch.equal(r, r.triu())
    factors, tau = torch.geqrf(a.to(device))
    whole = torch.linalg.qr(a.to(device), "complete")[0]
    c = torch.randn(2, shape[0], 7, dtype=dtype).to(device)
    for transpose in (False, True):
        q = whole.mH if transpose else whole
        for left in (True, False):
            operand = c if left else c.mT
            product = torch.ormqr(factors, tau, operand, left, transpose)
            assert (product - (q @ operand if left else operand @ q)).abs().max() < limit


def test_reflections_in_any_layout(device):
    """Also where vectors, not only matrices, are parts of larger ones, or the same for a batch."""
    a, tau, c = torch.geqrf(torch.randn(2, 3, 5, 5))[0], torch.randn(2, 3, 8), torch.randn(2, 3, 5, 5)
    for part in (lambda t: t[..., 1:6], lambda t: t[:, :1, :5].expand(2, 3, 5), lambda t: t[..., :1].expand(2, 3, 5)):
        here = part(tau.to(device))
        assert here.stride() == part(tau).stride()
        for fn, others in ((torch.linalg.householder_product, ()), (torch.ormqr, (c,))):
            found = fn(a.to(device), here, *[t.to(device) for t in others])
            torch.testing.assert_close(found.cpu(), fn(a, part(tau), *others), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reflections_of_what_is_left_by_rounding(device, dtype):
    """Columns of a matrix of rank 1: after two reflections squares of what is left are too small for float32."""
    for n in (5, 40):
        for _ in range(20):
            column = torch.randn(n, 1, dtype=dtype)
            for a in (column.expand(n, n), column.mT.expand(n, n)):
                q, r = torch.linalg.qr(a.contiguous().to(device))
                torch.testing.assert_close((q @ r).cpu(), a.contiguous(), rtol=1e-4, atol=1e-4)


def test_triangles_with_a_negative_bit(device):
    """PyTorch leaves it to this operator."""
    a, b = torch.randn(4, 4, dtype=torch.complex64), torch.randn(4, 2)

    def solve(a, b):
        imaginary = a.conj().imag
        assert imaginary.is_neg()
        return torch.linalg.solve_triangular(imaginary, b, upper=True)

    torch.testing.assert_close(solve(a.to(device), b.to(device)).cpu(), solve(a, b), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exponential(device, dtype):
    for n in (2, 5, 40):
        a = torch.randn(3, n, n, dtype=dtype) / n**0.5 * torch.tensor([0.001, 1, 5]).view(3, 1, 1)
        for k in range(3):
            agree(device, torch.linalg.matrix_exp, a[k])
        exact = torch.linalg.matrix_exp(a.to(WIDE[dtype]))
        error = (torch.linalg.matrix_exp(a.to(device)).cpu() - exact).abs().amax((1, 2)) / exact.abs().amax((1, 2))
        assert error.max() < bound(dtype, n)
    a[1, 0, 0] = torch.nan
    assert torch.linalg.matrix_exp(a.to(device)).isnan().all((1, 2)).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_exponential_in_16_bits(device, dtype):
    """It is rounded once; the CPU's rounds at each step, and is NaN where a step's number is too large."""
    a = (torch.randn(3, 5, 5) / 2).to(dtype)
    exact = torch.linalg.matrix_exp(a.double())
    found = torch.linalg.matrix_exp(a.to(device))
    expected = torch.linalg.matrix_exp(a)
    assert (found.dtype, found.stride()) == (dtype, expected.stride())
    assert ((found.cpu().double() - exact).abs() <= 0.51 * torch.finfo(dtype).eps * exact.abs() + 1e-5).all()


def test_layouts(device):
    for make in (torch.randn, lambda *s: torch.randn(*s, dtype=torch.complex64)):
        for x in layouts(make, 3, 40, 40).values():
            check(device, lambda x: torch.linalg.inv(x + 99 * torch.eye(40, device=x.device)), x, tol=1e-4)
            check(device, lambda x: torch.linalg.qr(x)[1].abs(), x[:, :, :5], tol=1e-3)


def empty_shapes() -> Sequence[tuple[int, ...]]:
    return ((0, 3, 3), (2, 0, 0), (0, 0))


@pytest.mark.parametrize("shape", empty_shapes(), ids=str)
def test_empty(device, shape):
    functions = (
        torch.linalg.cholesky_ex, torch.linalg.lu_factor_ex, torch.linalg.lu, torch.linalg.qr, torch.linalg.inv_ex,
        torch.linalg.det, torch.linalg.slogdet, torch.geqrf, torch.linalg.ldl_factor_ex,
        lambda x: torch.linalg.solve(x, x), lambda x: torch.linalg.qr(x, "complete"),
    )  # fmt: skip
    for fn in functions:
        check(device, fn, torch.randn(shape))
    check(device, lambda x: torch.linalg.qr(x, "complete"), torch.randn(4, 0))


def test_what_cannot_be_factored(device):
    """Infos, and the words of the errors that checks of them raise."""
    singular = torch.ones(2, 40, 40)
    singular[0] += torch.eye(40)
    indefinite = torch.eye(40).repeat(2, 1, 1)
    indefinite[1, 35, 35] = -1
    nan = torch.eye(3)
    nan[1, 1] = torch.nan
    for fn, a in (
        (torch.linalg.cholesky_ex, indefinite),
        (torch.linalg.cholesky_ex, nan),
        (torch.linalg.lu_factor_ex, torch.zeros(2, 3, 3)),
        (torch.linalg.inv_ex, torch.ones(3, 3)),
    ):
        assert torch.equal(fn(a.to(device))[-1].cpu(), fn(a)[-1])
    for fn, a in (
        (torch.linalg.cholesky, indefinite),
        (torch.linalg.cholesky, -torch.eye(2)),
        (torch.linalg.inv, torch.zeros(2, 2)),
        (torch.linalg.lu_factor, torch.zeros(3, 2, 2)),
        (torch.cholesky_inverse, torch.zeros(2, 2)),
        (lambda a: torch.linalg.solve(a, a), torch.zeros(3, 2, 2)),
        (lambda a: torch.linalg.cholesky_ex(a, check_errors=True), indefinite),
        (lambda a: torch.linalg.inv_ex(a, check_errors=True), torch.zeros(2, 2)),
    ):
        with pytest.raises(RuntimeError) as on_cpu:
            fn(a)
        with pytest.raises(RuntimeError) as here:
            fn(a.to(device))
        assert (type(here.value), str(here.value)) == (type(on_cpu.value), str(on_cpu.value))


def test_nan_spreads_and_ends(device):
    a = torch.randn(70, 70)
    a[3, 2] = torch.nan
    for fn in (torch.linalg.lu_factor_ex, torch.linalg.qr, torch.linalg.inv_ex):
        assert fn(a.to(device))[0].cpu().isnan().any()
    pivots = torch.linalg.lu_factor_ex(torch.full((70, 70), torch.nan, device=device))[1].cpu()
    assert (pivots >= torch.arange(1, 71)).all()
    assert (pivots <= 70).all()


def test_large_and_small_numbers_keep_their_norms(device):
    for scale in (1e25, 1e-25):
        a = torch.randn(40, 20)
        r = torch.linalg.qr((scale * a).to(device))[1].cpu() / scale
        torch.testing.assert_close(r, torch.linalg.qr(a)[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [1, 2, 3, 0.5, 0, float("inf")])
def test_norms_of_single_elements(device, p):
    """Are their magnitudes, also where a power would be too large or too small."""
    for x in (torch.tensor([[1e30], [-1e-30], [torch.nan]]), torch.tensor([[3e25 + 4e25j], [0j]])):
        found = torch.linalg.vector_norm(x.to(device), p, dim=1)
        torch.testing.assert_close(found.cpu(), torch.linalg.vector_norm(x, p, dim=1), equal_nan=True)


@pytest.mark.parametrize("fn", [torch.linalg.inv, torch.linalg.det, lambda a: torch.linalg.qr(a)[1],
                                lambda a: torch.linalg.cholesky(a @ a.mT), lambda a: torch.linalg.lu(a)[2],
                                lambda a: torch.linalg.solve(a, a @ a), torch.linalg.matrix_exp])  # fmt: skip
def test_derivatives(device, fn):
    a = regular(2, 6, 6)
    check(device, fn, a, backward=True, tol=1e-3)
    tangent = torch.randn(2, 6, 6)
    forward = torch.func.jvp(fn, (a.to(device),), (tangent.to(device),))[1]
    torch.testing.assert_close(forward.cpu(), torch.func.jvp(fn, (a,), (tangent,))[1], rtol=1e-3, atol=1e-3)


def test_nothing_is_read_back(device):
    """Whole plans, for a browser's limits: no infos are read in functions that return them."""
    a = torch.empty(100, 100, device="meta")
    for fn in (torch.linalg.cholesky_ex, torch.linalg.lu_factor_ex, torch.linalg.inv_ex, torch.linalg.qr,
               torch.linalg.ldl_factor_ex):  # fmt: skip
        assert trace(fn, a, target=named("browser")).steps


def test_products_are_precise_whatever_the_program_allows(device):
    a = positive(150, 150)
    expected = torch.linalg.inv(a.double()).float()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        torch.testing.assert_close(torch.linalg.inv(a.to(device)).cpu(), expected, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_float32_matmul_precision(before)


def test_compiled(device):
    fn = torch.compile(lambda a, b: torch.linalg.solve(a, b) + torch.linalg.det(a))
    a, b = regular(5, 5), torch.randn(5, 2)
    torch.testing.assert_close(fn(a.to(device), b.to(device)).cpu(), torch.linalg.solve(a, b) + torch.linalg.det(a))
