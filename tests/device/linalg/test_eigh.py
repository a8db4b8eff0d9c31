"""Eigenvalues and eigenvectors of Hermitian matrices on the device, against float64 and against what they are."""

from __future__ import annotations

import pytest
import torch
from tests.device.against_cpu import check, layouts, moved
from tests.device.linalg.decompositions import DTYPES, assert_near, assert_orthonormal, natively, wide

from torch_webgpu.engine.record import engine
from torch_webgpu.plan import trace
from torch_webgpu.target import named

SIZES = (1, 2, 5, 16, 31)


def hermitian(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    a = torch.randn(shape, dtype=dtype)
    return a + a.mH


def decomposed(device: torch.device, a: torch.Tensor, uplo: str = "L") -> tuple[torch.Tensor, torch.Tensor]:
    """On the device, and right: against float64."""
    with natively():
        values, vectors = torch.linalg.eigh(moved(a, device), UPLO=uplo)
    expected = torch.linalg.eigh(a, UPLO=uplo)
    assert [t.stride() for t in (values, vectors)] == [t.stride() for t in expected]
    assert [t.dtype for t in (values, vectors)] == [t.dtype for t in expected]
    a64 = wide(a)
    if uplo == "L":
        full = a64.tril(-1) + a64.tril(-1).mH + torch.diag_embed(a64.diagonal(dim1=-2, dim2=-1).real)
    else:
        full = a64.triu(1) + a64.triu(1).mH + torch.diag_embed(a64.diagonal(dim1=-2, dim2=-1).real)
    exact = torch.linalg.eigvalsh(full)
    assert_near(values, exact, exact, a)
    assert_orthonormal(vectors)
    v64 = wide(vectors)
    assert_near(full @ v64, v64 * wide(values).unsqueeze(-2), exact, a)
    assert (values.cpu().diff() >= 0).all()
    return values, vectors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_matrices(device, dtype):
    for n in SIZES:
        decomposed(device, hermitian(3, n, n, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_larger_matrices_in_blocks(device, dtype):
    decomposed(device, hermitian(2, 70, 70, dtype=dtype))


def test_more_blocks(device):
    decomposed(device, hermitian(128, 128))


@pytest.mark.parametrize("n", [5, 70])
def test_one_triangle_counts(device, n):
    for dtype in (torch.float32, torch.complex64):
        a = torch.randn(2, n, n, dtype=dtype)
        for uplo in "LU":
            decomposed(device, a, uplo)


def test_layouts_and_batches(device):
    for a in layouts(lambda *s: torch.randn(s), 3, 5, 5).values():
        decomposed(device, a)
    decomposed(device, hermitian(5, 5).expand(4, 2, 5, 5))
    decomposed(device, torch.randn(5, 5, 3).permute(2, 0, 1))
    decomposed(device, hermitian(2, 70, 70)[::2])


def test_equal_eigenvalues(device):
    for n in (16, 70):
        decomposed(device, torch.eye(n))
        decomposed(device, torch.zeros(n, n))
        decomposed(device, torch.ones(n, n))
        q, _ = torch.linalg.qr(torch.randn(n, n))
        decomposed(device, (q * torch.arange(n).div(4, rounding_mode="floor")) @ q.mT)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_sizes_of_elements(device, scale):
    for n in (5, 70):
        a = hermitian(n, n) * scale
        values = torch.linalg.eigvalsh(a.to(device))
        exact = torch.linalg.eigvalsh(a.double())
        assert_near(values, exact, exact, a)


def test_empty(device):
    for shape in ((0, 0), (0, 3, 3), (2, 0, 0)):
        for a, e in zip(torch.linalg.eigh(torch.empty(shape, device=device)), torch.linalg.eigh(torch.empty(shape))):
            assert (a.shape, a.stride()) == (e.shape, e.stride())


@pytest.mark.parametrize("n", [4, 70])
def test_what_is_not_finite_gives_nan(device, n):
    a = hermitian(3, n, n)
    exact = torch.linalg.eigvalsh(a[0].double())
    for value in (float("nan"), float("inf")):
        a[1, 2, 1] = a[1, 1, 2] = value
        values, vectors = torch.linalg.eigh(a.to(device))
        assert values[1].isnan().all()
        assert vectors[1].isnan().all()
        assert_near(values[0], exact, exact, a)


def test_errors_are_the_cpus(device):
    for a, kwargs in (
        (torch.ones(2, 3), {}),
        (torch.ones(3), {}),
        (torch.ones(2, 2), {"UPLO": "x"}),
        (torch.ones(2, 2).half(), {}),
        (torch.ones(2, 2).long(), {}),
    ):
        with pytest.raises((RuntimeError, ValueError)) as expected:
            torch.linalg.eigh(a, **kwargs)
        with pytest.raises(type(expected.value)) as raised:
            torch.linalg.eigh(a.to(device), **kwargs)
        assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_out(device):
    a = hermitian(5, 5)
    values, vectors = torch.empty(0, device=device), torch.empty(5, 5, device=device)
    found = torch.linalg.eigh(a.to(device), out=(values, vectors))
    assert found[0] is values
    v64 = wide(vectors)
    exact = torch.linalg.eigvalsh(a.double())
    assert_near(values, exact, exact, a)
    assert_near(a.double() @ v64, v64 * wide(values), exact, a)
    torch.linalg.eigvalsh(a.to(device), out=values)
    assert_near(values, exact, exact, a)


def test_gradients(device):
    def of_values_and_projector(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = torch.linalg.eigh(a + a.mH)
        return values, vectors[..., :2] @ vectors[..., :2].mH

    with natively():
        check(device, of_values_and_projector, torch.randn(2, 5, 5), backward=True, tol=2e-3)


@pytest.mark.float64
def test_derivatives(device):
    a = torch.randn(4, 4, dtype=torch.float64, device=device, requires_grad=True)
    fn = lambda a: torch.linalg.eigvalsh(a + a.mT)
    assert torch.autograd.gradcheck(fn, [a], check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fn, [a])


def test_too_large_for_the_software_adapter(device):
    if not engine().device(device.index or 0).target.software:
        pytest.skip("the adapter is a GPU")
    a = hermitian(130, 130)
    before = torch.webgpu.fallback_stats().get("aten._linalg_eigh.default", 0)
    values = torch.linalg.eigvalsh(a.to(device))
    torch.testing.assert_close(values.cpu(), torch.linalg.eigvalsh(a))
    assert torch.webgpu.fallback_stats()["aten._linalg_eigh.default"] == before + 1


@pytest.mark.parametrize(("n", "dispatches"), [(32, 1), (44, 1)])
def test_dispatches(n, dispatches):
    """Of a plan for browsers, with 16 KiB of workgroup memory."""
    plan = trace(torch.linalg.eigh, torch.empty(10, n, n, device="meta"), target=named("browser"))
    assert len(plan.steps) == dispatches
