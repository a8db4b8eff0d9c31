"""Cumulative operators: scans along one dimension."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.operations import Fold, record_reduction
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.ir.ops import MissingKindError

from .reduce import Dtype, combined, log_of_sum, reduced_dims


def scan(
    name: str,
    self: torch.Tensor,
    outputs: list[torch.Tensor],
    dim: int,
    fold: Callable[..., Fold],
    arguments: tuple[Hashable, ...],
) -> list[torch.Tensor]:
    """Records a scan of ``self``: every output is stored at every point."""
    dims, maps = reduced_dims(dim, self.dim()), len(outputs)
    record_reduction(name, [self], outputs, self.shape, dims, fold, arguments, maps=maps, running=True)
    return outputs


def cumulative(overload: OpOverload, combine: str) -> Callable[..., torch.Tensor]:
    """The kernel of ``cumsum`` or ``cumprod``."""

    def kernel(self: torch.Tensor, dim: int, *, dtype: Dtype = None) -> torch.Tensor:
        outputs = outputs_of(overload, self, dim, dtype=dtype)
        return scan(overload.name(), self, outputs, dim, combined, (combine, outputs[0].dtype))[0]

    return kernel


def extreme(overload: OpOverload, combine: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The kernel of ``cummax`` or ``cummin``: values and positions."""

    def kernel(self: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        outputs = outputs_of(overload, self, dim)
        return tuple(scan(overload.name(), self, outputs, dim, combined, (combine, outputs[0].dtype)))

    return kernel


def logcumsumexp(self: torch.Tensor, dim: int) -> torch.Tensor:
    if self.is_complex():
        raise MissingKindError("logsumexp", dtype_of(self.dtype).name)
    outputs = outputs_of(aten.logcumsumexp.default, self, dim)
    return scan("aten::logcumsumexp", self, outputs, dim, log_of_sum, (outputs[0].dtype,))[0]


def register() -> None:
    for name, combine in (("cumsum", "sum"), ("cumprod", "prod")):
        overload = getattr(aten, name).default
        register_operator(overload, cumulative(overload, combine))
    for name in ("cummax", "cummin"):
        overload = getattr(aten, name).default
        register_operator(overload, extreme(overload, name))
    register_operator(aten._logcumsumexp.default, logcumsumexp)
