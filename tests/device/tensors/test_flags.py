"""Tensors that are conjugated or negated by a flag only, also where PyTorch hides the flags' keys from guards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Passing(TorchDispatchMode):
    """Calls what it is given. Its keys, and those above it, are excluded in the kernels that this reaches."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "clone": lambda x, y: x.clone(),
    "copy_": lambda x, y: torch.empty_like(y).copy_(x),
    "to": lambda x, y: x.to(torch.complex64 if x.is_complex() else torch.float16),
    "resolve": lambda x, y: x.resolve_conj().resolve_neg(),
    "add": lambda x, y: x + 1,
    "mm": lambda x, y: x @ y,
    "mm of it": lambda x, y: y @ x,
    "bmm": lambda x, y: x[None] @ y[None],
    "addmm": lambda x, y: torch.addmm(y, x, y),
    "dot": lambda x, y: torch.dot(x[0], y[1]),
    "sum": lambda x, y: x.sum(),
}
KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x,
    "conjugated": lambda x: x.conj(),
    "negated": lambda x: torch._neg_view(x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_after_the_other(device: torch.device, name: str, dtype: torch.dtype) -> None:
    """What was found out about one says nothing of another, in a mode or out of it."""
    host = torch.randn(4, 4, dtype=dtype)
    x, run = host.to(device), OPERATIONS[name]
    for mode in (nullcontext(), Passing(), nullcontext()):
        for _ in range(3):
            for kind, flagged in KINDS.items():
                with mode:
                    actual = run(flagged(x), x)
                expected = run(flagged(host), host)
                torch.testing.assert_close(
                    actual.cpu().resolve_conj().resolve_neg(),
                    expected.resolve_conj().resolve_neg(),
                    msg=lambda text, kind=kind: f"{kind}: {text}",
                )
