"""Runs a function on the CPU and on the device under test, and compares results and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

HALF_TYPES = (torch.float16, torch.bfloat16)


def results_on(device: Any, fn: Callable[..., Any], tensors: Sequence[torch.Tensor], backward: bool) -> list[Any]:
    """The tensors that ``fn`` returns for copies on ``device``, then the gradients of the floating-point arguments."""
    copies = [moved(t, device).requires_grad_(backward and t.is_floating_point()) for t in tensors]
    outputs = [t for t in tree_leaves(fn(*copies)) if isinstance(t, torch.Tensor)]
    gradients: Sequence[Any] = ()
    roots = [t for t in outputs if t.requires_grad]
    if backward and roots:
        random = torch.Generator().manual_seed(0)
        seeds = [torch.randn(t.shape, generator=random).to(t.dtype).to(device) for t in roots]
        gradients = torch.autograd.grad(roots, [t for t in copies if t.requires_grad], seeds, allow_unused=True)
    return [None if t is None else t.detach().cpu() for t in (*outputs, *gradients)]


def moved(t: torch.Tensor, device: Any) -> torch.Tensor:
    """A copy of ``t`` on ``device`` with its strides and its offset in a larger storage."""
    base = t.detach().as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)
    return base.clone().to(device).as_strided(t.shape, t.stride(), t.storage_offset())


def in_float32(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` on its tensors in float32, with results and gradients rounded once to the dtype of the first tensor."""

    def widened(*tensors: torch.Tensor) -> Any:
        results = fn(*(t.float() if t.is_floating_point() else t for t in tensors))
        return tree_map_only(torch.Tensor, lambda t: t.to(tensors[0].dtype), results)

    return widened


def check(
    device: Any,
    fn: Callable[..., Any],
    *tensors: torch.Tensor,
    backward: bool = False,
    tol: float | None = None,
    float32_reference: bool = False,
) -> None:
    """Asserts that ``fn`` gives on ``device`` what it gives on the CPU: values, dtypes, shapes, gradients if asked.

    ``float32_reference`` is for convolutions in bfloat16: on processors for which oneDNN has no such kernels (those
    without AVX-512), PyTorch's CPU sums their gradients in bfloat16.
    """
    expected = results_on("cpu", in_float32(fn) if float32_reference else fn, tensors, backward)
    actual = results_on(device, fn, tensors, backward)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        if e is None:
            assert a is None
            continue
        close = {} if tol is None else {"rtol": tol, "atol": tol}
        torch.testing.assert_close(a, e, equal_nan=True, **close)


def layouts(make: Callable[..., torch.Tensor], *shape: int) -> dict[str, torch.Tensor]:
    """Tensors of one shape in several layouts. ``make(*sizes)`` gives a contiguous one."""
    *lead, last = shape
    return {
        "contiguous": make(*shape),
        "transposed": make(*reversed(shape)).permute(*reversed(range(len(shape)))),
        "sliced": make(*lead, 2 * last + 3)[..., 3::2],
        "offset": make(*lead, last + 1)[..., 1:],
        "expanded": make(*lead, 1).expand(*shape),
    }


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """A call's result on the CPU, or its error."""
    try:
        result = fn(*args)
        return result.cpu() if isinstance(result, torch.Tensor) else result
    except Exception as error:
        return type(error), str(error).splitlines()[0]


def same(device: torch.device, fn: Callable[..., Any], *tensors: torch.Tensor) -> bool:
    """Asserts the same values, dtype and shape, or the same error, as on the CPU; whether there was a value."""
    expected = outcome(fn, *(t.clone() for t in tensors))
    actual = outcome(fn, *(t.to(device) for t in tensors))
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        torch.testing.assert_close(actual, expected, equal_nan=True)
        return True
    assert actual == expected
    return False
