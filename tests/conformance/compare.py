"""When a device's result counts as equal to the CPU's.

Metadata are compared exactly: structure, device, dtype, shape, strides of dimensions longer than 1, conjugation.
Integers and booleans too. Floating values are compared with the tolerances of ``torch.testing`` for their dtype,
widened where PyTorch's OpInfo entry says so itself (its ``toleranceOverride`` decorators).

CPU PyTorch rounds as well. So a floating value outside the tolerance is put before a referee: the same call in float64
on the CPU. It passes if it is as near to that truth as the tolerance allows, give or take twice the error that the
CPU's own result has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import toleranceOverride
from torch.utils import _pytree as pytree

from .target import DEVICE

_INEXACT = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
)
# The test classes of PyTorch whose overrides speak of an operator's values, rather than of a compiler or a transform.
_VALUE_TESTS = frozenset({None, "TestCommon"})


# Derivatives of eigenvectors are divided by differences of eigenvalues: of a tenth of the database's random matrices
# the CPU's own are wrong by more than 3e-6 of the largest.
_ILL_CONDITIONED = {"linalg.eig": 1e-5}


class MismatchError(AssertionError):
    """The device and the CPU disagree."""


@dataclass(frozen=True)
class Tolerance:
    rtol: float
    atol: float


def tolerance_of(info: Any, dtype: torch.dtype) -> dict[torch.dtype, Tolerance]:
    """The tolerances for what an OpInfo, ModuleInfo or OptimizerInfo gives in ``dtype``, by dtype of the result."""
    tolerances = {d: Tolerance(*default_tolerances(d)) for d in _INEXACT}
    if dtype == torch.float32 and (least := _ILL_CONDITIONED.get(info.name)):
        tolerances |= {d: Tolerance(least, least) for d in (torch.float32, torch.complex64)}
    for decorator in info.decorators:
        if getattr(decorator, "cls_name", None) not in _VALUE_TESTS:
            continue
        if getattr(decorator, "device_type", None) not in (None, "cpu", "cuda"):
            continue
        for inner in getattr(decorator, "decorators", [decorator]):
            if isinstance(inner, toleranceOverride) and dtype in inner.d and dtype in tolerances:
                override, default = inner.d[dtype], tolerances[dtype]
                tolerances[dtype] = Tolerance(max(override.rtol, default.rtol), max(override.atol, default.atol))
    return tolerances


def assert_same(
    actual: Any,
    expected: Any,
    tolerances: dict[torch.dtype, Tolerance],
    *,
    truth: Callable[[], Any] | None = None,
    values: bool = True,
    strides: bool = True,
) -> None:
    """``actual`` (of the device) against ``expected`` (of the CPU), whole structures; raises :class:`MismatchError`.

    ``truth()`` gives the float64 structure, computed only if needed. ``values=False`` compares metadata alone.
    """
    actual_leaves, actual_spec = pytree.tree_flatten(actual)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    if actual_spec != expected_spec:
        raise MismatchError(f"structure: {actual_spec}, on CPU {expected_spec}")
    for index, (a, e) in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
        where = f"result {index}: " if len(expected_leaves) > 1 else ""
        if not isinstance(e, torch.Tensor):
            _assert_same_scalar(a, e, where, values)
            continue
        _assert_same_metadata(a, e, where, strides)
        if values:
            _assert_close(a, e, tolerances, where, _referee(truth, index, e))


def _referee(truth: Callable[[], Any] | None, index: int, expected: torch.Tensor) -> Callable[[], torch.Tensor | None]:
    def leaf() -> torch.Tensor | None:
        try:
            value = pytree.tree_leaves(truth())[index] if truth else None
        except Exception:  # an operator that has no float64, or checks its dtypes: no referee then
            return None
        return value if isinstance(value, torch.Tensor) and value.shape == expected.shape else None

    return leaf


def _assert_same_scalar(actual: Any, expected: Any, where: str, values: bool) -> None:
    if type(actual) is not type(expected):
        raise MismatchError(f"{where}{type(actual).__name__}, on CPU {type(expected).__name__}")
    if isinstance(expected, (torch.device, torch.storage.UntypedStorage, torch.storage.TypedStorage)) or not values:
        return
    if isinstance(expected, (int, float, complex, bool)):
        torch.testing.assert_close(actual, expected, equal_nan=True)
    elif actual != expected:
        raise MismatchError(f"{where}{actual!r}, on CPU {expected!r}")


def _significant_strides(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1) if t.numel() else ()


def _assert_same_metadata(actual: Any, expected: torch.Tensor, where: str, strides: bool) -> None:
    if not isinstance(actual, torch.Tensor):
        raise MismatchError(f"{where}{type(actual).__name__}, on CPU a tensor")
    if actual.device.type != DEVICE.type:
        raise MismatchError(f"{where}device {actual.device}")
    for what in ("dtype", "shape", "layout", "requires_grad"):
        if getattr(actual, what) != getattr(expected, what):
            raise MismatchError(f"{where}{what} {getattr(actual, what)}, on CPU {getattr(expected, what)}")
    if expected.layout != torch.strided:
        return
    if actual.is_conj() != expected.is_conj() or actual.is_neg() != expected.is_neg():
        raise MismatchError(f"{where}conjugate or negative bit differs")
    if strides and _significant_strides(actual) != _significant_strides(expected):
        raise MismatchError(
            f"{where}strides {actual.stride()}, on CPU {expected.stride()} for shape {list(expected.shape)}"
        )


def _assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    tolerances: dict[torch.dtype, Tolerance],
    where: str,
    referee: Callable[[], torch.Tensor | None],
) -> None:
    a, e = (_dense(t.detach()).cpu() for t in (actual, expected))
    if not (e.is_floating_point() or e.is_complex()):
        wrong = a != e
        if wrong.any():
            raise MismatchError(where + _worst(a, e, wrong, None))
        return
    wide = torch.complex128 if e.is_complex() else torch.float64
    tol = tolerances.get(e.dtype, Tolerance(0.0, 0.0))
    a, e = a.to(wide), e.to(wide)
    wrong = ~torch.isclose(a, e, rtol=tol.rtol, atol=tol.atol, equal_nan=True)
    if not wrong.any():
        return
    t = referee()
    if t is not None:
        t = _dense(t.detach()).to(wide)
        wrong &= ~_near(a, e, t, tol)
    if wrong.any():
        raise MismatchError(where + _worst(a, e, wrong, t))


def _dense(t: torch.Tensor) -> torch.Tensor:
    return t if t.layout == torch.strided else t.to_dense()


def _near(actual: torch.Tensor, expected: torch.Tensor, truth: torch.Tensor, tol: Tolerance) -> torch.Tensor:
    """Elements no further from the truth than the tolerance and twice the CPU's error: its own there, and its RMS."""
    cpu_error = (expected - truth).abs()
    finite = cpu_error[cpu_error.isfinite()]
    rms = finite.square().mean().sqrt() if finite.numel() else torch.zeros(())
    allowed = tol.atol + tol.rtol * truth.abs() + 2 * (cpu_error.nan_to_num(0, 0, 0) + rms)
    return (actual - truth).abs() <= allowed


def _worst(a: torch.Tensor, e: torch.Tensor, wrong: torch.Tensor, truth: torch.Tensor | None) -> str:
    error = (a.to(torch.float64) - e.to(torch.float64)).abs() if not a.is_complex() else (a - e).abs()
    error = torch.where(wrong, error.nan_to_num(float("inf")), -1.0)
    flat = int(error.flatten().argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), a.shape)) if a.dim() else ()
    exact = "" if truth is None else f", exactly {truth[index].item()}"
    return (
        f"{int(wrong.sum())} of {a.numel()} elements differ; at {list(index)} {a[index].item()}, "
        f"on CPU {e[index].item()}{exact}"
    )
