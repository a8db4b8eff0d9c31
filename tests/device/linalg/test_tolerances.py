"""Pseudo-inverses, ranks and renorm, with PyTorch's own kernels where there is float64, and with ours where not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE
from tests.device.against_cpu import check, outcome

from torch_webgpu.aten.linalg import tolerances

SHAPES = [(5, 3), (3, 5), (2, 4, 4), (0, 3), (3, 0), (2, 0, 3), (0, 4, 3)]


@pytest.fixture(params=["float64", "none"], autouse=True)
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With float64, if the adapter has it; and as an adapter that lacks it, on which none may come into being."""
    if request.param == "float64":
        if not tolerances.has_float64(torch.empty(0, device=DEVICE)):
            pytest.skip("the adapter has no float64")
    else:
        monkeypatch.setattr(tolerances, "has_float64", lambda tensor: False)
    return request.param


def of_rank(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Matrices whose singular values are between 1 and 2, and 0."""
    left, _, right = torch.linalg.svd(torch.randn(shape, dtype=dtype), full_matrices=False)
    values = torch.linspace(2, 1, min(shape[-2:])).where(torch.arange(min(shape[-2:])) < rank, 0.0)
    return (left * values) @ right


def hermitian(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One eigenvalue is negative, and larger than the others."""
    q, _ = torch.linalg.qr(torch.randn(shape, dtype=dtype))
    values = torch.linspace(-3, 1, shape[-1]).where(torch.arange(shape[-1]) < rank, 0.0)
    return (q * values) @ q.mH


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pinv_and_rank_of_any_shape(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    check(DEVICE, torch.linalg.pinv, x, backward=x.numel() > 0, tol=1e-4)
    check(DEVICE, torch.linalg.matrix_rank, x)


TOLERANCES: list[dict[str, Any]] = [
    {},
    {"atol": 1.4},
    {"rtol": 0.6},
    {"atol": 0.5, "rtol": 0.7},
    {"atol": 0.0},
    {"atol": 0.0, "rtol": 0.0},
]


@pytest.mark.parametrize("kwargs", TOLERANCES, ids=str)
@pytest.mark.parametrize("as_tensors", [False, True], ids=["numbers", "tensors"])
@pytest.mark.parametrize("is_hermitian", [False, True], ids=["any", "hermitian"])
def test_tolerances(kwargs: dict[str, Any], as_tensors: bool, is_hermitian: bool) -> None:
    rank = 4 if kwargs.get("rtol") == 0.0 else 3  # without any tolerance noise would be a number
    x = (hermitian if is_hermitian else of_rank)(rank, 2, 4, 4, dtype=torch.complex64 if as_tensors else torch.float32)

    def kwargs_on(device: torch.device) -> dict[str, Any]:
        return {name: torch.tensor([v, v], device=device) if as_tensors else v for name, v in kwargs.items()}

    check(DEVICE, lambda x: torch.linalg.matrix_rank(x, hermitian=is_hermitian, **kwargs_on(x.device)), x)
    pinv = lambda x: torch.linalg.pinv(x, hermitian=is_hermitian, **kwargs_on(x.device))
    check(DEVICE, pinv, x, backward=True, tol=2e-3)


@pytest.mark.parametrize("rcond", [0.6, 1e-3])
def test_older_spellings(rcond: float) -> None:
    x = of_rank(3, 4, 3)
    check(DEVICE, torch.pinverse, x, backward=True, tol=1e-4)
    check(DEVICE, lambda x: torch.linalg.pinv(x, rcond), x, backward=True, tol=1e-4)
    check(DEVICE, lambda x: torch.linalg.pinv(x, torch.tensor(rcond, device=x.device)), x, tol=1e-4)
    check(DEVICE, lambda x: torch.linalg.matrix_rank(x, 2 * rcond), x)
    check(DEVICE, lambda x: torch.linalg.matrix_rank(x, tol=torch.tensor([2 * rcond], device=x.device)), x)


def test_into_given_tensors() -> None:
    x = of_rank(2, 3, 4)

    def written(x: torch.Tensor) -> list[torch.Tensor]:
        inverse, rank = x.new_empty(0), torch.empty((), dtype=torch.int64, device=x.device)
        results = [torch.linalg.pinv(x, out=inverse), torch.linalg.matrix_rank(x, out=rank)]
        assert results[0] is inverse
        assert results[1] is rank
        numbers = torch.linalg.pinv(x, 0.6, out=x.new_empty(4, 3)), torch.linalg.matrix_rank(x, 1.2, out=rank.clone())
        return [*results, *numbers]

    check(DEVICE, written, x, tol=1e-4)


def test_least_squares_has_a_gradient() -> None:
    """Its derivative is by the pseudo-inverse."""
    a, b = torch.randn(5, 3), torch.randn(5, 2)
    check(DEVICE, lambda a, b: torch.linalg.lstsq(a, b).solution, a, b, backward=True, tol=1e-4)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3),
        torch.randn(()),
        torch.randn(3, 3).half(),
        torch.ones(3, 3, dtype=torch.int64),
        torch.empty(0, 3, dtype=torch.float16),
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
@pytest.mark.parametrize("kwargs", [{}, {"rtol": 0.1}, {"hermitian": True}], ids=str)
@pytest.mark.parametrize("fn", [torch.linalg.pinv, torch.linalg.matrix_rank], ids=["pinv", "rank"])
def test_what_pytorch_refuses_is_refused_in_its_words(fn: Any, kwargs: dict[str, Any], x: torch.Tensor) -> None:
    assert outcome(lambda x: fn(x, **kwargs), x.to(DEVICE)) == outcome(lambda x: fn(x, **kwargs), x)


def test_a_complex_tolerance_is_refused() -> None:
    for fn in (torch.linalg.pinv, torch.linalg.matrix_rank):
        with pytest.raises(RuntimeError, match="atol tensor of complex type is not supported"):
            fn(torch.randn(3, 3, device=DEVICE), atol=torch.tensor(1j, device=DEVICE))


RENORMS = [(2, 0, 0.5), (1, 1, 3.0), (2, -1, 1e3), (0.5, 0, 2.0), (float("inf"), 1, 0.7), (3, 2, 0.0)]


@pytest.mark.parametrize("arguments", RENORMS, ids=str)
def test_renorm(arguments: tuple[Any, ...]) -> None:
    x = torch.randn(3, 4, 5)
    x[0, 1] = 0
    check(DEVICE, lambda x: x.renorm(*arguments), x, backward=True, tol=1e-5)
    check(DEVICE, lambda x: (x * 1).renorm_(*arguments), x.mT, backward=True, tol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64], ids=str)
def test_renorm_of_other_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4).to(dtype)
    check(DEVICE, lambda x: x.renorm(2, 0, 0.5), x, backward=True, tol=2e-3)


def test_renorm_in_place_is_seen_by_autograd() -> None:
    x = torch.randn(3, 4, device=DEVICE)
    version = x._version
    assert x.renorm_(2, 0, 0.1) is x
    assert x._version == version + 1
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.requires_grad_().renorm_(2, 0, 0.1)


def test_renorm_in_transforms() -> None:
    x = torch.randn(3, 4)

    def renormed(x: torch.Tensor) -> torch.Tensor:
        return x.renorm(2, 0, 0.5)

    check(DEVICE, lambda x: torch.func.jvp(renormed, (x,), (torch.ones_like(x),)), x)
    check(DEVICE, torch.func.grad(lambda x: renormed(x).square().exp().sum()), x)
    check(DEVICE, lambda x: torch.autograd.functional.hvp(lambda x: renormed(x).exp().sum(), x, x)[1], x, tol=1e-4)


@pytest.mark.parametrize("arguments", [(2, 5, 0.5), (2, 0, -1.0), (-1, 0, 1.0), (1j, 0, 1.0)], ids=str)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_renorm_refuses_as_pytorch_does(arguments: tuple[Any, ...], needs_grad: bool) -> None:
    x = torch.randn(3, 4)
    expected = outcome(lambda x: x.renorm(*arguments), x.clone().requires_grad_(needs_grad))
    assert isinstance(expected, tuple)
    assert outcome(lambda x: x.renorm(*arguments), x.to(DEVICE).requires_grad_(needs_grad)) == expected
