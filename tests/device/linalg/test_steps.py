"""LU and QR factorization and triangular systems block by block, as on GPUs, on whatever adapter there is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.device.linalg.decompositions import DTYPES, assert_orthonormal, natively, regular, wide
from torch.utils._pytree import tree_leaves

from torch_webgpu.aten.linalg import lu, qr, triangular
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.linalg import lu_steps, qr_steps
from torch_webgpu.kernels.linalg import triangular as kernels
from torch_webgpu.kernels.linalg.triangular import Triangle
from torch_webgpu.plan import trace
from torch_webgpu.target import Target, named
from torch_webgpu.wgsl.launch import Lowered
from torch_webgpu.wgsl.link import link

Alias = tuple[int, ...]


def lower_lu_step(
    op: Operation, alias: Alias, target: Target, first: int, start: int, depth: int, pivot: bool
) -> Lowered:
    return lu_steps.lower_lu_step(op, alias, replace(target, software=False), first, start, depth, pivot)


def lower_triangular_step(op: Operation, alias: Alias, target: Target, start: int, triangle: Triangle) -> Lowered:
    return kernels.lower_triangular_step(op, alias, replace(target, software=False), start, triangle)


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    """A dispatch for each block up to 200 columns, or 150 rows, by the kernels of GPUs; halves above. Workgroups are so
    small that 128 rows of two words are too many for blocks of their usual width.
    """

    monkeypatch.setattr(lu, "is_stepwise", lambda rows, columns, dtype, target: columns <= 200)
    monkeypatch.setattr(triangular, "is_stepwise", lambda n, target: 32 < n <= 150)
    monkeypatch.setattr(lu_steps, "MOST_THREADS", 64)
    monkeypatch.setattr(lu, "lower_lu_step", lower_lu_step)
    monkeypatch.setattr(triangular, "lower_triangular_step", lower_triangular_step)
    monkeypatch.setattr(qr, "is_stepwise", lambda rows, dtype, target: rows <= 300)
    monkeypatch.setattr(qr_steps, "MOST_THREADS", 64)
    monkeypatch.setattr(qr_steps, "MOST_APPLYING", 32)
    # With more, MKL's LU of batches of 200 rows, with which results are compared, has wrong pivots.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with natively():
            yield
    finally:
        torch.set_num_threads(threads)


def assert_agree(device: torch.device, fn: Callable[..., object], *tensors: torch.Tensor) -> None:
    """Within some roundings, in the layouts of the CPU; what is no float exactly."""
    results, cpus = (tree_leaves(fn(*[t.to(to) for t in tensors])) for to in (device, torch.device("cpu")))
    exact = tree_leaves(fn(*map(wide, tensors)))
    for result, cpu, x in zip(results, cpus, exact, strict=True):
        assert (result.dtype, result.shape, result.stride()) == (cpu.dtype, cpu.shape, cpu.stride())
        if cpu.is_floating_point() or cpu.is_complex():
            error = (wide(result) - x).norm() / x.norm()
            assert error < 100 * torch.finfo(cpu.dtype).eps * max(tensors[0].shape[-2:]), error
        else:
            assert torch.equal(result.cpu(), cpu)


SHAPES = ((2, 33, 33), (70, 70), (130, 130), (250, 250), (2, 40, 100), (20, 300), (150, 40), (300, 40))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lu(device, dtype):
    for shape in SHAPES:
        assert_agree(device, torch.linalg.lu_factor_ex, regular(*shape, dtype=dtype))
        a = torch.randn(shape, dtype=dtype)
        factors, pivots, info = torch.linalg.lu_factor_ex(a.to(device))
        exact = torch.linalg.lu_factor_ex(a)
        assert torch.equal(pivots.cpu(), exact.pivots)
        assert torch.equal(info.cpu(), exact.info)
        p, lower, upper = map(wide, torch.lu_unpack(factors, pivots))
        error = (p @ lower @ upper - wide(a)).norm() / a.norm()
        assert error < 4 * torch.finfo(dtype).eps * max(shape)


def test_without_pivots(device):
    a = regular(2, 70, 70, dtype=torch.float32).roll(-1, -2)
    factors, pivots, info = torch.linalg.lu_factor_ex(a.to(device), pivot=False)
    lower, upper = wide(factors).tril(-1) + torch.eye(70), wide(factors).triu()
    torch.testing.assert_close(lower @ upper, a.double(), rtol=1e-5, atol=1e-5)
    assert torch.equal(pivots.cpu(), torch.arange(1, 71, dtype=torch.int32).expand(2, -1))
    assert not info.any()


def test_what_cannot_be_factored(device):
    """Infos and pivots are the CPU's; NaN is chosen, and spreads."""
    a = torch.randn(5, 70, 70)
    a[0, :, 40] = 0
    a[1, 50, 35] = torch.nan
    a[2] = 1
    a[3] = 0
    found, exact = torch.linalg.lu_factor_ex(a.to(device)), torch.linalg.lu_factor_ex(a)
    assert torch.equal(found.info.cpu(), exact.info)
    assert torch.equal(found.pivots.cpu(), exact.pivots)
    assert torch.equal(found.LU.cpu().isnan(), exact.LU.isnan())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_systems_and_inverses(device, dtype):
    for n in (33, 70, 250):
        a, b = regular(2, n, n, dtype=dtype), torch.randn(2, n, 3, dtype=dtype)
        assert_agree(device, torch.linalg.solve, a, b)
        assert_agree(device, torch.linalg.solve, a, b[..., 0])
        assert_agree(device, torch.linalg.solve, a[0], b)
        assert_agree(device, lambda a, b: torch.linalg.solve(a, b.conj()), a, b[:1].expand(2, -1, -1))
        assert_agree(device, lambda a, b: torch.linalg.solve(a, b, left=False), a, b.mT)
        assert_agree(device, torch.linalg.inv, a)
        for left, adjoint in itertools.product((True, False), repeat=2):

            def solve(a, b, left=left, adjoint=adjoint):
                factors = torch.linalg.lu_factor(a)
                return torch.linalg.lu_solve(*factors, b if left else b.mT, left=left, adjoint=adjoint)

            assert_agree(device, solve, a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems(device, dtype, left, upper, unit):
    def solve(a, b):
        return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)

    for n in (33, 70, 170):
        a = regular(n, n, dtype=dtype).roll(-1, -2) / (n if unit else 1)
        b = torch.randn(2, n, 40, dtype=dtype)
        assert_agree(device, solve, a, b if left else b.mT)
        assert_agree(device, solve, a.mT.contiguous().mT, b if left else b.mH)


def test_dispatches_of_gpus(monkeypatch):
    """One for each block of columns, one for each block of rows that is solved, and some."""
    monkeypatch.undo()
    large = torch.empty(1024, 1024, device="meta")
    for fn, blocks in (
        (torch.linalg.lu_factor_ex, 32),
        (torch.linalg.inv_ex, 96),
        (lambda a: torch.linalg.solve_triangular(a, a, upper=True), 32),
        (torch.geqrf, 64),
        (torch.linalg.qr, 96),
    ):
        assert len(trace(fn, large, target="h200-dawn").steps) <= blocks + 8


@pytest.mark.parametrize("target", ["h200-dawn", "browser"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_kernels_of_gpus_compile(monkeypatch, target, dtype):
    """Where subgroups look for pivots, and where they do not; of one row of a thread and of many."""
    dawn = pytest.importorskip("torch_webgpu.runtime.dawn", reason="wgpudawn is not installed")
    monkeypatch.undo()
    null = dawn.IMPLEMENTATION.null().open()
    for shape in ((20, 20), (300, 300), (2100, 100), (40, 100)):
        for fn in (torch.linalg.lu_factor_ex, products_of_factors):
            plan = trace(fn, torch.empty(shape, dtype=dtype, device="meta"), target=target)
            for kernel in plan.kernels:
                source = link(kernel, named(target)).source
                null.create_shader(source, kernel.name, True)
                assert not null.sink.errors, f"{source}\n{null.sink.take()}"


QR_SHAPES = ((5, 3), (33, 20), (2, 3, 40, 40), (70, 70), (20, 30), (20, 100), (128, 200), (300, 64), (310, 40))


def assert_factored(device: torch.device, a: torch.Tensor) -> None:
    """Q and R of ``a``, in the CPU's layouts and with its signs."""
    for mode in ("reduced", "complete", "r"):
        q, r = torch.linalg.qr(a.to(device), mode)
        cpu = torch.linalg.qr(a, mode)
        assert [(t.shape, t.stride()) for t in (q, r)] == [(t.shape, t.stride()) for t in cpu]
        assert torch.equal(r.cpu(), r.cpu().triu())
        if mode != "r":
            assert_orthonormal(q)
            error = (wide(q) @ wide(r) - wide(a)).norm() / a.norm()
            assert error < 4 * torch.finfo(a.dtype).eps * max(a.shape) ** 0.5, error
        signs = [t.cpu().diagonal(dim1=-2, dim2=-1)[..., :-1].real.sign() for t in (cpu.R, r)]
        assert torch.equal(*signs)


def products_of_factors(a: torch.Tensor) -> list[torch.Tensor]:
    """What is computed of reflections whose triangles are not known yet."""
    factors, tau = torch.geqrf(a)
    b = torch.ones_like(a)
    found = [torch.ormqr(factors, tau, b, True, transpose) for transpose in (False, True)]
    found += [torch.ormqr(factors, tau, b.mT, False, transpose) for transpose in (False, True)]
    found += [factors, tau]
    if a.shape[-2] >= a.shape[-1]:
        found.append(torch.linalg.householder_product(factors, tau))
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_qr(device, dtype):
    for shape in QR_SHAPES:
        assert_factored(device, torch.randn(shape, dtype=dtype))
    # MKL leaves the last reflection of large complex square matrices out.
    for shape in QR_SHAPES if dtype != torch.complex64 else ((33, 20), (300, 64)):
        a = regular(*shape, dtype=dtype) if shape[-1] <= shape[-2] else torch.randn(shape, dtype=dtype)
        assert_agree(device, products_of_factors, a)


def test_qr_of_columns_without_norms(device):
    """Zeros have no reflections; NaN spreads to what depends on it; squares stay in range."""
    a = torch.randn(5, 70, 40)
    a[0, :, 35] = 0
    a[1, 50, 33] = torch.nan
    a[2] = torch.eye(70, 40)
    a[3] = 0
    a[4, 34:, 34:] *= 1e-25
    (found, tau), (exact, exact_tau) = torch.geqrf(a.to(device)), torch.geqrf(a)
    assert torch.equal(found.cpu().isnan(), exact.isnan())
    assert torch.equal(tau.cpu().isnan(), exact_tau.isnan())
    assert torch.equal(found[2:4].cpu(), exact[2:4])
    assert torch.equal(tau[2:4].cpu(), exact_tau[2:4])
    torch.testing.assert_close(tau[4].cpu(), exact_tau[4], rtol=1e-4, atol=1e-4)
    for scale in (1e25, 1e-25):
        r = torch.linalg.qr((scale * a[:1]).to(device))[1].cpu() / scale
        torch.testing.assert_close(r, torch.linalg.qr(a[:1])[1], rtol=1e-4, atol=1e-4)
    # Of rank 1: after some reflections what rounding leaves is nearly too small for numbers.
    for dtype in DTYPES:
        column = torch.randn(3, 40, 1, dtype=dtype)
        for same in (column.expand(-1, -1, 40), column.mT.expand(-1, 40, -1)):
            q, r = torch.linalg.qr(same.contiguous().to(device))
            torch.testing.assert_close((q @ r).cpu(), same.contiguous(), rtol=1e-4, atol=1e-4)
            assert_orthonormal(q)
