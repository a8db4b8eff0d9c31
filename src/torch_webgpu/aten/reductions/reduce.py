"""Reductions over dimensions: sums, extremes, moments, norms, tests.

Each operator says what an element contributes (prologue), how contributions meet (a row of ``ir.combine``) and what is
made of the result (epilogue). Half types are accumulated in f32, integers and bool in the result's dtype (int64).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._prims_common import canonicalize_dim

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.operations import Fold, record_reduction
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import opmath
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.engine.record import TypedScalar
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

Dims = int | Sequence[int] | None
Dtype = torch.dtype | None


def reduced_dims(dim: Dims, rank: int) -> tuple[int, ...]:
    """The dimensions that ``dim`` names; None and an empty list stand for all. IndexError for one there isn't."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(rank))
    listed = [canonicalize_dim(rank, d) for d in ((dim,) if isinstance(dim, int) else dim)]
    return tuple(sorted(listed)) if rank else ()


def single(outputs: Sequence[torch.Tensor]) -> Any:
    """What an operator returns: its one output, or the tuple of them."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def widened(x: Expr, dtype: torch.dtype) -> Expr:
    """``x`` converted to ``dtype`` and, for the half types, on to f32, in which they are accumulated."""
    return ops.to_dtype(ops.to_dtype(x, dtypes.of(dtype).name), opmath(dtype))


def own(x: Expr) -> Expr:
    """``x`` as arithmetic sees it: the half types as f32."""
    return widened(x, dtypes.BY_NAME[x.dtype].torch)


def number(value: float, dtype: torch.dtype) -> TypedScalar:
    """A scalar argument of the kind that ``dtype`` is computed in."""
    return dtypes.BY_NAME[opmath(dtype)].kind, value


# Sums and products ----------------------------------------------------------------------------------------------------


def itself(*accumulators: Expr) -> tuple[Expr, ...]:
    """The epilogue that stores the accumulators."""
    return accumulators


def combined(combine: str, dtype: torch.dtype, x: Expr) -> Fold:
    return Fold((widened(x, dtype),), (combine,), itself)


def sum_of_numbers(combine: str, dtype: torch.dtype, x: Expr) -> Fold:
    """A sum in which NaN counts for nothing."""
    x = widened(x, dtype)
    return Fold((ops.where(ops.isnan(x), ops.like(x, 0), x),), (combine,), itself)


def additive(overload: OpOverload, combine: str, fold: Callable[..., Fold] = combined) -> Callable[..., Any]:
    """The kernel of ``(self, dim, keepdim, dtype)`` that combines the elements, converted to the result's dtype."""

    def kernel(self: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Dtype = None) -> torch.Tensor:
        outputs = outputs_of(overload, self, dim, keepdim, dtype=dtype)
        dims = reduced_dims(dim, self.dim())
        record_reduction(overload.name(), [self], outputs, self.shape, dims, fold, (combine, outputs[0].dtype))
        return outputs[0]

    return kernel


def over_all(overload: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an overload without dimensions, from ``kernel``, which takes them."""

    def whole(self: torch.Tensor, *, dtype: Dtype = None) -> torch.Tensor:
        return kernel(self, dtype=dtype)

    return whole


sum_dims = additive(aten.sum.dim_IntList, "sum")
nansum = additive(aten.nansum.default, "sum", sum_of_numbers)
prod_dim = additive(aten.prod.dim_int, "prod")


def prod(self: torch.Tensor, *, dtype: Dtype = None) -> torch.Tensor:
    outputs = outputs_of(aten.prod.default, self, dtype=dtype)
    dims = reduced_dims(None, self.dim())
    record_reduction("aten::prod", [self], outputs, self.shape, dims, combined, ("prod", outputs[0].dtype))
    return outputs[0]


def average(dtype: torch.dtype, x: Expr) -> Fold:
    """The sum divided by scalar 0."""
    return Fold((widened(x, dtype),), ("sum",), lambda total: (total / ops.param(0, total.dtype),))


def mean(self: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Dtype = None) -> torch.Tensor:
    outputs = outputs_of(aten.mean.dim, self, dim, keepdim, dtype=dtype)
    target, dims = outputs[0].dtype, reduced_dims(dim, self.dim())
    count = number(math.prod(self.shape[d] for d in dims), target)
    record_reduction("aten::mean", [self], outputs, self.shape, dims, average, (target,), scalars=[count])
    return outputs[0]


def trace(self: torch.Tensor) -> torch.Tensor:
    outputs_of(aten.trace.default, self)  # raises for anything but a matrix
    return sum_dims(self.diagonal(), [0])


# Extremes -------------------------------------------------------------------------------------------------------------


def extremes(combine: tuple[str, ...], x: Expr) -> Fold:
    return Fold((own(x),) * len(combine), combine, itself)


def extreme(overload: OpOverload, *combine: str) -> Callable[..., Any]:
    """The kernel of ``(self, dim, keepdim)`` that gives extreme values, without their positions."""

    def kernel(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dim = args[0] if args else kwargs.get("dim")
        if not self.numel():
            check_as_cpu(overload, self, *args, **kwargs)  # there is no extreme of no elements
        outputs = outputs_of(overload, self, *args, **kwargs)
        dims = reduced_dims(dim, self.dim())
        record_reduction(overload.name(), [self], outputs, self.shape, dims, extremes, (combine,))
        return single(outputs)

    return kernel


def position_of(combine: str, with_value: bool, x: Expr) -> Fold:
    def epilogue(value: Expr, position: Expr) -> tuple[Expr, ...]:
        return (value, position) if with_value else (position,)

    return Fold((own(x),), (combine,), epilogue)


def positions(overload: OpOverload, combine: str, with_value: bool) -> Callable[..., Any]:
    """The kernel of ``(self, dim, keepdim)`` that gives where an extreme is, after its value if asked for."""

    def kernel(self: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if not self.numel():
            check_as_cpu(overload, self, dim, keepdim)
        outputs = outputs_of(overload, self, dim, keepdim)
        dims = reduced_dims(dim, self.dim())
        record_reduction(overload.name(), [self], outputs, self.shape, dims, position_of, (combine, with_value))
        return single(outputs)

    return kernel


# Tests ----------------------------------------------------------------------------------------------------------------


def truth(combine: str, x: Expr) -> Fold:
    return Fold((ops.to_dtype(x, "bool"),), (combine,), itself)


def test(overload: OpOverload, combine: str) -> Callable[..., Any]:
    """The kernel of ``any`` or ``all``. An empty list of dimensions tests each element."""

    def kernel(self: torch.Tensor, dim: Dims = None, keepdim: bool = False) -> torch.Tensor:
        arguments = () if len(overload._schema.arguments) == 1 else (dim, keepdim)
        outputs = outputs_of(overload, self, *arguments)
        nothing = not isinstance(dim, int) and dim is not None and len(dim) == 0
        dims = () if nothing else reduced_dims(dim, self.dim())
        record_reduction(overload.name(), [self], outputs, self.shape, dims, truth, (combine,))
        return outputs[0]

    return kernel


def counted(x: Expr) -> Fold:
    return Fold((ops.to_dtype(ops.to_dtype(x, "bool"), "i64"),), ("sum",), itself)


def count_nonzero(self: torch.Tensor, dim: Sequence[int]) -> torch.Tensor:
    outputs = outputs_of(aten.count_nonzero.dim_IntList, self, dim)
    record_reduction("aten::count_nonzero", [self], outputs, self.shape, reduced_dims(dim, self.dim()), counted)
    return outputs[0]


# Moments --------------------------------------------------------------------------------------------------------------


def variance(overload: OpOverload, root: bool, with_mean: bool) -> Callable[..., Any]:
    """The kernel of ``(self, dim, correction, keepdim)``: variance or deviation, then the mean if asked for."""

    def kernel(
        self: torch.Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        outputs = outputs_of(overload, self, dim, correction=correction, keepdim=keepdim)
        dims = reduced_dims(dim, self.dim())
        scalars = [number(1 if correction is None else correction, outputs[0].dtype)]
        name, arguments = overload.name(), (root, with_mean)
        record_reduction(name, [self], outputs, self.shape, dims, moments, arguments, scalars=scalars)
        return single(outputs)

    return kernel


def moments(root: bool, with_mean: bool, x: Expr) -> Fold:
    """Of a complex number, those of its parts."""
    parts = (ops.real(x), ops.imag(x)) if dtypes.BY_NAME[x.dtype].kind == "c" else (own(x),)
    return Fold(parts, ("welford",) * len(parts), lambda *acc: spread(acc, root, with_mean))


def spread(acc: tuple[Expr, ...], root: bool, with_mean: bool) -> tuple[Expr, ...]:
    """Variance or standard deviation from the states of one welford, or of two for a complex number's parts."""
    mean, m2, n = acc[:3]
    if len(acc) == 6:
        mean, m2 = ops.complex(mean, acc[3]), m2 + acc[4]
    freedom = ops.maximum(n - ops.param(0, n.dtype), ops.like(n, 0))
    value = m2 / freedom
    value = ops.sqrt(value) if root else value
    mean = ops.where(ops.eq(n, 0), ops.like(mean, float("nan")), mean)
    return (value, mean) if with_mean else (value,)


def log_of_sum(dtype: torch.dtype, x: Expr) -> Fold:
    return Fold((widened(x, dtype),), ("logsumexp",), lambda highest, total: (highest + ops.log(total),))


def logsumexp(self: torch.Tensor, dim: Dims, keepdim: bool = False) -> torch.Tensor:
    if self.is_complex():
        return decomposition_table[aten.logsumexp.default](self, dim, keepdim)
    outputs = outputs_of(aten.logsumexp.default, self, dim, keepdim)
    dims = reduced_dims(dim, self.dim())
    record_reduction("aten::logsumexp", [self], outputs, self.shape, dims, log_of_sum, (outputs[0].dtype,))
    return outputs[0]


# Norms ----------------------------------------------------------------------------------------------------------------


def vector_norm(
    self: torch.Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Dtype = None
) -> torch.Tensor:
    outputs = outputs_of(aten.linalg_vector_norm.default, self, ord, dim, keepdim, dtype=dtype)
    return norm_into(outputs, self, ord, reduced_dims(dim, self.dim()), dtype or self.dtype)


@dataclass(frozen=True)
class VectorNorm:
    """The p-norm: how sizes (absolute values) combine. ``order`` is None for a p that travels as scalars 0 and 1,
    whose values are ``scalars`` and are no part of the code.
    """

    order: float | None
    combine: str
    scalars: tuple[float, ...] = ()

    @classmethod
    def of(cls, p: float) -> VectorNorm:
        combine = {math.inf: "max", -math.inf: "min"}.get(p, "sum")
        if p in (0, 1, 2, math.inf, -math.inf):
            return cls(p, combine, ())
        return cls(None, combine, (p, 1 / p))

    def contribution(self, size: Expr) -> Expr:
        if self.order == 0:
            return ops.where(ops.eq(size, 0), ops.like(size, 0), ops.like(size, 1))
        if self.order == 2:
            return size * size
        return size if self.order is not None else ops.pow(size, ops.param(0, size.dtype))

    def result(self, total: Expr) -> Expr:
        if self.order == 2:
            return ops.sqrt(total)
        return total if self.order is not None else ops.pow(total, ops.param(1, total.dtype))


def norm_of(order: float | None, combine: str, dtype: torch.dtype, x: Expr) -> Fold:
    norm, x = VectorNorm(order, combine), widened(x, dtype)
    size = ops.abs_complex(x) if dtype.is_complex else abs(x)
    return Fold((norm.contribution(size),), (combine,), lambda total: (norm.result(total),))


def norm_into(
    outputs: Sequence[torch.Tensor], self: torch.Tensor, ord: float, dims: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """The ``ord``-norm of the elements, converted to ``dtype``, over ``dims``."""
    if self.dim() and ord != 0 and math.prod([self.shape[d] for d in dims]) == 1:
        ord = 1  # the magnitude of each element, as on the CPU, though its power be too large
    norm = VectorNorm.of(ord)
    scalars = [number(v, outputs[0].dtype) for v in norm.scalars]
    arguments = (norm.order, norm.combine, dtype)
    record_reduction("aten::norm", [self], outputs, self.shape, dims, norm_of, arguments, scalars=scalars)
    return outputs[0]


def norm(self: torch.Tensor, p: float | None, dim: Sequence[int], keepdim: bool = False) -> torch.Tensor:
    outputs = outputs_of(aten.norm.ScalarOpt_dim, self, p, dim, keepdim)
    return norm_into(outputs, self, 2 if p is None else p, reduced_dims(dim, self.dim()), self.dtype)


def norm_dtype(
    self: torch.Tensor, p: float | None, dim: Sequence[int], keepdim: bool, *, dtype: torch.dtype
) -> torch.Tensor:
    outputs = outputs_of(aten.norm.ScalarOpt_dim_dtype, self, p, dim, keepdim, dtype=dtype)
    return norm_into(outputs, self, 2 if p is None else p, reduced_dims(dim, self.dim()), dtype)


def register() -> None:
    for overload, kernel in (
        (aten.sum.dim_IntList, sum_dims),
        (aten.nansum.default, nansum),
        (aten.prod.dim_int, prod_dim),
        (aten.prod.default, prod),
        (aten.mean.dim, mean),
        (aten.trace.default, trace),
        (aten.count_nonzero.dim_IntList, count_nonzero),
        (aten.logsumexp.default, logsumexp),
        (aten.norm.ScalarOpt_dim, norm),
        (aten.norm.ScalarOpt_dim_dtype, norm_dtype),
    ):
        register_operator(overload, kernel)
    # Its meta kernel lets an output have no other dtype than the result's, which for complex numbers is not theirs.
    register_operator(aten.linalg_vector_norm.default, vector_norm, out_decides=False)
    for overload, kernel in ((aten.sum.default, sum_dims), (aten.mean.default, mean)):
        register_operator(overload, over_all(overload, kernel))
    for overload, combine in (
        (aten.amax.default, ("max",)),
        (aten.amin.default, ("min",)),
        (aten.max.default, ("max",)),
        (aten.min.default, ("min",)),
        (aten.aminmax.default, ("min", "max")),
    ):
        register_operator(overload, extreme(overload, *combine))
    for name in ("max", "min"):
        dim, arg = getattr(aten, name).dim, getattr(aten, f"arg{name}").default
        register_operator(dim, positions(dim, f"arg{name}", with_value=True))
        register_operator(arg, positions(arg, f"arg{name}", with_value=False))
    for name in ("any", "all"):
        packet = getattr(aten, name)
        for overload in (packet.default, packet.dim, packet.dims):
            register_operator(overload, test(overload, name))
    for name in ("var", "std", "var_mean", "std_mean"):
        overload = getattr(aten, name).correction
        register_operator(overload, variance(overload, name.startswith("std"), name.endswith("mean")))
