"""Cumulative operators: scans along one dimension."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.aten.dispatch.variants import register_functional
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import MissingKindError, ops

from .reduce import Dtype, Epilogue, record_reduction, reduced_dims, widened


def scan(
    name: str, self: torch.Tensor, outputs: list[torch.Tensor], dim: int, combine: str, epilogue: Epilogue
) -> list[torch.Tensor]:
    """Records a scan of ``self``, converted to the dtype of the first output."""
    target = outputs[0].dtype

    def write(x: Expr) -> tuple[tuple[Expr, ...], tuple[str, ...], Epilogue]:
        return (widened(x, target),), (combine,), epilogue

    if self.numel():
        dims = reduced_dims(dim, self.dim())
        static = (combine, target)
        record_reduction(name, [self], outputs, self.shape, dims, write, maps=len(outputs), running=True, static=static)
    return outputs


def cumulative(overload: OpOverload, combine: str) -> Callable[..., torch.Tensor]:
    """The kernel of ``cumsum`` or ``cumprod``."""

    def kernel(self: torch.Tensor, dim: int, *, dtype: Dtype = None) -> torch.Tensor:
        outputs = outputs_of(overload, self, dim, dtype=dtype)
        return scan(overload.name(), self, outputs, dim, combine, lambda value: (value,))[0]

    return kernel


def extreme(overload: OpOverload, combine: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The kernel of ``cummax`` or ``cummin``: values and positions."""

    def kernel(self: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        outputs = outputs_of(overload, self, dim)
        return tuple(scan(overload.name(), self, outputs, dim, combine, lambda value, position: (value, position)))

    return kernel


def logcumsumexp(self: torch.Tensor, dim: int) -> torch.Tensor:
    if self.is_complex():
        raise MissingKindError("logsumexp", dtype_of(self.dtype).name)
    outputs = outputs_of(aten.logcumsumexp.default, self, dim)
    return scan("aten::logcumsumexp", self, outputs, dim, "logsumexp", lambda top, total: (top + ops.log(total),))[0]


def register() -> None:
    for name, combine in (("cumsum", "sum"), ("cumprod", "prod")):
        overload = getattr(aten, name).default
        register_functional(overload, cumulative(overload, combine))
    for name in ("cummax", "cummin"):
        overload = getattr(aten, name).default
        register_functional(overload, extreme(overload, name))
    register_functional(aten._logcumsumexp.default, logcumsumexp)
