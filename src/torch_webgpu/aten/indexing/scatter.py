"""Writing through indices: scatter and index_add, copy, fill, reduce, in all their reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.deterministic import last_of_each_key
from torch_webgpu.aten.dispatch.memory_overlap import check_apart, check_writable
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import check_devices
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.scalars import cast_scalar, check_fits
from torch_webgpu.aten.dispatch.strict import Strict
from torch_webgpu.aten.dispatch.torch_abi import aten, impl, is_deterministic, outputs_of, overloads
from torch_webgpu.aten.dispatch.variants import check_meta
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.record import TypedScalar
from torch_webgpu.engine.sync import ONE_HOT
from torch_webgpu.kernels.indexing.indexed import drop
from torch_webgpu.layout import Shape

from .indexing import Index, along, apart, check_index_dtype, geometry_of, on_dim, read, without, wrap_dim, write
from .sums import SUMMED, add_in_order, order_of, pays

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
    shape = tuple(source.shape)
    in_order = reduce in ("sum", "mean") and sums_in_order(name, self, place, shape, dim)
    if self.dtype in HALF and reduce in ("sum", "mean", "prod") and not in_order:
        return reduce_into_halves(name, self, place, source, dim, reduce, include_self)
    strides, indices = place(self)
    if self.dtype == torch.int64 and reduce in ("amax", "amin"):
        return self.copy_(extremes_of_halves(name, self, place, source, reduce, include_self))
    if not include_self:
        write(name, self, strides, indices, (dtype_of(self.dtype).kind, identity(reduce, self.dtype)), shape)
    if in_order:
        add_by_name(name, self, place, source, dim)
    else:
        serially = is_deterministic() and reduce == "prod"
        write(name, self, strides, indices, source, shape, COMBINE[reduce], dim, serially)
    return divide_by_counts(name, self, place, shape, dim, include_self) if reduce == "mean" else self


def sums_in_order(name: str, self: torch.Tensor, place: Place, shape: Shape, dim: int) -> bool:
    """Whether sums of points of ``shape`` are taken in the order of what they name: in deterministic mode, and where
    whole rows are added and that :func:`.sums.pays`. ``index_reduce`` rounds each partial result of a half type.
    """
    if name == "index_reduce" and self.dtype in HALF:
        return False
    if is_deterministic():
        return self.dtype in SUMMED or self.dtype == torch.complex64
    return is_vector(self, place, shape, dim) and pays(self, shape[dim], self.shape[dim])


def divide_by_counts(
    name: str, self: torch.Tensor, place: Place, shape: Shape, dim: int, include_self: bool
) -> torch.Tensor:
    """Divides each element of ``self`` by the number of points that name it; with ``include_self`` by one more."""
    number = self.real.dtype if self.is_complex() else torch.float32 if self.dtype in HALF else self.dtype
    vector = is_vector(self, place, shape, dim) and drop(shape, dim) == drop(tuple(self.shape), dim)
    sizes, points = named_sizes(self, shape, dim, vector)
    count = torch.full(sizes, int(include_self), dtype=number, device=self.device)
    strides, indices = place(count)
    write(name, count, strides, indices, count.new_ones(()).expand(points), points, "add", dim)
    return self.div_(count.clamp_(min=1), rounding_mode=None if number.is_floating_point else "floor")


def reduce_into_halves(
    name: str, self: torch.Tensor, place: Place, source: torch.Tensor, dim: int, reduce: str, include_self: bool
) -> torch.Tensor:
    """:func:`reduce_into` for half types, in float32: as on the CPU, ``index_reduce`` rounds each partial result, the
    others the last one, and means are divided after that.
    """
    wide, combined = self.float(), "sum" if reduce == "mean" else reduce
    if name == "index_reduce":
        shape, half = tuple(source.shape), dtype_of(self.dtype).name
        if not include_self:
            write(name, wide, *place(wide), ("f", identity(reduce, self.dtype)), shape)
        write(name, wide, *place(wide), source, shape, COMBINE[reduce], dim, in_order=True, rounded=half)
    else:
        reduce_into(name, wide, place, source, dim, combined, include_self)
    self.copy_(wide)
    return divide_by_counts(name, self, place, tuple(source.shape), dim, include_self) if reduce == "mean" else self


def is_vector(self: torch.Tensor, place: Place, shape: Shape, dim: int) -> bool:
    """Whether what points of ``shape`` name depends on their place along ``dim`` alone: indices are a vector."""
    return not any(s for i in place(self)[1] for d, s in enumerate(i.strides) if d != dim and shape[d] != 1)


def named_sizes(self: torch.Tensor, shape: Shape, dim: int, vector: bool) -> tuple[Shape, Shape]:
    """Sizes of what is named, and of the points of ``shape`` that name it, if the index is a ``vector``: slices along
    ``dim``; else elements.
    """
    return (
        tuple([n if d == dim or not vector else 1 for d, n in enumerate(self.shape)]),
        tuple([n if d == dim or not vector else 1 for d, n in enumerate(shape)]),
    )


def add_by_name(name: str, self: torch.Tensor, place: Place, source: torch.Tensor, dim: int) -> None:
    """Adds ``source`` to the elements of ``self`` that ``place`` names, in the order of those."""
    check_writable(self.shape, self.stride())
    check_apart(self, [*(i.tensor for i in place(self)[1]), source])
    source = apart(source, self)
    vector = is_vector(self, place, tuple(source.shape), dim)
    sizes, points = named_sizes(self, tuple(source.shape), dim, vector)
    strides, indices = place(torch.empty(sizes, device="meta"))
    order = order_of(name, prod(sizes), geometry_of(points, strides, indices, []), [i.tensor for i in indices])
    if vector:
        for d, n in enumerate(source.shape):
            self = self if d == dim else self.narrow(d, 0, n)
        add_in_order(self.movedim(dim, 0), source.movedim(dim, 0), order, 1)
    else:
        add_in_order(self, source, order)


def last_writes(name: str, self: torch.Tensor, place: Place, source: torch.Tensor, dim: int) -> torch.Tensor:
    """``source`` with what is written last to an element in the place of all that is written to it."""
    vector = is_vector(self, place, tuple(source.shape), dim)
    sizes, points = named_sizes(self, tuple(source.shape), dim, vector)
    numbers = torch.arange(1, prod(sizes) + 1, device=self.device).view(sizes)  # an index out of range reads 0
    last = last_of_each_key(read(name, numbers, *place(numbers), numbers.new_empty(points)).view(-1))
    if vector:
        return source.index_select(dim, last)
    return source.reshape(-1).index_select(0, last).view(source.shape)


def extremes_of_halves(
    name: str, self: torch.Tensor, place: Place, source: torch.Tensor, reduce: str, include_self: bool
) -> torch.Tensor:
    """:func:`reduce_into` for int64 maxima and minima, of which there are no atomics: of the high words, then of the
    low words among those whose high word won."""
    combine, shape = COMBINE[reduce], tuple(source.shape)
    if not include_self:
        self = self.clone()
        write(name, self, *place(self), ("l", identity(reduce, torch.int64)), shape)
    high, low = halves(self)
    source_high, source_low = halves(source)
    reduced = high.clone()
    write(name, reduced, *place(reduced), source_high, shape, combine)
    winner = read(name, reduced, *place(reduced), torch.empty_like(source_high))
    nothing = identity(reduce, torch.int32)
    low = torch.where(high == reduced, low, nothing)
    write(name, low, *place(low), torch.where(source_high == winner, source_low, nothing), shape, combine)
    return (reduced.long() << 32) + (low.long() + 2**31)


def halves(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and the low words of int64 as int32 that order as they do."""
    t = t.contiguous()
    return (t >> 32).int(), ((t & 0xFFFFFFFF) - 2**31).int()


def element(like: torch.Tensor, value: float) -> TypedScalar:
    """A number as an element of ``like``; RuntimeError, in PyTorch's words, for one that does not fit."""
    dtype = dtype_of(like.dtype)
    check_fits(value, dtype.name)
    return dtype.kind, cast_scalar(value, dtype.name)


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
    name: str = "scatter",
) -> torch.Tensor:
    """``name``: the operator that is called."""
    if reduce is not None and reduce not in REDUCE_NAMES and reduce not in COMBINE:
        raise RuntimeError("reduce argument must be either sum, prod, mean, amax or amin")
    if self.is_complex() and reduce in ("amax", "amin"):
        raise NotImplementedError(f"complex numbers have no order: no {reduce} for '{name_of(self.dtype)}'")
    check_devices([self, index, *([source] if isinstance(source, torch.Tensor) else [])])
    if index.numel() == 0:
        return self
    check_index_dtype("scatter(): Expected dtype int32/int64 for index", index)
    target, index = lifted(self, index)
    dim = wrap_dim(dim, target.dim())
    if reduce is None and not isinstance(source, torch.Tensor):
        strides, indices = points_of(dim, index)(target)
        write(name, target, strides, indices, element(self, source), index.shape)
        return self
    if isinstance(source, torch.Tensor):
        (source,) = lifted(source)
        source = source.as_strided(index.shape, source.stride(), source.storage_offset())
    else:
        source = self.new_full((), source).expand(index.shape)
    if reduce is None:
        if is_deterministic():
            source = last_writes(name, target, points_of(dim, index), source, dim)
        strides, indices = points_of(dim, index)(target)
        write(name, target, strides, indices, source, index.shape)
    else:
        reduction = REDUCE_NAMES.get(reduce, reduce)
        reduce_into(name, target, points_of(dim, index), source, dim, reduction, include_self)
    return self


def scatter_add_(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return scatter_(self, dim, index, source, reduce="sum", name="scatter_add")


def scatter_reduce_(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    return scatter_(self, dim, index, source, reduce=reduce, include_self=include_self, name="scatter_reduce")


def one_hot(self: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """As PyTorch's, whose errors would name the operators that it is composed of."""
    if self.dtype != torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if not self.numel() and num_classes <= 0:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    if num_classes == -1:
        least, largest = torch.stack(torch.aminmax(self)).tolist()
        if least < 0:
            raise RuntimeError(ONE_HOT.of_negative)
        num_classes = largest + 1
    elif self.numel() and num_classes < 1:
        raise RuntimeError(ONE_HOT.words)
    result = self.new_zeros((*self.shape, num_classes))
    return scatter_(result, -1, self.unsqueeze(-1), 1, name="one_hot")


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
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    return reduce_slices_("index_reduce", self, dim, index, source, reduce, include_self)


def reduce_slices_(
    name: str,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    include_self: bool = True,
) -> torch.Tensor:
    check_devices([self, index, source])
    target, source = lifted(self, source)
    dim = wrap_dim(dim, target.dim())
    check_slices(name, target, dim, index, source)
    if source.numel():
        reduce_into(name, target, slices_of(dim, index), source, dim, reduce, include_self)
    return self


def check_slices(name: str, self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> None:
    """Raises, in PyTorch's words, unless ``source`` has a slice of ``self`` for each of ``index``."""
    check_vector(name, index)
    check_index_dtype(f"{name}_(): Expected dtype int32/int64 for index but got: {index.dtype}", index)
    if self.dtype != source.dtype:
        names = name_of(self.dtype), name_of(source.dtype)
        raise RuntimeError(f"{name}_(): self ({names[0]}) and source ({names[1]}) must have the same scalar type")
    if index.numel() != source.shape[dim]:
        raise RuntimeError(
            f"{name}_(): Number of indices ({index.numel()}) should be equal to source.size(dim): "
            f"({source.shape[dim]}), for dim: {dim}"
        )
    if source.dim() != self.dim() or drop(tuple(source.shape), dim) != drop(tuple(self.shape), dim):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(self.shape)} source.shape = {list(source.shape)}"
        )


def check_vector(name: str, index: torch.Tensor) -> None:
    if index.dim() > 1:
        raise IndexError(
            f"{name}_(): Index is supposed to be a vector, but got dim: {index.dim()} with type: "
            f"{name_of(index.dtype)} and size: {list(index.shape)}"
        )


def index_add_(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1
) -> torch.Tensor:
    scaled = source if alpha == 1 else (source * alpha).to(source.dtype)
    return reduce_slices_("index_add", self, dim, index, scaled, "sum")


def index_copy_(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    check_devices([self, index, source])
    target = self if self.dim() else self.view(1)
    dim = wrap_dim(dim, target.dim())
    check_copied_slices(target, dim, index, source)
    strides, indices = slices_of(dim, index)(target)
    shape = (*target.shape[:dim], index.numel(), *target.shape[dim + 1 :])
    if is_deterministic() and source.dim() and source.numel():
        source = last_writes("index_copy", target, slices_of(dim, index), source, dim)
    write("index_copy", target, strides, indices, source, shape)
    return self


def check_copied_slices(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> None:
    check_vector("index_copy", index)
    if index.dtype != torch.int64:
        raise RuntimeError(f"index_copy_(): Expected a long tensor for index, but got {name_of(index.dtype)}")
    if self.dtype != source.dtype:
        raise RuntimeError(
            "index_copy_(): self and source expected to have the same dtype, but got (self) "
            f"{name_of(self.dtype)} and (source) {name_of(source.dtype)}"
        )
    if source.dim() == 0:
        if index.numel() != 1:
            raise IndexError(
                f"index_copy_(): When source is scalar, index should have one element (got {index.numel()})"
            )
        return
    here, there = drop(tuple(self.shape), dim), drop(tuple(source.shape), dim)
    if here != there:
        raise RuntimeError(
            "index_copy_(): Source/destination tensor must have same slice shapes. Destination slice shape: "
            f"{' '.join(map(str, here))} at dimension {dim} and source slice shape: "
            f"{' '.join(map(str, there))} at dimension 0."
        )
    if index.numel() != source.shape[dim]:
        raise IndexError(
            f"index_copy_(): Number of indices ({index.numel()}) should be equal to source.size(dim) "
            f"({source.shape[dim]})"
        )


def index_fill_scalar_(self: torch.Tensor, dim: int, index: torch.Tensor, value: float) -> torch.Tensor:
    check_devices([self, index])
    if index.dtype != torch.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if index.dim() > 1:
        raise IndexError("Index has to be a vector/scalar")
    if not self.is_complex() and isinstance(value, complex):
        raise RuntimeError("index_fill_(): Converting complex Scalar to non-complex type is not supported")
    (target,) = lifted(self)
    dim = wrap_dim(dim, target.dim())
    strides, indices = slices_of(dim, index, wraps=True)(target)
    shape = (*target.shape[:dim], index.numel(), *target.shape[dim + 1 :])
    write("index_fill", target, strides, indices, element(self, value), shape)
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

    register_operator(inplace, in_place, by_mode=True)
    register_operator(functional, on_copy, strict=Strict(apart="others"), by_mode=True)


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
    register_operator(aten.index_fill_.int_Scalar, index_fill_scalar_)
    impl(aten.index_fill_.int_Tensor, index_fill_tensor_)
    register_operator(aten.one_hot.default, one_hot)
