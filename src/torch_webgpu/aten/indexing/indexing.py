"""Reading through indices: index_select, gather, take, advanced indexing, masks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch

from torch_webgpu.aten.dispatch.deterministic import alert_not_deterministic, last_of_each_key
from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.memory_overlap import check_apart, check_writable
from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.recorded_once import always
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import check_devices, warn_of_expanded
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.strict import Strict, same_scalar_type
from torch_webgpu.aten.dispatch.torch_abi import aten, is_deterministic, is_webgpu, outputs_of
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.record import TypedScalar, engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.indexing import indexed
from torch_webgpu.kernels.indexing.indexed import IndexGeometry, Term
from torch_webgpu.layout import Shape, broadcast_strides

from .compaction import coordinates_of, selected
from .masked_write import only_mask, put_by_mask
from .sums import add_in_order, order_of, pays

NO_ATOMICS = "WebGPU has no float64 atomics"
ON_EXPANDED = {"index_fill": "tensor[mask] = scalar", "index_put": "tensor[indices] = tensor"}
"""What PyTorch lets write to elements that share memory, and the indexing that does so."""
BYTE_MASKS = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."


class Index(NamedTuple):
    """An index tensor, its strides over the points of an operation, and the dimension of the data that it addresses."""

    tensor: torch.Tensor
    strides: Shape
    term: Term


def geometry_of(
    shape: Sequence[int], data: Shape, indices: Sequence[Index], other: Sequence[Shape], base: int = 0
) -> IndexGeometry:
    return IndexGeometry(
        tuple(shape), (data, *(i.strides for i in indices), *other), tuple(i.term for i in indices), base
    )


def read(
    name: str, data: torch.Tensor, strides: Shape, indices: Sequence[Index], out: torch.Tensor, base: int = 0
) -> torch.Tensor:
    """``out[p] = data[base + p · strides + Σ index[p] · term.stride]`` for every point ``p`` of ``out``."""
    if out.numel():
        geometry = geometry_of(out.shape, strides, indices, [out.stride()], base)
        body = Extern(indexed.lower_read, (geometry,))
        record_kernel(name, [data, *(i.tensor for i in indices)], [out], body)
    return out


def write(
    name: str,
    data: torch.Tensor,
    strides: Shape,
    indices: Sequence[Index],
    source: torch.Tensor | TypedScalar,
    shape: Sequence[int],
    combine: str = "set",
    serial_dim: int | None = None,
    in_order: bool = False,
    rounded: str = "",
) -> torch.Tensor:
    """``data[p · strides + Σ index[p] · term.stride]`` combined with ``source[p]`` for every point ``p`` of ``shape``.

    ``combine``: see :func:`indexed.lower_write`. ``serial_dim``: the dimension in which alone points may collide, for
    dtypes whose combination is not atomic, or with ``in_order``, which combines in the points' order, and rounds to the
    half type ``rounded`` each time. A source is broadcast to ``shape``.
    """
    check_target(name, data)
    check_apart(data, [*(i.tensor for i in indices), source])
    if prod(shape) == 0:
        return data
    indices = [i._replace(tensor=apart(i.tensor, data)) for i in indices]
    inputs = [data, *(i.tensor for i in indices)]
    scalars: list[TypedScalar] = []
    other: list[Shape] = []
    if isinstance(source, torch.Tensor):
        inputs.append(apart(source, data))
        other.append(broadcast_strides(tuple(source.shape), inputs[-1].stride(), tuple(shape)))
    else:
        scalars.append(source)
    geometry = geometry_of(shape, strides, indices, other)
    atomic = not in_order and indexed.combines_atomically(dtype_of(data.dtype).name, combine)
    if atomic or serial_dim is None:
        body = Extern(indexed.lower_write, (geometry, combine))
    else:
        body = Extern(indexed.lower_serial_write, (geometry, serial_dim, combine, *([rounded] if rounded else [])))
    record_kernel(name, inputs, [data], body, scalars)
    return data


def is_expanded(t: torch.Tensor) -> bool:
    return any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape))


def check_target(name: str, data: torch.Tensor) -> None:
    """Raises, in PyTorch's words, or warns, where PyTorch does, if elements of ``data``, which ``name`` writes, share
    memory.
    """
    if name in ON_EXPANDED and is_expanded(data):
        warn_of_expanded(f"{name}_", ON_EXPANDED[name])
    else:
        check_writable(data.shape, data.stride())


def apart(t: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    """``t``, copied if it lies in the storage of ``written``: threads read and write in any order."""
    same = t.untyped_storage().data_ptr() == written.untyped_storage().data_ptr()
    return engine().copy_of(t) if same else t


def wrap_dim(dim: int, rank: int) -> int:
    """``dim`` as a non-negative number; IndexError in PyTorch's words when it is out of range."""
    rank = max(rank, 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")
    return dim % rank


def without(strides: Shape, dim: int) -> Shape:
    """``strides`` with those of dimension ``dim`` replaced by 0: its position comes from an index."""
    return tuple(0 if d == dim else s for d, s in enumerate(strides))


def size_and_stride(t: torch.Tensor, dim: int) -> tuple[int, int]:
    return (t.shape[dim], t.stride(dim)) if t.dim() else (1, 1)


def along(data: torch.Tensor, dim: int, index: torch.Tensor) -> Index:
    """An index tensor with the shape of the points (gather, scatter), addressing ``data``'s dimension ``dim``."""
    return Index(index, index.stride(), Term(*size_and_stride(data, dim), wraps=False, dim=dim))


def on_dim(data: torch.Tensor, dim: int, index: torch.Tensor, wraps: bool = False) -> Index:
    """A 1-D index tensor laid along dimension ``dim`` of the points (index_select, index_add)."""
    step = index.stride(0) if index.dim() else 0
    strides = tuple(step if d == dim else 0 for d in range(data.dim()))
    return Index(index, strides, Term(*size_and_stride(data, dim), wraps=wraps, dim=dim))


def index_select(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    check_devices([self, index])
    if index.dim() > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    check_index_dtype("index_select(): Expected dtype int32 or int64 for index", index)
    (out,) = outputs_of(aten.index_select.default, self, dim, index)
    dim = wrap_dim(dim, self.dim())
    return read("index_select", self, without(self.stride(), dim), [on_dim(self, dim, index)], out)


def gather(
    self: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False, name: str = "gather"
) -> torch.Tensor:
    """``name``: the operator that is called."""
    check_devices([self, index])
    if index.numel():
        check_index_dtype("gather(): Expected dtype int32/int64 for index", index)
    (out,) = outputs_of(aten.gather.default, self, dim, index)
    dim = wrap_dim(dim, self.dim())
    strides = self.stride() if self.dim() else (0,) * index.dim()
    return read(name, self, without(strides, dim), [along(self, dim, index)], out)


def check_index_dtype(message: str, *indices: torch.Tensor) -> None:
    for index in indices:
        if index.dtype not in (torch.int64, torch.int32):
            raise RuntimeError(message)


def flattened(self: torch.Tensor, index: torch.Tensor) -> Index:
    """``index`` into the row-major elements of a contiguous tensor, negative ones from the end."""
    return Index(index, index.stride(), Term(self.numel(), 1, wraps=True))


def take(self: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    check_devices([self, index])
    if index.dtype != torch.int64:
        raise RuntimeError(f"take(): Expected a long tensor for index, but got {name_of(index.dtype)}")
    if self.numel() == 0 and index.numel():
        raise IndexError("take(): tried to take from an empty tensor")
    (out,) = outputs_of(aten.take.default, self, index)
    self = self.contiguous()
    return read("take", self, (0,) * index.dim(), [flattened(self, index)], out)


# Advanced indexing --------------------------------------------------


def expand_masks(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """``indices`` with boolean masks replaced by the positions of their true elements, one tensor per dimension."""
    expanded: list[torch.Tensor | None] = []
    masks: list[tuple[int, torch.Tensor]] = []
    for index in indices:
        if index is not None and index.device != self.device and not index.is_cpu:
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor ({self.device})"
            )
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            if index is not None and index.dtype not in (torch.int64, torch.int32):
                raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
            expanded.append(index if index is None or is_webgpu(index) else index.to(self.device))
            continue
        check_mask(self, index, len(expanded))
        masks.append((len(expanded), index.to(self.device)))
        expanded += [None] * index.dim()
    found = coordinates_of([mask for _, mask in masks]) if masks else []
    for (at, mask), coordinates in zip(masks, found, strict=True):
        expanded[at : at + mask.dim()] = coordinates.unbind(1)
    if len(expanded) > self.dim():
        raise IndexError(f"too many indices for tensor of dimension {self.dim()} (got {len(expanded)})")
    return expanded


def check_mask(self: torch.Tensor, mask: torch.Tensor, at: int) -> None:
    """IndexError unless a mask has the shape of the dimensions from ``at`` on."""
    if mask.dtype == torch.uint8:
        warnings.warn(BYTE_MASKS, stacklevel=2)
    for d, size in enumerate(mask.shape):
        if at + d >= self.dim() or self.shape[at + d] != size:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {d} does not match "
                f"the shape of the indexed tensor {list(self.shape)} at index {at + d}"
            )


def has_mask(_self: torch.Tensor, indices: Sequence[torch.Tensor | None], *_args: Any) -> bool:
    """Whether what is indexed depends on values that have to be read."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


class Indexed(NamedTuple):
    """Advanced indexing resolved: the result's shape, ``self``'s strides over it, and the index tensors."""

    shape: tuple[int, ...]
    strides: Shape
    indices: list[Index]


def resolve(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Indexed:
    """Where the points of ``self[indices]`` lie: neighbouring indexed dimensions stay in place, others go first."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    tensors = [index for index in indices if index is not None]
    try:
        block = tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))
    except RuntimeError:
        shapes = ", ".join(str(list(t.shape)) for t in tensors)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None
    if prod(block) and any(self.shape[d] == 0 for d in dims):
        raise IndexError("index is out of bounds for dimension with size 0")
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    at = dims[0] if adjacent else 0
    rest = [d for d in range(self.dim()) if d not in dims]
    before, after = rest[:at], rest[at:]
    shape = (*(self.shape[d] for d in before), *block, *(self.shape[d] for d in after))
    strides = (*(self.stride(d) for d in before), *(0 for _ in block), *(self.stride(d) for d in after))
    resolved = [
        Index(
            t,
            (0,) * len(before) + broadcast_strides(tuple(t.shape), t.stride(), block) + (0,) * len(after),
            Term(self.shape[d], self.stride(d), wraps=True, dim=d),
        )
        for d, t in zip(dims, tensors, strict=True)
    ]
    return Indexed(shape, strides, resolved)


def index(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    first = indices[0] if len(indices) == 1 else None
    if first is not None and first.dtype == torch.bool and 0 < first.dim() == self.dim():
        check_mask(self, first, 0)
        return selected("index", self, first.to(self.device))
    expanded = expand_masks(self, indices)
    check_devices([self, *(i for i in expanded if i is not None)])
    if all(i is None for i in expanded):
        return self.clone()
    where = resolve(self, expanded)
    (out,) = outputs_of(aten.index.Tensor, self, expanded)
    return read("index", self, where.strides, where.indices, out)


def index_put_(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    is_at_hand = values.device == self.device or (values.is_cpu and not values.dim())
    if is_at_hand and values.dtype == self.dtype and (mask := only_mask(indices)) is not None:
        check_mask(self, mask[1], mask[0])
        if put_by_mask(self, *mask, values, accumulate):
            return self
    if accumulate and self.dtype == torch.float64:
        return run_on_cpu(aten._index_put_impl_.default, (self, indices, values, accumulate, unsafe), {}, NO_ATOMICS)
    expanded = expand_masks(self, indices)
    if values.device != self.device and values.dim() == 0:
        check_put_dtypes(self, values)  # before the device is asked for one that it may not hold
        values = values.to(self.device)
    check_devices([self, values, *(i for i in expanded if i is not None)])
    if all(i is None for i in expanded):
        return self.add_(values) if accumulate else self.copy_(values)
    where = resolve(self, expanded)
    try:
        values = values.expand(where.shape) if values.dim() <= len(where.shape) else squeeze_to(values, where.shape)
    except RuntimeError:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result "
            f"of shape {list(where.shape)}"
        ) from None
    check_put_dtypes(self, values)
    if is_deterministic() and (not accumulate or self.is_floating_point() or self.is_complex()):
        return put_in_order(self, expanded, values, where, accumulate)
    if accumulate and sums_in_order(self, where):
        return put_in_order(self, expanded, values, where, accumulate)
    if accumulate and self.dtype in (torch.float16, torch.bfloat16):
        wide = self.float()
        where = resolve(wide, expanded)
        write("index_put", wide, where.strides, where.indices, values, where.shape, "add")
        return self.copy_(wide)
    return write("index_put", self, where.strides, where.indices, values, where.shape, "add" if accumulate else "set")


def sums_in_order(self: torch.Tensor, where: Indexed) -> bool:
    """Whether ordering the points of ``where`` by what they name pays, to add them to ``self``."""
    indexed = {i.term.dim for i in where.indices}
    width = prod([n for d, n in enumerate(self.shape) if d not in indexed])
    rows = prod([i.term.size for i in where.indices])
    points = prod(where.shape) // max(width, 1)
    return not is_expanded(self) and pays(self, points, rows, len(where.indices))


def check_put_dtypes(self: torch.Tensor, values: torch.Tensor) -> None:
    if values.dtype != self.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {name_of(self.dtype)} for the "
            f"destination and {name_of(values.dtype)} for the source."
        )


def put_in_order(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    where: Indexed,
    accumulate: bool,
) -> torch.Tensor:
    """:func:`index_put_` of ``values``, as large as ``where``: sums in the order of what points name, of several writes
    to an element the last.
    """
    if not values.numel():
        return self
    dims = [d for d, index in enumerate(indices) if index is not None]
    tensors = [index for index in indices if index is not None]
    sizes = [self.shape[d] for d in dims]
    numbers = torch.arange(1, prod(sizes) + 1, device="meta" if accumulate else self.device).view(sizes)
    named = resolve(numbers, tensors)  # an index out of range reads 0
    rank, points = len(named.shape), prod(named.shape)
    at = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    block = list(range(at, at + rank))
    if accumulate:
        check_target("index_put", self)
        check_apart(self, [tensors, values])
        rows = apart(values, self).movedim(block, list(range(rank))).reshape(points, -1)
        found = [i._replace(term=replace(i.term, dim=d)) for d, i in zip(dims, named.indices, strict=True)]
        geometry = geometry_of(named.shape, named.strides, found, [])
        order = order_of("index_put", prod(sizes), geometry, tensors)
        add_in_order(self.movedim(dims, list(range(len(dims)))), rows, order, len(dims))
        return self
    keys = read("index_put", numbers, named.strides, named.indices, numbers.new_empty(named.shape))
    rows = values.movedim(block, list(range(rank))).reshape(points, -1)
    rest = [n for d, n in enumerate(values.shape) if d not in block]
    rows = rows.index_select(0, last_of_each_key(keys.reshape(-1))).view(*keys.shape, *rest)
    values = rows.movedim(list(range(rank)), block)
    return write("index_put", self, where.strides, where.indices, values, where.shape)


def squeeze_to(values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """``values`` expanded to ``shape`` without the leading dimensions of size 1 that it has too many."""
    extra = values.dim() - len(shape)
    if any(size != 1 for size in values.shape[:extra]):
        raise RuntimeError("too many dimensions")
    return values.reshape(values.shape[extra:]).expand(shape)


def put_(self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    if not accumulate:
        alert_not_deterministic("put_")  # as on every device of PyTorch's, though the last of several stays here
    if accumulate and self.dtype == torch.float64:
        return run_on_cpu(aten.put_.default, (self, index, source, accumulate), {}, NO_ATOMICS)
    check_devices([self, index, source])
    if index.dtype != torch.int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {name_of(index.dtype)}")
    if self.dtype != source.dtype:
        raise RuntimeError(
            f"put_(): self and source expected to have the same dtype, but got self.dtype = {self.dtype} "
            f"and source.dtype = {source.dtype}"
        )
    if index.numel() != source.numel():
        raise RuntimeError(
            f"put_(): Expected source and index to have the same number of elements, but got source.numel() = "
            f"{source.numel()}, index.numel() = {index.numel()}"
        )
    if self.numel() == 0 and index.numel():
        raise IndexError("put_(): Expected index to be empty, since self is empty")
    wide = accumulate and self.dtype in (torch.float16, torch.bfloat16)
    flat = (self.float() if wide else self).contiguous()
    source = source.reshape(index.shape)
    if is_deterministic() and index.numel() and (not accumulate or flat.is_floating_point() or flat.is_complex()):
        put_in_order(flat.view(-1), [index], source, resolve(flat.view(-1), [index]), accumulate)
        return self if flat is self else self.copy_(flat)
    combine = "add" if accumulate else "set"
    write("put", flat, (0,) * index.dim(), [flattened(flat, index)], source, index.shape, combine)
    return self if flat is self else self.copy_(flat)


# Masks --------------------------------------------------


def masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    check_devices([self, mask])
    if mask.shape != self.shape:
        mask, self = torch.broadcast_tensors(mask, self)  # errors name the mask's shape first, as the CPU's do
    return selected("masked_select", self, mask)


def masked_scatter_(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Elements of ``source`` in order, put where ``mask`` is true; RuntimeError, at the next read, if they run out."""
    if self.dtype != source.dtype:
        raise RuntimeError(
            f"masked_scatter: expected self and source to have same dtypes but got {self.dtype} and {source.dtype}"
        )
    if mask.dtype != torch.bool:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {name_of(mask.dtype)}"
        )
    check_devices([self, mask, source])
    mask = mask.expand(self.shape)
    if self.numel() == 0:
        return self
    if source.numel() == 0:
        if bool(mask.any()):
            raise RuntimeError("Number of elements of source < number of ones in mask")
        return self
    place = (torch.cumsum(mask.reshape(-1), 0, dtype=torch.int64) - 1).clamp_(min=0).view(self.shape)
    found = engine().empty(self.shape, self.dtype, self.device.index)
    read("masked_scatter", source.contiguous(), (0,) * self.dim(), [flattened(source, place)], found)
    return self.copy_(torch.where(mask, found, self))


def register() -> None:
    register_operator(aten.index_select.default, index_select, strict=Strict(same_scalar_type("index_select")))
    register_operator(aten.gather.default, gather, strict=Strict())
    register_operator(aten.take.default, take, strict=Strict(same_scalar_type("take")))
    register_operator(aten.index.Tensor, index, strict=Strict(), reads=has_mask)
    strict = Strict(same_scalar_type("masked_select"))
    register_operator(aten.masked_select.default, masked_select, strict=strict, reads=always)
    register_operator(aten._index_put_impl_.default, index_put_, by_mode=True, reads=has_mask)
    register_operator(aten.put_.default, put_, by_mode=True)
    register_operator(aten.masked_scatter_.default, masked_scatter_)
