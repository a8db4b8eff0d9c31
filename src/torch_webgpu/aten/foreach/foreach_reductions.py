"""``_foreach_norm``, ``_foreach_powsum``, ``_foreach_max``: each tensor of a list to one number, in a few dispatches.

Anything unusual (complex and 64-bit numbers, lists of several dtypes, orders that need every element) goes through
PyTorch's own loop over the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf, isfinite
from typing import Any

import torch

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.torch_abi import DEVICE_TYPE, aten, impl, infer, per_tensor
from torch_webgpu.aten.reductions.reduce import VectorNorm
from torch_webgpu.caches import memoized
from torch_webgpu.compiler.lower.multi_tensor_reduction import lower_collect, lower_list_reduction
from torch_webgpu.engine.lists import make_lists
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.ir.values import check_function, check_values
from torch_webgpu.layout import is_dense
from torch_webgpu.wgsl.expr import split_scalar
from torch_webgpu.wgsl.multi_tensor_reduction_kernel import ListReduction

from .foreach_arguments import LARGEST_NUMEL, addresses_of, geometry_of, largest_bytes, remember

CACHE_SIZE = 1000
NUMBERS = (int, float)
COLLECTED = 8
"""From so many numbers on, collecting them saves dispatches."""

_numel = torch.Tensor.numel


def record_list_reduction(
    tensors: Sequence[torch.Tensor],
    dtype: torch.dtype,
    reduction: Callable[..., ListReduction],
    arguments: tuple[Hashable, ...] = (),
    scalars: Sequence[float] = (),
    may_be_empty: bool = False,
) -> Any:
    """Records ``reduction(dtype of the tensors, dtype, *arguments)`` of each tensor to a new 0-dim one of ``dtype``;
    NotImplemented where the list is unusual.
    """
    numels = tuple(map(_numel, tensors))
    first = tensors[0]
    if (not all(numels) and not may_be_empty) or max(numels) >= LARGEST_NUMEL:
        return NotImplemented
    inputs = flat_inputs(tensors)
    if inputs is None:
        return NotImplemented
    eng, device = engine(), first.device.index
    op = operation_of(reduction, arguments, first.dtype, dtype, numels, len(scalars))
    numbers = geometry_of(((),) * len(tensors), ((),) * len(tensors))
    assert numbers is not None
    results, made = make_lists(eng, numbers, dtype, device)
    remember(addresses_of(made), made)
    eng.push(op, [*inputs, *results], tuple([part for v in scalars for part in split_scalar(v, "f")]))
    return results


@memoized("operations that reduce lists", CACHE_SIZE)
def operation_of(
    reduction: Callable[..., ListReduction],
    arguments: tuple[Hashable, ...],
    source: torch.dtype,
    dtype: torch.dtype,
    numels: Sequence[int],
    scalars: int,
) -> Operation:
    """The operation that reduces tensors of so many elements each."""
    body = reduction(dtypes.of(source).name, dtypes.of(dtype).name, *arguments)
    check_function(body.name, reduction)
    check_values(body.name, arguments)
    inputs = tuple([Spec(body.dtype, (n,), (1,), False) for n in numels if n])
    outputs = (Spec(body.out, (), ()),) * len(numels)
    empty = frozenset([k for k, n in enumerate(numels) if not n])
    kernel = Extern(lower_list_reduction, (body, empty))
    return Operation(body.name, (*inputs, *outputs), len(outputs), kernel, ("f",) * scalars)


def flat_inputs(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """The tensors that have elements, dense each; None for a list that the kernels do not take."""
    first = tensors[0]
    row = dtypes.BY_TORCH.get(first.dtype)
    if first.device.type != DEVICE_TYPE or row is None or row.itemsize > 4:
        return None
    if any(t.dtype != first.dtype or t.device != first.device for t in tensors):
        return None
    largest = largest_bytes(first.device.index)
    dense = [t if t.is_contiguous() or is_dense(t.shape, t.stride()) else t.contiguous() for t in tensors if t.numel()]
    if any(t.untyped_storage().nbytes() > largest for t in dense):
        return None
    return dense


# The operators -------------------------------------------------------------------------------------------------------


def norm(self: Sequence[torch.Tensor], ord: float = 2, dtype: torch.dtype | None = None) -> Any:
    if not self or not self[0].is_floating_point() or type(ord) not in NUMBERS:
        return NotImplemented
    norm_rule = VectorNorm.of(ord)
    # The dtype of the results, and what is wrong with the arguments, in PyTorch's words.
    (_, _, out), *_ = infer(aten.linalg_vector_norm.default, self[0], ord, dtype=dtype)
    if out.itemsize > 4:
        return NotImplemented
    arguments = ("_foreach_norm", norm_rule.order, norm_rule.combine, True)
    return record_list_reduction(self, out, power_sum, arguments, norm_rule.scalars, ord >= 0 and isfinite(ord))


def powsum(self: Sequence[torch.Tensor], ord: float = 2, dtype: torch.dtype | None = None) -> Any:
    """What the norm is the root of."""
    if not self or not self[0].is_floating_point() or type(ord) not in NUMBERS or not 0 < ord < inf:
        return NotImplemented
    out = dtype or self[0].dtype
    if not out.is_floating_point or out.itemsize > 4:
        return NotImplemented
    found = VectorNorm.of(ord)
    arguments = ("_foreach_powsum", found.order, found.combine, False)
    return record_list_reduction(self, out, power_sum, arguments, found.scalars, True)


def power_sum(dtype: str, out: str, name: str, order: float | None, combine: str, root: bool) -> ListReduction:
    """The norm, or what it is the ``root`` of."""
    norm, x = VectorNorm(order, combine), Expr("acc", ("x",), "f32")
    result = ops.to_dtype(norm.result(x) if root else x, out)
    return ListReduction(name, dtype, "f32", combine, norm.contribution(abs(x)), result, out)


def maximum(self: Sequence[torch.Tensor]) -> Any:
    if not self or self[0].dtype == torch.bool:
        return NotImplemented
    return record_list_reduction(self, self[0].dtype, largest_element)


def largest_element(dtype: str, out: str) -> ListReduction:
    state = {"f": "f32", "i": "i32", "u": "u32"}[dtypes.BY_NAME[dtype].kind]
    x = Expr("acc", ("x",), state)
    return ListReduction("_foreach_max", dtype, state, "max", x, ops.to_dtype(x, out), out)


def collect(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A 1-D tensor of the values of 0-dim tensors of one dtype; None where they are few or unusual."""
    first = tensors[0]
    if len(tensors) < COLLECTED or any(t.dim() or t.dtype != first.dtype for t in tensors):
        return None
    inputs = flat_inputs(tensors)
    if inputs is None:
        return None
    out = torch.empty(len(tensors), dtype=first.dtype, device=first.device)
    op = collection(dtypes.of(first.dtype).name, len(tensors))
    engine().push(op, [*inputs, out])
    return out


@memoized("operations that collect numbers", CACHE_SIZE)
def collection(dtype: str, count: int) -> Operation:
    specs = (*(Spec(dtype, (1,), (1,), False),) * count, Spec(dtype, (count,), (1,)))
    return Operation("stack", specs, 1, Extern(lower_collect))


def register() -> None:
    for name, kernel in (("_foreach_norm", norm), ("_foreach_powsum", powsum), ("_foreach_max", maximum)):
        packet = getattr(aten, name, None)
        for overload_name in packet.overloads() if packet is not None else ():
            overload = getattr(packet, overload_name)
            if not overload_name.endswith("out"):
                impl(overload, _or_loop(overload, kernel))


def _or_loop(overload: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        return per_tensor(overload, *args, **kwargs) if result is NotImplemented else result

    return run
