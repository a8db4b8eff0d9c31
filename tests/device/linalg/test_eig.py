"""Eigenvalues and eigenvectors of general matrices on the device: residuals beside the CPU's, and LAPACK's forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.device.against_cpu import check, layouts, moved
from tests.device.linalg.decompositions import natively, wide

from torch_webgpu.kernels.linalg.eig import STEPS
from torch_webgpu.plan import trace
from torch_webgpu.target import named

DTYPES = (torch.float32, torch.complex64)
SIZES = (1, 2, 3, 5, 16, 31)
SLACK = 4
"""Times the CPU's own residual."""


def residual(a: torch.Tensor, values: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Of each matrix, relative to its largest element; the vectors have length 1."""
    a, values, vectors = a.cpu().to(torch.complex128), wide(values), wide(vectors)
    left = (a @ vectors - vectors * values.unsqueeze(-2)).abs().amax((-2, -1))
    return left / a.abs().amax((-2, -1)).clamp(min=1e-300)


def allowed(a: torch.Tensor) -> float:
    return 8 * torch.finfo(a.dtype).eps * a.shape[-1]


def decomposed(device: torch.device, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """On the device, and right."""
    with natively():
        values, vectors = torch.linalg.eig(moved(a, device))
        alone = torch.linalg.eigvals(moved(a, device))
    expected = torch.linalg.eig(a)
    assert [t.stride() for t in (values, vectors)] == [t.stride() for t in expected]
    assert [t.dtype for t in (values, vectors, alone)] == [torch.complex64] * 3
    assert (residual(a, values, vectors) <= torch.clamp(SLACK * residual(a, *expected), min=allowed(a))).all()
    torch.testing.assert_close(wide(vectors).norm(dim=-2), torch.ones(values.shape).double(), rtol=0, atol=2e-6)
    # Their sum is the trace.
    trace_ = a.to(torch.complex128).diagonal(dim1=-2, dim2=-1).sum(-1)
    for found in (values, alone):
        assert ((wide(found).sum(-1) - trace_).abs() <= a.shape[-1] * allowed(a) * a.abs().amax((-2, -1))).all()
    if not a.is_complex():
        paired_and_real(values.cpu(), vectors.cpu())
        paired_and_real(alone.cpu())
    return values.cpu(), vectors.cpu()


def paired_and_real(values: torch.Tensor, vectors: torch.Tensor | None = None) -> None:
    """Those of real matrices are real, or conjugates of their neighbours, of which the first is above the axis."""
    n = values.shape[-1]
    for k, row in enumerate(values.reshape(-1, n)):
        columns = None if vectors is None else vectors.reshape(-1, n, n)[k]
        j = 0
        while j < n:
            if row[j].imag == 0:
                assert columns is None or not columns[:, j].imag.any()
                j += 1
                continue
            assert row[j].imag > 0
            assert row[j + 1] == row[j].conj()
            assert columns is None or torch.equal(columns[:, j + 1], columns[:, j].conj())
            j += 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_matrices(device, dtype):
    for n in SIZES:
        decomposed(device, torch.randn(3, n, n, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_larger_matrices(device, dtype):
    decomposed(device, torch.randn(2, 33, 33, dtype=dtype))
    decomposed(device, torch.randn(70, 70, dtype=dtype))


def test_layouts_and_batches(device):
    for a in layouts(lambda *s: torch.randn(s), 3, 5, 5).values():
        decomposed(device, a)
    decomposed(device, torch.randn(5, 5).expand(4, 2, 5, 5))
    decomposed(device, torch.randn(5, 5, 3).permute(2, 0, 1))
    decomposed(device, torch.randn(2, 33, 33)[::2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_order_and_vectors_are_lapacks(device, dtype):
    """Of matrices whose eigenvalues are far apart and whose order roundings don't decide."""
    torch.manual_seed(0)
    a = torch.randn(6, 6, dtype=dtype) + torch.diag(torch.arange(6.0) ** 2 * 5)
    values, vectors = torch.linalg.eig(a.to(device))
    expected = torch.linalg.eig(a)
    torch.testing.assert_close(values.cpu(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(vectors.cpu(), expected[1], rtol=1e-4, atol=1e-4)


def test_known_eigenvalues(device):
    rotation = torch.tensor([[0.0, -4.0], [4.0, 0.0]])
    assert torch.linalg.eigvals(rotation.to(device)).tolist() == [4j, -4j]
    for a in (torch.zeros(5, 5), torch.eye(5), torch.randn(7, 7).triu(), torch.diag(torch.tensor([1e30, 1.0, 1e-30]))):
        values, _ = decomposed(device, a)
        assert torch.equal(values, torch.linalg.eigvals(a))
    n = 12  # of a permutation the roots of unity
    values, _ = decomposed(device, torch.eye(n).roll(1, 0))
    angles = values.angle().double().sort().values * n / (2 * torch.pi)
    torch.testing.assert_close(angles.round().abs(), angles.abs(), rtol=0, atol=1e-5)
    torch.testing.assert_close(values.abs(), torch.ones(n), rtol=0, atol=1e-5)


KINDS = (
    "random",
    "triangle",
    "lower",
    "sparse",
    "jordan",
    "companion",
    "graded",
    "equal",
    "nilpotent",
    "skew",
    "blocks",
)


def matrix(kind: str, n: int, dtype: torch.dtype, scale: float) -> torch.Tensor:
    a = torch.randn(n, n, dtype=dtype)
    if kind == "triangle":
        a = a.triu()[torch.randperm(n)]
        a = a if torch.rand(()) < 0.5 else a.mT
    elif kind == "lower":
        a = a.tril()
    elif kind == "sparse":
        a = a * (torch.rand(n, n) < 1.5 / n)
    elif kind == "jordan":
        a = torch.eye(n, dtype=dtype) * a[0, 0] + torch.ones(n - 1, dtype=dtype).diag(1)
    elif kind == "companion":
        a = torch.ones(n - 1, dtype=dtype).diag(-1) + torch.nn.functional.pad(a[:, :1], (n - 1, 0))
    elif kind == "graded":
        a = a * torch.logspace(-1, 1, n)[:, None]
    elif kind == "equal":
        a = a @ torch.diag(torch.arange(n).div(3, rounding_mode="floor").to(dtype)) @ torch.linalg.pinv(a)
    elif kind == "nilpotent":
        p = torch.randperm(n)
        a = a.triu(1)[p][:, p]
    elif kind == "skew":
        a = a - a.mH
    elif kind == "blocks":
        a[n // 2 :, : n // 2] = 0
    return a * scale


@example(kind="sparse", n=6, dtype=torch.float32, scale=1e20, seed=1)  # quotients that are too large for a number
@given(
    kind=st.sampled_from(KINDS),
    n=st.sampled_from((2, 3, 6, 13)),
    dtype=st.sampled_from(DTYPES),
    scale=st.sampled_from((1.0, 1e-20, 1e20)),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_matrices(device: Any, kind: str, n: int, dtype: torch.dtype, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    decomposed(device, matrix(kind, n, dtype, scale))


def test_rows_of_very_different_sizes(device):
    """Balancing makes them alike; what roundings become then is as likely to be more as to be less than the CPU's."""
    torch.manual_seed(0)
    a = torch.randn(200, 13, 13) * torch.logspace(-5, 5, 13)[:, None]
    values, vectors = torch.linalg.eig(a.to(device))
    cpus = residual(a, *torch.linalg.eig(a))
    ratio = residual(a, values, vectors) / cpus
    assert ratio.log().mean().exp() < 1.5
    assert cpus.median() < 1e-2  # else it would say nothing


def test_empty(device):
    for dtype in DTYPES:
        for shape in ((0, 0), (0, 3, 3), (2, 0, 0)):
            a = torch.empty(shape, dtype=dtype)
            for found, expected in zip(torch.linalg.eig(a.to(device)), torch.linalg.eig(a), strict=True):
                assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
            assert torch.linalg.eigvals(a.to(device)).shape == shape[:-1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("n", [4, 33])
def test_what_is_not_finite(device, n, value):
    """The CPU refuses it to ``eig``; ``eigvals`` of infinity are NaN there, too, while those of NaN end the process."""
    a = torch.randn(3, n, n)
    a[1, 2, 1] = value
    values = torch.linalg.eigvals(a.to(device)).cpu()
    assert values.isnan().all(-1).tolist() == [False, True, False]
    assert not values[::2].isnan().any()
    with pytest.raises(RuntimeError, match=r"torch\.linalg\.eig: input tensor should not contain infs or NaNs"):
        torch.linalg.eig(a.to(device))[0].cpu()


def test_what_does_not_converge_is_an_error(device, monkeypatch):
    monkeypatch.setattr("torch_webgpu.kernels.linalg.eig.FEWEST_SWEEPS", 2)
    monkeypatch.setattr("torch_webgpu.kernels.linalg.eig.SWEEPS", 0)
    a = torch.randn(2, 23, 23, device=device)
    with pytest.raises(torch.linalg.LinAlgError, match=r"eigvals: \(Batch element [01]\): The algorithm failed"):
        torch.linalg.eigvals(a).cpu()
    with pytest.raises(torch.linalg.LinAlgError, match=r"eig: \(Batch element [01]\): The algorithm failed"):
        torch.linalg.eig(a)[1].cpu()


def test_errors_are_the_cpus(device):
    for a in (torch.ones(2, 3), torch.ones(3), torch.ones(2, 2).half(), torch.ones(2, 2).long()):
        for fn in (torch.linalg.eig, torch.linalg.eigvals):
            with pytest.raises(RuntimeError) as expected:
                fn(a)
            with pytest.raises(type(expected.value)) as raised:
                fn(a.to(device))
            assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_out(device):
    a = torch.randn(5, 5)
    empty = lambda where: torch.empty(0, dtype=torch.complex64, device=where)
    found, expected = (empty(device), empty(device)), (empty("cpu"), empty("cpu"))
    with natively():
        assert torch.linalg.eig(a.to(device), out=found)[0] is found[0]
    torch.linalg.eig(a, out=expected)
    assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert (residual(a, *found) <= allowed(a)).all()
    values = empty(device)
    with natively():
        torch.linalg.eigvals(a.to(device), out=values)
    torch.testing.assert_close(values, found[0], rtol=1e-5, atol=1e-5)


def apart(a: torch.Tensor) -> torch.Tensor:
    """With eigenvalues that are far from each other, so that derivatives are small."""
    return a + torch.diag(4.0 * torch.arange(a.shape[-1], device=a.device))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients(device, dtype):
    def of_values_and_lengths(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = torch.linalg.eig(apart(a))
        return torch.view_as_real(values), vectors.abs()

    torch.manual_seed(0)
    with natively():
        check(device, of_values_and_lengths, torch.randn(2, 4, 4, dtype=dtype), backward=True, tol=1e-4)
        check(device, torch.linalg.eigvals, torch.randn(4, 4, dtype=dtype), backward=False, tol=1e-4)


def test_second_and_forward_derivatives(device):
    def lengths(a: torch.Tensor) -> torch.Tensor:
        values, vectors = torch.linalg.eig(apart(a))
        return values.abs().square().sum() + vectors.abs().square().square().sum()

    def second(a: torch.Tensor) -> torch.Tensor:
        a = a.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(lengths(a), a, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), a)[0]

    def forward(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (_, tangent) = torch.func.jvp(lengths, (a,), (a.mT.contiguous(),))
        values = torch.func.jvp(lambda a: torch.linalg.eigvals(apart(a)), (a,), (a.mT.contiguous(),))
        return tangent, values[1]

    torch.manual_seed(0)
    a = torch.randn(4, 4)
    with natively():
        for fn in (second, forward):
            check(device, fn, a, tol=1e-3)


def test_too_large_for_the_adapter(device):
    a = torch.randn(513, 513)
    before = torch.webgpu.fallback_stats().get("aten._linalg_eigvals.default", 0)
    values = torch.linalg.eigvals(a.to(device))
    assert torch.webgpu.fallback_stats()["aten._linalg_eigvals.default"] == before + 1
    torch.testing.assert_close(values.cpu(), torch.linalg.eigvals(a))


@pytest.mark.parametrize(("fn", "others"), [(torch.linalg.eig, 6), (torch.linalg.eigvals, 3)])
def test_dispatches(fn, others):
    """Iterations of small matrices are one; those of larger ones are as many as have a bounded number of steps."""
    for n, iterations in ((32, 1), (64, 640 * 64 // STEPS + 1)):
        plan = trace(fn, torch.empty(10, n, n, device="meta"), target=named("browser"))
        assert len(plan.steps) == others + iterations
