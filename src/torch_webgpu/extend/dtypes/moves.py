"""Operators that move elements and compute nothing: views, copies, joining. They move components.

Where elements share components' elements along a dimension, its blocks stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from .compute import unsupported
from .errors import MethodDTypeNotSupportedError
from .tensor import NO_DIM, DTypeTensor

MOVES = frozenset(
    "detach alias clone contiguous lift_fresh empty_like t transpose permute unsqueeze squeeze view _unsafe_view "
    "reshape "
    "_reshape_alias expand select slice split split_with_sizes unbind index_select index cat stack "
    "flip roll repeat diagonal unfold gather take movedim as_strided".split()
)


def move(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Applies ``func`` to the components of all tensors of ``args``, which have one dtype."""
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, DTypeTensor)]
    x = tensors[0]
    if any(y.config is not x.config for y in tensors):
        names = ", ".join(dict.fromkeys(y.config.name for y in tensors))
        raise unsupported(func._schema.name, x.config, f"its tensors are of several dtypes ({names})")
    if name in ("cat", "stack") and any(not isinstance(y, DTypeTensor) for y in args[0]):
        raise unsupported(func._schema.name, x.config, "some of the tensors are plain")
    if x.grouped_dim == NO_DIM:
        return whole(func, x, args, kwargs, NO_DIM)
    if name not in GROUPED:
        raise unsupported(func._schema.name, x.config, f"dimension {x.grouped_dim} is in blocks of {x.config.block}")
    return GROUPED[name](func, x, *args[1:], **kwargs) if name not in JOINS else JOINS[name](func, *args, **kwargs)


def whole(func: Any, x: DTypeTensor, args: Sequence[Any], kwargs: dict[str, Any], grouped_dim: int) -> Any:
    """The same call on each component."""
    results = {
        name: func(
            *tree_map_only(DTypeTensor, lambda y: getattr(y, name), args),  # noqa: B023 called at once
            **tree_map_only(DTypeTensor, lambda y: getattr(y, name), kwargs),  # noqa: B023
        )
        for name in x.config.components
    }
    first = next(iter(results.values()))
    if isinstance(first, torch.Tensor):
        return DTypeTensor(x.config, results, grouped_dim)
    return [
        DTypeTensor(x.config, {name: result[k] for name, result in results.items()}, grouped_dim)
        for k in range(len(first))
    ]


def blocks_split(func: Any, x: DTypeTensor, what: str) -> MethodDTypeNotSupportedError:
    return unsupported(
        func._schema.name, x.config, f"{what} would split the blocks of {x.config.block} of dimension {x.grouped_dim}"
    )


def by_blocks(x: DTypeTensor, apply: Callable[[torch.Tensor, int], torch.Tensor], grouped_dim: int) -> DTypeTensor:
    """A tensor of what ``apply`` makes of each component and of how many neighbours one element of it serves."""
    components = {name: apply(getattr(x, name), part.elements) for name, part in x.config.parts.items()}
    return DTypeTensor(x.config, components, grouped_dim)


def same(func: Any, x: DTypeTensor, *args: Any, **kwargs: Any) -> Any:
    return whole(func, x, (x, *args), kwargs, x.grouped_dim)


def permuted(func: Any, x: DTypeTensor, order: Sequence[int]) -> DTypeTensor:
    """``order``: for each dimension of the result, that of ``x``."""
    order = [d % x.dim() for d in order]
    return x.map(lambda component: component.permute(order), order.index(x.grouped_dim))


def transpose(func: Any, x: DTypeTensor, one: int, other: int) -> DTypeTensor:
    order = list(range(x.dim()))
    order[one], order[other] = order[other], order[one]
    return permuted(func, x, order)


def t(func: Any, x: DTypeTensor) -> DTypeTensor:
    return transpose(func, x, 0, 1) if x.dim() == 2 else same(func, x)


def unsqueeze(func: Any, x: DTypeTensor, dim: int) -> DTypeTensor:
    dim %= x.dim() + 1
    return x.map(lambda component: component.unsqueeze(dim), x.grouped_dim + (dim <= x.grouped_dim))


def squeeze(func: Any, x: DTypeTensor, dims: int | Sequence[int] | None = None) -> DTypeTensor:
    """A component may have one element along a dimension where the tensor has more."""
    asked = range(x.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    dims = sorted({d % x.dim() for d in asked if x.shape[d] == 1})
    return x.map(lambda component: component.squeeze(dims), x.grouped_dim - sum(d < x.grouped_dim for d in dims))


def view(func: Any, x: DTypeTensor, size: Sequence[int]) -> DTypeTensor:
    """The grouped dimension stays, or is the last one and its blocks stay together."""
    size = list(torch.empty(x.shape, device="meta").reshape(size).shape)
    dim, old = x.grouped_dim, list(x.shape)
    for new_dim, length in enumerate(size):
        if length == old[dim] and prod(size[:new_dim]) == prod(old[:dim]):
            break
    else:
        new_dim = len(size) - 1
        if dim != x.dim() - 1 or not size or size[-1] % x.config.block:
            raise blocks_split(func, x, f"a view of {tuple(old)} as {tuple(size)}")
    return by_blocks(
        x,
        lambda component, elements: func(component, [*size[:new_dim], size[new_dim] // elements, *size[new_dim + 1 :]]),
        new_dim,
    )


def expand(func: Any, x: DTypeTensor, size: Sequence[int], implicit: bool = False) -> DTypeTensor:
    new_dim = len(size) - x.dim() + x.grouped_dim
    if size[new_dim] not in (-1, x.shape[x.grouped_dim]):
        raise RuntimeError(
            f"The expanded size of the tensor ({size[new_dim]}) must match the existing size "
            f"({x.shape[x.grouped_dim]}) at non-singleton dimension {new_dim}.  Target sizes: {list(size)}.  "
            f"Tensor sizes: {list(x.shape)}"
        )
    size = [*size[:new_dim], -1, *size[new_dim + 1 :]]
    return x.map(lambda component: component.expand(size), new_dim)


def select(func: Any, x: DTypeTensor, dim: int, index: int) -> DTypeTensor:
    dim %= x.dim()
    if dim == x.grouped_dim:
        raise blocks_split(func, x, f"element {index} alone")
    return x.map(lambda component: func(component, dim, index), x.grouped_dim - (dim < x.grouped_dim))


def slice_(
    func: Any, x: DTypeTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> DTypeTensor:
    dim %= x.dim()
    if dim != x.grouped_dim:
        return x.map(lambda component: func(component, dim, start, end, step))
    start, end, step = slice(start, end, step).indices(x.shape[dim])
    block = x.config.block
    if step != 1 or start % block or (end % block and end < x.shape[dim]):
        raise blocks_split(func, x, f"a slice from {start} to {end} by {step}")
    return by_blocks(x, lambda component, elements: func(component, dim, start // elements, end // elements), dim)


def split(func: Any, x: DTypeTensor, size: int, dim: int = 0) -> list[DTypeTensor]:
    length = x.shape[dim]
    if not length:  # one part, of any size
        return [same(torch.ops.aten.alias.default, x)]
    if size < 1:
        raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {length}")
    return [slice_(func_slice, x, dim, at, min(at + size, length)) for at in range(0, length, size)]


def split_with_sizes(func: Any, x: DTypeTensor, sizes: Sequence[int], dim: int = 0) -> list[DTypeTensor]:
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return [slice_(func_slice, x, dim, end - size, end) for size, end in zip(sizes, ends)]


func_slice = torch.ops.aten.slice.Tensor


def unbind(func: Any, x: DTypeTensor, dim: int = 0) -> list[DTypeTensor]:
    return [select(torch.ops.aten.select.int, x, dim, k) for k in range(x.shape[dim])]


def index_select(func: Any, x: DTypeTensor, dim: int, index: torch.Tensor) -> DTypeTensor:
    if dim % x.dim() == x.grouped_dim:
        raise blocks_split(func, x, "single elements")
    return same(func, x, dim, index)


def index(func: Any, x: DTypeTensor, indices: Sequence[torch.Tensor | None]) -> DTypeTensor:
    """Of dimensions before the grouped one, from the first on."""
    used = [d for d, one in enumerate(indices) if one is not None]
    if (
        used != list(range(len(used)))
        or len(used) > x.grouped_dim
        or any(one.dtype == torch.bool for one in indices if one is not None)
    ):
        raise blocks_split(func, x, "this index")
    dims = torch.broadcast_shapes(*[one.shape for one in indices if one is not None])
    return x.map(lambda component: func(component, indices), x.grouped_dim - len(used) + len(dims))


def cat(func: Any, tensors: Sequence[DTypeTensor], dim: int = 0) -> DTypeTensor:
    x = tensors[0]
    if any(y.grouped_dim != x.grouped_dim for y in tensors):
        raise unsupported(func._schema.name, x.config, "its tensors are in blocks along several dimensions")
    return whole(func, x, (list(tensors), dim), {}, x.grouped_dim)


def stack(func: Any, tensors: Sequence[DTypeTensor], dim: int = 0) -> DTypeTensor:
    return cat(torch.ops.aten.cat.default, [unsqueeze(func, x, dim) for x in tensors], dim % (tensors[0].dim() + 1))


def flip(func: Any, x: DTypeTensor, dims: Sequence[int]) -> DTypeTensor:
    if x.grouped_dim in [d % x.dim() for d in dims]:
        raise blocks_split(func, x, "the opposite order")
    return same(func, x, dims)


def roll(func: Any, x: DTypeTensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> DTypeTensor:
    """By whole blocks."""
    grouped = [d % x.dim() == x.grouped_dim for d in dims]
    if not dims or any(shift % x.config.block for shift, is_grouped in zip(shifts, grouped) if is_grouped):
        raise blocks_split(func, x, f"a roll by {list(shifts)}")

    def rolled(component: torch.Tensor, elements: int) -> torch.Tensor:
        return func(component, [s // elements if is_grouped else s for s, is_grouped in zip(shifts, grouped)], dims)

    return by_blocks(x, rolled, x.grouped_dim)


def repeat(func: Any, x: DTypeTensor, repeats: Sequence[int]) -> DTypeTensor:
    return whole(func, x, (x, repeats), {}, x.grouped_dim + len(repeats) - x.dim())


def diagonal(func: Any, x: DTypeTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> DTypeTensor:
    dims = [d % x.dim() for d in (dim1, dim2)]
    if x.grouped_dim in dims:
        raise blocks_split(func, x, "a diagonal")
    return x.map(lambda component: func(component, offset, *dims), x.grouped_dim - sum(d < x.grouped_dim for d in dims))


def unfold(func: Any, x: DTypeTensor, dim: int, size: int, step: int) -> DTypeTensor:
    """The windows of a grouped dimension are of whole blocks."""
    dim %= x.dim()
    if dim != x.grouped_dim:
        return same(func, x, dim, size, step)
    if size % x.config.block or step % x.config.block:
        raise blocks_split(func, x, f"windows of {size} that are {step} apart")
    return by_blocks(x, lambda component, elements: func(component, dim, size // elements, step // elements), x.dim())


def single_elements(func: Any, x: DTypeTensor, *args: Any, **kwargs: Any) -> DTypeTensor:
    raise blocks_split(func, x, "single elements")


Move = Callable[..., Any]
JOINS: dict[str, Move] = {"cat": cat, "stack": stack}
GROUPED: dict[str, Move] = {
    **dict.fromkeys(("detach", "alias", "clone", "contiguous", "lift_fresh", "empty_like"), same),
    "t": t, "transpose": transpose, "permute": permuted, "unsqueeze": unsqueeze, "squeeze": squeeze,
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), view),
    "expand": expand, "select": select, "slice": slice_, "split": split, "split_with_sizes": split_with_sizes,
    "unbind": unbind, "index_select": index_select, "index": index, "flip": flip, "roll": roll, "repeat": repeat,
    "diagonal": diagonal, "unfold": unfold, **dict.fromkeys(("gather", "take", "as_strided"), single_elements),
    **JOINS,
}  # fmt: skip
