"""Singular value decompositions on the device, against float64 and against what they are; what is composed of them."""

from __future__ import annotations

import pytest
import torch
from tests.device.against_cpu import check, layouts, moved
from tests.device.linalg.decompositions import DTYPES, assert_near, assert_orthonormal, natively, wide

from torch_webgpu.plan import trace
from torch_webgpu.target import named

SHAPES = ((1, 1), (5, 1), (3, 5), (5, 3), (16, 16))


def decomposed(device: torch.device, a: torch.Tensor, full: bool = False) -> tuple[torch.Tensor, ...]:
    """On the device, and right: against float64."""
    with natively():
        u, values, vh = torch.linalg.svd(moved(a, device), full_matrices=full)
    expected = torch.linalg.svd(a, full_matrices=full)
    assert [(t.shape, t.stride(), t.dtype) for t in (u, values, vh)] == [
        (t.shape, t.stride(), t.dtype) for t in expected
    ]
    a64 = wide(a)
    exact = torch.linalg.svdvals(a64)
    assert_near(values, exact, exact, a)
    assert_orthonormal(u)
    assert_orthonormal(vh.mH)
    k = values.shape[-1]
    assert_near(wide(u)[..., :k] * wide(values).unsqueeze(-2) @ wide(vh)[..., :k, :], a64, exact, a)
    assert (values.cpu().diff() <= 0).all()
    assert (values.cpu() >= 0).all()
    return u, values, vh


def of_rank(rank: int, m: int, n: int) -> torch.Tensor:
    return torch.randn(m, rank) @ torch.randn(rank, n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_matrices(device, dtype):
    for m, n in SHAPES:
        for full in (False, True):
            decomposed(device, torch.randn(3, m, n, dtype=dtype), full)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_larger_matrices_in_blocks(device, dtype):
    decomposed(device, torch.randn(2, 70, 60, dtype=dtype), full=True)
    decomposed(device, torch.randn(60, 70, dtype=dtype))


def test_tall_and_wide(device):
    decomposed(device, torch.randn(2, 120, 6))
    decomposed(device, torch.randn(2, 6, 120))


def test_layouts_and_batches(device):
    for a in layouts(lambda *s: torch.randn(s), 3, 5, 4).values():
        decomposed(device, a)
    decomposed(device, torch.randn(5, 4).expand(4, 2, 5, 4))
    decomposed(device, torch.randn(5, 4, 3).permute(2, 0, 1))


@pytest.mark.parametrize(("m", "n"), [(8, 6), (80, 70)])
def test_vectors_without_a_singular_value(device, m, n):
    decomposed(device, of_rank(n // 2, m, n), full=True)
    decomposed(device, torch.zeros(m, n), full=True)
    a = torch.zeros(m, n)
    a[0, 0], a[1, 1] = 1, 1e-20
    decomposed(device, a, full=True)
    a = torch.randn(m, n)
    a[:, 1] = a[:, 0]
    a[:, 2] = 0
    decomposed(device, a)


def test_equal_singular_values(device):
    for n in (6, 70):
        decomposed(device, torch.eye(n))
        decomposed(device, torch.linalg.qr(torch.randn(n, n))[0])


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_sizes_of_elements(device, scale):
    decomposed(device, torch.randn(5, 4) * scale)


def test_small_values_are_relatively_right(device):
    """One-sided Jacobi's merit: columns of any sizes."""
    a = torch.randn(6, 6) * torch.logspace(0, -12, 6)
    exact = torch.linalg.svdvals(a.double())
    torch.testing.assert_close(torch.linalg.svdvals(a.to(device)).cpu().double(), exact, rtol=1e-5, atol=0)


def test_empty(device):
    for shape in ((0, 0), (0, 3), (3, 0), (2, 0, 3), (0, 3, 2)):
        for full in (False, True):
            a = torch.empty(shape)
            for t, e in zip(torch.linalg.svd(a.to(device), full), torch.linalg.svd(a, full)):
                assert (t.shape, t.stride()) == (e.shape, e.stride())
                torch.testing.assert_close(t.cpu(), e)


@pytest.mark.parametrize("n", [4, 70])
def test_nan_is_the_cpus_error(device, n):
    a = torch.eye(n)
    a[1, 2] = float("nan")
    for x in (a, torch.stack([torch.eye(n), a])):
        with pytest.raises(torch.linalg.LinAlgError) as expected:
            torch.linalg.svd(x)
        with pytest.raises(torch.linalg.LinAlgError) as raised:
            torch.linalg.svd(x.to(device))[1].cpu()
        assert str(raised.value).startswith(str(expected.value).splitlines()[0])
    a[1, 2] = float("inf")
    assert torch.linalg.svdvals(a.to(device)).isnan().all()


def test_errors_are_the_cpus(device):
    for a, kwargs in (
        (torch.ones(3), {}),
        (torch.ones(2, 2), {"driver": "gesvd"}),
        (torch.ones(2, 2).half(), {}),
        (torch.ones(2, 2).long(), {}),
    ):
        with pytest.raises((RuntimeError, ValueError)) as expected:
            torch.linalg.svd(a, **kwargs)
        with pytest.raises(type(expected.value)) as raised:
            torch.linalg.svd(a.to(device), **kwargs)
        assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_gradients(device):
    def of_values_and_projector(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        u, values, vh = torch.linalg.svd(a, full_matrices=False)
        return values, u[..., :2] @ vh[..., :2, :]

    with natively():
        for shape in ((2, 5, 4), (4, 5)):
            check(device, of_values_and_projector, torch.randn(shape), backward=True, tol=2e-3)


@pytest.mark.float64
def test_derivatives(device):
    a = torch.randn(4, 3, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(torch.linalg.svdvals, [a], check_forward_ad=True)
    assert torch.autograd.gradgradcheck(torch.linalg.svdvals, [a])


def test_what_is_composed_of_them(device):
    a = torch.randn(2, 5, 3)
    functions = (
        lambda a: torch.linalg.matrix_norm(a, 2),
        lambda a: torch.linalg.matrix_norm(a, "nuc"),
        torch.linalg.cond,
        torch.linalg.matrix_rank,
        torch.linalg.pinv,
    )
    with natively():
        for fn in functions:
            check(device, fn, a, tol=1e-4)
        check(device, torch.linalg.pinv, a, backward=True, tol=1e-3)
        check(device, torch.linalg.matrix_rank, of_rank(2, 5, 4))


@pytest.mark.parametrize(("shape", "dispatches"), [((32, 32), 2), ((300, 8), 2)])
def test_dispatches(shape, dispatches):
    """Of a plan for browsers, with 16 KiB of workgroup memory: the decomposition, and vectors of zero."""
    x = torch.empty(10, *shape, device="meta")
    plan = trace(lambda x: torch.linalg.svd(x, full_matrices=False), x, target=named("browser"))
    assert len(plan.steps) == dispatches
