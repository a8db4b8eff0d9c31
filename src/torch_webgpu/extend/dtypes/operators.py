"""Operators over tensors of registered dtypes: which way each is computed.

The dtype's own function; or moving elements, which moves components; or load → compute → store, whose kernels fuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from .compute import (
    Rule,
    flattened,
    in_blocks,
    loaded,
    promoted,
    same_blocks,
    store_blocks,
    stored,
    unsupported,
)
from .config import DTypeConfig, Number
from .moves import MOVES, move
from .product import PLAIN, in_place_product, reads_in_place
from .tensor import DTypeTensor, check_components

PRODUCTS = frozenset(
    "mm bmm mv dot addmm baddbmm addmv addbmm addr _int_mm convolution embedding "
    "scaled_dot_product_attention _scaled_dot_product_attention_math".split()
)
READS = frozenset(
    "_softmax _log_softmax softmax log_softmax argmax argmin sort topk cumsum cumprod logcumsumexp std var var_mean "
    "native_layer_norm _fused_rms_norm linalg_vector_norm median kthvalue aminmax histc nonzero _local_scalar_dense "
    "isfinite allclose cdist _cdist_forward _euclidean_dist".split()
)
"""Besides products and what PyTorch tags as a reduction: operators that read numbers, and make plain ones."""
LIKE = frozenset("zeros_like ones_like full_like rand_like randn_like".split())


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``__torch_dispatch__`` answers. It raises for what the dtype does not define, or promote."""
    name = func._schema.name.removeprefix("aten::")
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, DTypeTensor)]
    config = tensors[0].config
    own = config.operators.get(f"{name}.{func._overloadname}") or config.operators.get(name)
    if own is not None:
        return defined(own, func, config, args, kwargs)
    if func._schema.is_mutable:
        return in_place(func, name, args, kwargs)
    if name in CONVERSIONS:
        return CONVERSIONS[name](func, args, kwargs)
    if name in MOVES:
        return return_and_correct_aliasing(func, args, kwargs, move(func, name, args, kwargs))
    if name in LIKE and config.store is not None:
        return filled(func, tensors[0], args, kwargs)
    if not all(x.config.has_numbers for x in tensors):
        raise unsupported(func._schema.name, next(x.config for x in tensors if not x.config.has_numbers))
    if name in PRODUCTS:
        return product(func, args, kwargs)
    if torch.Tag.pointwise in func.tags:
        return pointwise(func, args, kwargs)
    if torch.Tag.reduction in func.tags or name in READS:
        return func(*tree_map_only(DTypeTensor, loaded, args), **tree_map_only(DTypeTensor, loaded, kwargs))
    raise unsupported(func._schema.name, config)


def defined(
    own: Callable[..., Any], func: Any, config: DTypeConfig, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The dtype's own function of an operator. What is a tensor of another dtype is stored as this one first, if the
    rules of promotion say so.
    """
    like = next(x for x in tree_flatten((args, kwargs))[0] if isinstance(x, DTypeTensor))

    def operand(x: Any, is_tensor: bool) -> Any:
        if isinstance(x, DTypeTensor) or not (isinstance(x, torch.Tensor) or (is_tensor and isinstance(x, Number))):
            return x
        empty = config_operand(config)
        if promoted(func._schema.name, [empty, x]) is not config or config.store is None:
            return x
        if isinstance(x, torch.Tensor):
            return stored(config, x.to(config.dtype))
        # In the shape of the others, so that a kernel over these computes it.
        return stored(config, torch.full(like.shape, x, dtype=config.dtype, device=like.device), like.grouped_dim)

    kinds = ["Tensor" in str(argument.type) and "[]" not in str(argument.type) for argument in func._schema.arguments]
    named = {argument.name: kind for argument, kind in zip(func._schema.arguments, kinds)}
    result = own(
        *[operand(x, kind) for x, kind in zip(args, kinds)],
        **{key: operand(x, named[key]) for key, x in kwargs.items()},
    )
    return made(config, result)


def config_operand(config: DTypeConfig) -> DTypeTensor:
    """A tensor of the dtype without elements, which stands for it."""
    shape = (0,) if config.block > 1 else ()
    components = {name: torch.empty(shape, dtype=one.dtype, device="meta") for name, one in config.parts.items()}
    return DTypeTensor(config, components)


def made(config: DTypeConfig, result: Any) -> Any:
    """The results of a function that returns components, plain tensors, or several of these."""
    if isinstance(result, Mapping):
        check_components(config, result)
        return DTypeTensor(config, result)
    if isinstance(result, (tuple, list)):
        return type(result)([made(config, one) for one in result])
    return result


def pointwise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Load, compute, store; in blocks, so that all of it has one shape, and fuses."""
    flat, spec = tree_flatten((args, kwargs))
    rule = promoted(func._schema.name, flat)
    own = [x for x in flat if isinstance(x, DTypeTensor)]
    blocks = same_blocks(flat)
    if blocks is None:
        operands = [loaded(x) if isinstance(x, DTypeTensor) else x for x in flat]
    else:
        operands = [in_blocks(x, own[0].shape[-1], blocks) for x in flat]
    new_args, new_kwargs = tree_unflatten(operands, spec)
    return tree_map_only(
        torch.Tensor, lambda numbers: result_of(numbers, rule, own, blocks), func(*new_args, **new_kwargs)
    )


def result_of(
    numbers: torch.Tensor, rule: Rule, operands: Sequence[DTypeTensor], blocks: DTypeConfig | None
) -> torch.Tensor:
    """What ``numbers``, which come in ``blocks`` if that is a dtype, are kept as. What is no number stays plain."""
    is_number = numbers.dtype == operands[0].dtype
    if blocks is not None:
        if isinstance(rule, DTypeConfig) and is_number and rule.levels == blocks.levels:
            return store_blocks(rule, numbers, numbers.dim() - 1 - len(rule.block_shape))
        numbers = flattened(blocks, numbers)
    if not is_number:
        return numbers
    if isinstance(rule, torch.dtype):
        return numbers.to(rule)
    last = numbers.dim() - 1
    dims = {x.grouped_dim if x.dim() == numbers.dim() and x.config.block > 1 else last for x in operands}
    return stored(rule, numbers, dims.pop() if len(dims) == 1 else last)


def product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of the numbers, as plain tensors of the promoted dtype."""
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor) and is_number(x)]
    own = next(x for x in tensors if isinstance(x, DTypeTensor))
    plain = [x for x in tensors if not isinstance(x, DTypeTensor)]
    rule = promoted(func._schema.name, [own, *plain]) if plain else own.dtype
    dtype = rule if isinstance(rule, torch.dtype) else rule.dtype

    if (sum_of := fused_product(func, args, kwargs, dtype)) is not None:
        return sum_of

    def operand(x: torch.Tensor) -> torch.Tensor:
        return (loaded(x) if isinstance(x, DTypeTensor) else x).to(dtype) if is_number(x) else x

    return func(*tree_map_only(torch.Tensor, operand, args), **tree_map_only(torch.Tensor, operand, kwargs))


def fused_product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> torch.Tensor | None:
    """A product that reads its operand in place, if it is one: ``mm``, or ``addmm`` without factors."""
    if func is torch.ops.aten.mm.default:
        a, b = args
        return in_place_product(a.to(dtype), b) if reads_in_place(a, b) and dtype in PLAIN else None
    if func is torch.ops.aten.addmm.default and not kwargs:
        c, a, b = args
        if reads_in_place(a, b) and dtype in PLAIN and not isinstance(c, DTypeTensor):
            return in_place_product(a.to(dtype), b) + c.to(dtype)
    return None


def is_number(x: torch.Tensor) -> bool:
    """Whether it is an operand, and not an index."""
    return x.is_floating_point() or x.is_complex() or isinstance(x, DTypeTensor)


def in_place(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the operator without the underscore returns, copied into the components."""
    target = args[0]
    if name == "copy_":
        return copy(target, args[1])
    if not isinstance(target, DTypeTensor):
        return func(*tree_map_only(DTypeTensor, loaded, args), **tree_map_only(DTypeTensor, loaded, kwargs))
    if name in ("fill_", "zero_"):
        value = args[1] if name == "fill_" else 0
        numbers = torch.empty(target.shape, dtype=target.dtype, device=target.device).fill_(value)
        return copy(target, numbers)
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    functional = getattr(packet, func._overloadname, None)
    if not name.endswith("_") or functional is None:
        raise unsupported(func._schema.name, target.config, "tensors of registered dtypes are no out= tensors")
    result = functional(*args, **kwargs)
    if result.shape != target.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(result.shape)}"
        )
    return copy(target, result)


def copy(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """``target.copy_(source)``, either of a registered dtype."""
    if not isinstance(target, DTypeTensor):
        return target.copy_(loaded(source) if isinstance(source, DTypeTensor) else source)
    same = isinstance(source, DTypeTensor) and source.config is target.config and source.shape == target.shape
    if not same or source.grouped_dim != target.grouped_dim:  # type: ignore[attr-defined]
        numbers = loaded(source) if isinstance(source, DTypeTensor) else source
        numbers = numbers.to(target.device, target.dtype).expand(target.shape)
        source = stored(target.config, numbers, target.grouped_dim)
    for name, component in target.components.items():
        component.copy_(getattr(source, name))
    return target


def to_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """``x.to(device)`` moves the components, ``x.to(dtype)`` makes numbers of another dtype."""
    (x,) = args
    dtype = kwargs.pop("dtype", None)
    if dtype is not None and dtype != x.dtype:
        return func(loaded(x), dtype=dtype, **kwargs)
    kwargs.pop("memory_format", None)
    return x.map(lambda component: func(component, **kwargs))


def filled(func: Any, x: DTypeTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """``zeros_like`` and the like."""
    numbers = func(torch.empty(x.shape, dtype=x.dtype, device=x.device), *args[1:], **kwargs)
    return stored(x.config, numbers, x.grouped_dim) if numbers.dtype == x.dtype else numbers


def equal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``torch.equal``: of numbers where the dtype has them, otherwise of components."""
    a, b = args
    if a.shape != b.shape:
        return False
    both = isinstance(a, DTypeTensor) and isinstance(b, DTypeTensor)
    if both and a.config is b.config and not a.config.has_numbers:
        return all(torch.equal(getattr(a, name), getattr(b, name)) for name in a.config.components)
    return torch.equal(*[loaded(x) if isinstance(x, DTypeTensor) else x for x in (a, b)])


def dequantize(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return loaded(args[0])


def never_shallow(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a parameter may take another's data without being replaced, which ``nn.Module.to`` asks."""
    return False


CONVERSIONS: Mapping[str, Callable[[Any, Sequence[Any], dict[str, Any]], Any]] = {
    "_to_copy": to_copy,  # type: ignore[dict-item]
    "dequantize": dequantize,  # type: ignore[dict-item]
    "equal": equal,  # type: ignore[dict-item]
    "_has_compatible_shallow_copy_type": never_shallow,  # type: ignore[dict-item]
}


DTypeTensor.run_operator = staticmethod(run)
