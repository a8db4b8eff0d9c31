"""What operators of linear algebra share: batches of matrices, results that lie by columns as LAPACK's do, dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.torch_abi import infer
from torch_webgpu.aten.tensors.copy import plain
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.matmul.matmul import extern
from torch_webgpu.layout import contiguous_strides

DTYPES = (torch.float32, torch.float64, torch.complex64)
"""What kernels of linear algebra compute with."""
ON_CPU = (torch.complex128,)
"""What the CPU computes in their place."""


def by_columns(shape: Sequence[int], dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    """A new tensor of matrices, dense, each of which lies column after column; on the device of ``like``."""
    *batch, m, n = shape
    strides = contiguous_strides((*batch, n, m))
    return engine().empty(tuple(shape), dtype, like.get_device(), (*strides[:-2], strides[-1], strides[-2]))


def copied_by_columns(a: torch.Tensor) -> torch.Tensor:
    """A copy of matrices in which each lies column after column."""
    return by_columns(a.shape, a.dtype, a).copy_(a)


def matrices(a: torch.Tensor) -> torch.Tensor:
    """(…, m, n) as (batch, m, n): a view of a dense tensor, of others perhaps a copy."""
    *batch, m, n = a.shape
    return a.reshape(prod(batch), m, n)


def vectors(a: torch.Tensor) -> torch.Tensor:
    """(…, n) as (batch, n)."""
    *batch, n = a.shape
    return a.reshape(prod(batch), n)


def infos(batch: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Zeros of int32, one for each matrix: that nothing was wrong with it."""
    return torch.zeros(tuple(batch), dtype=torch.int32, device=like.device)


def broadcast_batch(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Matrices whose batches are broadcast to one."""
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t in tensors))
    return [t.expand(*batch, *t.shape[-2:]) for t in tensors]


def subtract_product(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """``c -= a @ b`` of (batch, rows, columns), in full precision whatever products of the program may lose."""
    add_product(c, a, b, -1)


def add_product(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: float, beta: float = 1) -> None:
    """``c = beta * c + alpha * (a @ b)``. ``c`` may lie in the storage of ``a`` and of ``b``, beside them."""
    if not c.numel() or not a.shape[-1]:
        return
    storage = c.untyped_storage().data_ptr()
    copies = [t.clone() if t.untyped_storage().data_ptr() == storage else plain(t) for t in (a, b)]
    found = dtype_of(c.dtype)
    scalars = [(found.kind, alpha), (found.kind, beta)]
    record_kernel("aten::baddbmm_", (*copies, c), (c,), extern(found.name, 2), scalars)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` of (batch, rows, columns), in full precision; by columns."""
    out = by_columns((a.shape[0], a.shape[1], b.shape[2]), a.dtype, a)
    if out.numel() and a.shape[2]:
        record_kernel("aten::bmm", (plain(a), plain(b)), (out,), extern(dtype_of(a.dtype).name))
        return out
    return out.zero_()


def natively(target: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel``, or the CPU for a dtype that it does not take; what PyTorch refuses, it refuses in its words."""

    @wraps(kernel)
    def chosen(a: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if a.dtype in DTYPES:
            return kernel(a, *args, **kwargs)
        if a.dtype not in ON_CPU:
            check_as_cpu(target, a, *args, **kwargs)
            infer(target, a, *args, **kwargs)
        return run_on_cpu(target, (a, *args), kwargs, f"no kernel of linear algebra computes in {name_of(a.dtype)}")

    return chosen
