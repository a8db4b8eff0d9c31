"""Writing through indices: scatter and index_add, copy, fill, reduce, in all their reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.dtypes import BY_TORCH
from torch_webgpu.layout import Shape

from .indexing import Index, along, check_index_dtype, on_dim, without, wrap_dim, write
from .register import check_devices
from .torch_abi import aten, functional_of, impl, is_out, outputs_of, overloads
from .variants import check_meta, out_variant

Place = Callable[[torch.Tensor], tuple[Shape, list[Index]]]
"""Strides and indices with which a tensor of the target's shape is written."""

COMBINE = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
REDUCE_NAMES = {"add": "sum", "multiply": "prod"}
HALF = (torch.float16, torch.bfloat16)


def identity(reduce: str, dtype: torch.dtype) -> float | int | bool:
    """The value that leaves every other one as it is under ``reduce``."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype == torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


def reduce_into(
    name: str,
    self: torch.Tensor,
    place: Place,
    source: torch.Tensor,
    dim: int,
    reduce: str,
    include_self: bool = True,
) -> torch.Tensor:
    """Reduces ``source`` into the elements of ``self`` that ``place`` names; the half types accumulate in float32."""
    if self.dtype in HALF and reduce in ("sum", "mean", "prod"):
        return self.copy_(reduce_into(name, self.float(), place, source, dim, reduce, include_self))
    strides, indices = place(self)
    shape = tuple(source.shape)
    if not include_self:
        write(name, self, strides, indices, (BY_TORCH[self.dtype].kind, identity(reduce, self.dtype)), shape)
    write(name, self, strides, indices, source, shape, COMBINE[reduce], dim)
    if reduce == "mean":
        count = (torch.ones_like if include_self else torch.zeros_like)(self, memory_format=torch.contiguous_format)
        strides, indices = place(count)
        write(name, count, strides, indices, count.new_ones(()).expand(shape), shape, "add", dim)
        self.div_(count.clamp_(min=1), rounding_mode=None if self.dtype.is_floating_point else "floor")
    return self


# scatter: the index tensor has the shape of the points ---------------------------------------------------------------


def lifted(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """0-dim tensors as 1-dim ones, sharing their storage."""
    return [t if t.dim() else t.view(1) for t in tensors]


def points_of(dim: int, index: torch.Tensor) -> Place:
    return lambda target: (without(target.stride(), dim), [along(target, dim, index)])


def scatter_(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor | float,
    *,
    reduce: str | None = None,
    include_self: bool = True,
) -> torch.Tensor:
    if reduce is not None and reduce not in REDUCE_NAMES and reduce not in COMBINE:
        raise RuntimeError("reduce argument must be either sum, prod, mean, amax or amin")
    check_devices([self, index, *([source] if isinstance(source, torch.Tensor) else [])])
    check_index_dtype("scatter(): Expected dtype int32/int64 for index", index)
    if index.numel() == 0:
        return self
    target, index = lifted(self, index)
    dim = wrap_dim(dim, target.dim())
    if reduce is None and not isinstance(source, torch.Tensor):
        strides, indices = points_of(dim, index)(target)
        write("scatter", target, strides, indices, (BY_TORCH[self.dtype].kind, source), index.shape)
        return self
    if isinstance(source, torch.Tensor):
        (source,) = lifted(source)
        source = source.as_strided(index.shape, source.stride(), source.storage_offset())
    else:
        source = self.new_full((), source).expand(index.shape)
    if reduce is None:
        strides, indices = points_of(dim, index)(target)
        write("scatter", target, strides, indices, source, index.shape)
    else:
        reduction = REDUCE_NAMES.get(reduce, reduce)
        reduce_into("scatter_reduce", target, points_of(dim, index), source, dim, reduction, include_self)
    return self


def scatter_add_(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return scatter_(self, dim, index, source, reduce="sum")


def scatter_reduce_(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    return scatter_(self, dim, index, source, reduce=reduce, include_self=include_self)


# index_*: a 1-D index tensor along one dimension of the points -------------------------------------------------------


def slices_of(dim: int, index: torch.Tensor, wraps: bool = False) -> Place:
    return lambda target: (without(target.stride(), dim), [on_dim(target, dim, index, wraps)])


def index_reduce_(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    check_devices([self, index, source])
    check_index_dtype("index_reduce(): Expected dtype int32/int64 for index", index)
    target, source = lifted(self, source)
    dim = wrap_dim(dim, target.dim())
    if source.numel():
        reduce_into("index_reduce", target, slices_of(dim, index), source, dim, reduce, include_self)
    return self


def index_add_(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1
) -> torch.Tensor:
    return index_reduce_(self, dim, index, source if alpha == 1 else source * alpha, "sum")


def index_copy_(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    check_devices([self, index, source])
    target, source = lifted(self, source)
    dim = wrap_dim(dim, target.dim())
    strides, indices = slices_of(dim, index)(target)
    shape = (*target.shape[:dim], index.numel(), *target.shape[dim + 1 :])
    write("index_copy", target, strides, indices, source, shape)
    return self


def index_fill_scalar_(self: torch.Tensor, dim: int, index: torch.Tensor, value: float) -> torch.Tensor:
    check_devices([self, index])
    if index.dtype not in (torch.int64, torch.int32):
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if index.dim() > 1:
        raise IndexError("Index has to be a vector/scalar")
    if not self.is_complex() and isinstance(value, complex):
        raise RuntimeError("index_fill_(): Converting complex Scalar to non-complex type is not supported")
    (target,) = lifted(self)
    dim = wrap_dim(dim, target.dim())
    strides, indices = slices_of(dim, index, wraps=True)(target)
    shape = (*target.shape[:dim], index.numel(), *target.shape[dim + 1 :])
    write("index_fill", target, strides, indices, (BY_TORCH[self.dtype].kind, value), shape)
    return self


def index_fill_tensor_(self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if value.dim():
        raise RuntimeError(f"Only supports 0-dimension value tensor, but got tensor with {value.dim()} dimension(s).")
    return index_fill_scalar_(self, dim, index, value.item())


# Registration --------------------------------------------------------------------------------------------------------


def register_mutation(functional: OpOverload, fn: Callable[..., torch.Tensor]) -> None:
    """Registers ``fn``, which writes into its first argument, as the in-place overload; derives the others from it."""
    name = functional._schema.name.split("::")[1]
    inplace = overloads(f"{name}_")[functional._overloadname]

    def on_copy(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        (out,) = outputs_of(functional, self, *args, **kwargs)
        return fn(out.copy_(self), *args, **kwargs)

    def in_place(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        check_meta(inplace, (self, *args), kwargs)
        return fn(self, *args, **kwargs)

    impl(functional, on_copy)
    impl(inplace, in_place)
    for candidate in overloads(name).values():
        if is_out(candidate) and functional_of(candidate) is functional:
            impl(candidate, out_variant(candidate, on_copy))


MUTATIONS: Sequence[tuple[OpOverload, Callable[..., torch.Tensor]]] = (
    (aten.scatter.src, scatter_),
    (aten.scatter.value, scatter_),
    (aten.scatter.reduce, scatter_),
    (aten.scatter.value_reduce, scatter_),
    (aten.scatter_add.default, scatter_add_),
    (aten.scatter_reduce.two, scatter_reduce_),
    (aten.index_add.default, index_add_),
    (aten.index_copy.default, index_copy_),
    (aten.index_reduce.default, index_reduce_),
)


def register() -> None:
    for functional, fn in MUTATIONS:
        register_mutation(functional, fn)
    impl(aten.index_fill_.int_Scalar, index_fill_scalar_)
    impl(aten.index_fill_.int_Tensor, index_fill_tensor_)
