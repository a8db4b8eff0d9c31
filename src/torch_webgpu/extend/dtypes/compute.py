"""Numbers of a dtype's components and back, and which dtype a result has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from inspect import signature
from typing import Any

import torch

from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.errors import did_you_mean
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

from .config import DTypeConfig, Number
from .errors import DTypeComponentsMismatchError, DTypePromotionError, MethodDTypeNotSupportedError
from .number import numbers_of, uses_position
from .table import find
from .tensor import NO_DIM, DTypeTensor, check_components

Rule = DTypeConfig | torch.dtype


def loaded(x: DTypeTensor) -> torch.Tensor:
    """The numbers that ``x`` holds, as a plain tensor."""
    if x.grouped_dim == NO_DIM:
        return load_blocks(x)
    return flattened(x.config, load_blocks(x)).movedim(-1, x.grouped_dim)


def load_blocks(x: DTypeTensor) -> torch.Tensor:
    """The numbers that ``x`` holds, in blocks of the grouped dimension, which come last."""
    config = x.config
    if not config.has_numbers:
        raise MethodDTypeNotSupportedError(
            f"{config.name} does not say which numbers its elements are (DTypeConfig(wgsl=…)); its components are "
            f"{', '.join(config.components)}"
        )
    parts, shape = x.components, list(x.shape)
    if x.grouped_dim != NO_DIM:
        blocks = shape.pop(x.grouped_dim) // config.block
        shape += [blocks, *config.block_shape]
        for name, part in config.parts.items():
            own = (blocks, *config.component_shape(part.elements))
            parts[name] = parts[name].movedim(x.grouped_dim, -1).unflatten(-1, own).expand(shape)
    numbers = numbers_in_blocks(config, parts, shape)
    if list(numbers.shape) != shape or numbers.dtype != config.dtype:
        raise DTypeComponentsMismatchError(
            f"load of {config.name} returned {numbers.dtype} of shape {tuple(numbers.shape)}, and has to return "
            f"{config.dtype} of shape {tuple(shape)}"
        )
    return numbers


def numbers_in_blocks(config: DTypeConfig, parts: dict[str, torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """What ``load`` or ``wgsl`` makes of components that have the numbers' shape."""
    first = next(iter(parts.values()))
    if config.load is not None:
        takes = takes_positions(config.load)
        return config.load(**parts, i=positions(config, shape, first)) if takes else config.load(**parts)
    assert config.number is not None
    position = positions(config, shape, first) if uses_position(config.wgsl, config.parts) else None
    return numbers_of(config.number, parts, position, config.dtype)


def stored(config: DTypeConfig, numbers: torch.Tensor, grouped_dim: int | None = None) -> DTypeTensor:
    """The tensor of ``config`` that is nearest to ``numbers``; grouped along the last dimension by default."""
    if config.block == 1:
        return store_blocks(config, numbers)
    if not numbers.dim():
        raise DTypeComponentsMismatchError(
            f"{config.name} has blocks of {config.block} elements: a number alone is none"
        )
    dim = numbers.dim() - 1 if grouped_dim is None else grouped_dim
    size = numbers.shape[dim]
    if size % config.block:
        raise DTypeComponentsMismatchError(
            f"{config.name} has blocks of {config.block} elements, and dimension {dim} of shape "
            f"{tuple(numbers.shape)} is "
            "not a multiple of that: pad it first"
        )
    blocks = numbers.movedim(dim, -1).unflatten(-1, (size // config.block, *config.block_shape))
    return store_blocks(config, blocks, dim)


def store_blocks(config: DTypeConfig, blocks: torch.Tensor, grouped_dim: int = NO_DIM) -> DTypeTensor:
    """As :func:`stored`, of what :func:`load_blocks` returns."""
    if config.store is None:
        raise MethodDTypeNotSupportedError(f"{config.name} does not say how numbers are stored (DTypeConfig(store=…))")
    if takes_positions(config.store):
        components = dict(config.store(blocks, i=positions(config, list(blocks.shape), blocks)))
    else:
        components = dict(config.store(blocks))
    if config.block > 1:
        components = {name: flattened(config, one).movedim(-1, grouped_dim) for name, one in components.items()}
    check_components(config, components, grouped_dim if config.block > 1 else None)
    return DTypeTensor(config, components, grouped_dim)


def flattened(config: DTypeConfig, blocks: torch.Tensor) -> torch.Tensor:
    """Blocks, and the dimensions of each, as one dimension."""
    return blocks.flatten(-1 - len(config.block_shape))


@cache
def takes_positions(function: Callable[..., Any]) -> bool:
    return "i" in signature(function).parameters


def positions(config: DTypeConfig, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """The position in its block of each number of a tensor in blocks. Where a kernel computes the numbers, it computes
    the positions as well: they have the numbers' shape there, and are never stored.
    """
    if type(like) is torch.Tensor and like.device.type == "webgpu":
        result = torch.empty(shape, dtype=torch.int32, device=like.device)
        record_pointwise("position", [], [result], position, (len(shape), config.block_shape))
        return result
    return torch.arange(config.block, dtype=torch.int32, device=like.device).view(config.block_shape or (1,))


def position(rank: int, block_shape: tuple[int, ...]) -> Expr:
    """Of the row-major elements of a block, whose dimensions are the last of ``rank``."""
    result = ops.constant(0, "i32")
    for d, size in enumerate(block_shape, rank - len(block_shape)):
        result = result * size + ops.index(d)
    return result


def promoted(name: str, operands: Iterable[Any]) -> Rule:
    """The dtype of what operator ``name`` makes of ``operands``, one at least of a registered dtype.

    DTypePromotionError where no rule of the dtypes says so.
    """
    operands = list(operands)
    configs = list(dict.fromkeys(x.config for x in operands if isinstance(x, DTypeTensor)))
    result: Rule = configs[0]
    for config in configs[1:]:
        result = meeting(name, result, config)
    count = sum(isinstance(x, DTypeTensor) for x in operands)
    if count > 1 and len(configs) == 1 and configs[0].name in configs[0].promote:
        result = named(configs[0].promote[configs[0].name])
    for x in operands:
        if isinstance(x, torch.Tensor) and not isinstance(x, DTypeTensor):
            result = with_plain(name, result, x)
        elif isinstance(x, Number) and isinstance(result, DTypeConfig) and type(x) in result.promote:
            result = named(result.promote[type(x)])
    return result


def meeting(name: str, one: Rule, other: DTypeConfig) -> Rule:
    """What becomes of two dtypes."""
    if isinstance(one, torch.dtype):
        return one if other.dtype == one else meeting_plain(name, other, one)
    if other.name in one.promote:
        return named(one.promote[other.name])
    if one.name in other.promote:
        return named(other.promote[one.name])
    raise DTypePromotionError(
        f"{name}: {one.name} and {other.name} have no common dtype: neither has a rule for the other in "
        f"DTypeConfig(promote=…). Convert one of them, as with x.dequantize()"
    )


def with_plain(name: str, result: Rule, x: torch.Tensor) -> Rule:
    if isinstance(result, torch.dtype):
        return torch.promote_types(result, x.dtype) if x.dim() else result
    if x.dtype not in result.promote and (not x.dim() or x.dtype == torch.bool):
        return result  # as of a number, or of a condition
    return meeting_plain(name, result, x.dtype)


def meeting_plain(name: str, config: DTypeConfig, dtype: torch.dtype) -> Rule:
    if dtype in config.promote:
        return named(config.promote[dtype])
    rules = [str(key) for key in config.promote if isinstance(key, torch.dtype)]
    known = f"it has rules for {', '.join(rules)}" if rules else "it has none"
    raise DTypePromotionError(
        f"{name}: {config.name} and {dtype} have no common dtype: DTypeConfig(promote=…) of {config.name} has no "
        "rule for "
        f"{dtype} ({known}). Convert one of them, as with x.dequantize()"
    )


def named(rule: str | torch.dtype) -> Rule:
    return rule if isinstance(rule, torch.dtype) else find(rule)


def unsupported(name: str, config: DTypeConfig, why: str = "") -> MethodDTypeNotSupportedError:
    """The error for an operator that a dtype does not define."""
    defined = (
        f"its operators are {', '.join(config.operators)}" if config.operators else "it has no operators of its own"
    )
    near = did_you_mean(name.removeprefix("aten::"), config.operators)
    convert = "; x.dequantize() is a plain tensor" if config.has_numbers else ""
    return MethodDTypeNotSupportedError(
        f"{name} is not defined for {config.name}{near}: {why or defined}{convert}. DTypeConfig(operators=…) can "
        "define it"
    )


def same_blocks(operands: Sequence[Any]) -> DTypeConfig | None:
    """A dtype in whose blocks the numbers of all operands can be computed with at once, if there is one.

    They are grouped along the last dimension, which has one size in all tensors that do not broadcast along it.
    """
    tensors = [x for x in operands if isinstance(x, torch.Tensor) and x.dim()]
    own = [x for x in tensors if isinstance(x, DTypeTensor)]
    if not own or own[0].config.block == 1:
        return None
    config, size = own[0].config, own[0].shape[-1]
    if any(x.config.block_shape != config.block_shape or x.config.block != config.block for x in own):
        return None
    if any(x.grouped_dim != x.dim() - 1 or x.shape[-1] != size for x in own):
        return None
    return None if any(x.shape[-1] not in (1, size) for x in tensors) else config


def in_blocks(x: Any, size: int, config: DTypeConfig) -> Any:
    """An operand in the blocks of a dtype, along a last dimension of ``size``."""
    if isinstance(x, DTypeTensor):
        return load_blocks(x)
    if not isinstance(x, torch.Tensor) or not x.dim():
        return x
    ones = [1] * len(config.block_shape)
    return x.unflatten(-1, (1, *ones) if x.shape[-1] == 1 else (size // config.block, *config.block_shape))
