"""``torch._foreach_*``: operators over whole lists, recorded as one operation each.

What is computed per element, and in which dtypes, is asked of the kernel of the operator that ``_foreach_x`` applies to
each tensor. Lists that :mod:`.foreach_arguments` does not take go through PyTorch's own loop over their tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.autograd.graph import increment_version

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.recipes import Recipes
from torch_webgpu.aten.dispatch.register_pointwise import POINTWISE, PointwiseKernel, ScalarSlot, number_for
from torch_webgpu.aten.dispatch.scalars import check_fits
from torch_webgpu.aten.dispatch.torch_abi import (
    DEVICE_TYPE,
    Meta,
    aten,
    functional_of,
    impl,
    infer,
    overloads,
    per_tensor,
)
from torch_webgpu.engine.lists import make_lists
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.recorded_lists import ListGeometry, RecordedList
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.operation import ListLayout, Number
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import contiguous_strides
from torch_webgpu.wgsl.expr import split_scalar
from torch_webgpu.wgsl.multi_tensor_kernel import PARAM_TYPES

from .foreach_arguments import ListColumn, ListExpression, addresses_of, find, find_single, layout_in, remember

# Which overload does for each tensor what an overload of ``_foreach_x`` does for all.
BINARY = {"List": "Tensor", "Scalar": "Tensor", "ScalarList": "Tensor", "Tensor": "Tensor"}
BOUND = {"List": "Tensor", "Scalar": "default", "ScalarList": "default"}
FUSED_MULTIPLY = {"Scalar": "default", "ScalarList": "default", "Tensor": "default"}
LERP = {"List": "Tensor", "Scalar": "Scalar", "ScalarList": "Scalar"}
POWER = {"List": "Tensor_Tensor", "Scalar": "Tensor_Scalar", "ScalarList": "Tensor_Scalar", "ScalarAndTensor": "Scalar"}
POWER_ = {"List": "Tensor", "Scalar": "Scalar", "ScalarList": "Scalar"}
PER_TENSOR = (
    {name: (name, BINARY) for name in ("add", "sub", "mul", "div")}
    | {name: (name, BOUND) for name in ("clamp_min", "clamp_max")}
    | {"maximum": ("clamp_min", BOUND), "minimum": ("clamp_max", BOUND)}
    | {name: (name, FUSED_MULTIPLY) for name in ("addcmul", "addcdiv")}
    | {"lerp": ("lerp", LERP), "pow": ("pow", POWER), "pow_": ("pow_", POWER_)}
)
UNARY = {"default": "default"}


@dataclass(frozen=True)
class ListRecipe:
    """What a call over lists records: what is computed, its lists' arguments, where numbers come from."""

    expression: ListExpression
    lists: tuple[int, ...]
    numbers: tuple[ScalarSlot, ...]
    result: torch.dtype | None  # of new tensors


class Lists:
    """Lists of tensors as a kernel's arguments and results."""

    def find(self, tensors: Sequence[torch.Tensor]) -> RecordedList | None:
        """The tensor list of an argument; None if the list path does not take it."""
        return find(tensors)

    def result(self, geometry: ListGeometry, dtype: torch.dtype, device: int) -> tuple[Any, RecordedList]:
        """A new list."""
        tensors, made = make_lists(engine(), geometry, dtype, device)
        remember(addresses_of(made), made)
        return tensors, made

    def tensors(self, value: Any) -> Any:
        """An argument, as the tensors or whatever it is."""
        return value

    def written(self, tensors: Any) -> None:
        increment_version(tensors)  # no kernel above ours does


LISTS = Lists()


class ListKernel:
    """The kernel of one overload of a ``_foreach_`` operator; ``kernel`` is that of the per-tensor operator."""

    def __init__(self, overload: OpOverload, kernel: PointwiseKernel) -> None:
        self.overload = overload
        self.kernel = kernel
        self.names = [a.name for a in overload._schema.arguments]
        self.defaults = [a.default_value for a in overload._schema.arguments]
        self.types = [str(a.type) for a in overload._schema.arguments]
        self.inplace = not overload._schema.returns
        self.in_code = kernel.rule.in_code
        self.recipes: Recipes[ListRecipe | str] = Recipes()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = [*args, *(kwargs.get(n, d) for n, d in zip(self.names[len(args) :], self.defaults[len(args) :]))]
        result = self.record(values)
        return per_tensor(self.overload, *args, **kwargs) if result is NotImplemented else result

    def record(self, values: list[Any], lists: Lists = LISTS) -> Any:
        """Records the operation; NotImplemented for arguments that the list path does not take."""
        tensor_lists, domain = self.tensor_lists(values, lists)
        if domain is None:
            return NotImplemented
        key = self.key(values, tensor_lists, domain)
        if key is None:
            return NotImplemented
        recipe = self.recipes.get(key)
        if recipe is None:
            recipe = (
                self.recipe([lists.tensors(v) for v in values], tensor_lists, domain) or "PyTorch's own loop does it"
            )
            self.recipes.keep(key, recipe)
        if isinstance(recipe, str):
            return NotImplemented
        numbers = tuple([number for slot in recipe.numbers for number in numbers_for(values[slot.argument], slot)])
        used: list[Any] = [tensor_lists[k] for k in recipe.lists]
        if recipe.result is None:
            if not recipe.expression.record(domain, used, numbers):
                return NotImplemented
            lists.written(values[0])
            return None
        result, made = lists.result(domain, recipe.result, used[0].device)
        return result if recipe.expression.record(domain, [*used, made], numbers) else NotImplemented

    def tensor_lists(self, values: list[Any], lists: Lists) -> tuple[list[RecordedList | None], ListGeometry | None]:
        """The tensor list behind each argument, and the shapes of the results; no shapes where something is unusual.

        A tensor that all tuples share is a tensor list of one; a CPU tensor of numbers becomes a list of them.
        """
        tensor_lists: list[RecordedList | None] = [None] * len(values)
        for k, (kind, value) in enumerate(zip(self.types, values)):
            if kind == "List[Tensor]":
                if len(value):
                    tensor_lists[k] = (
                        same(values, tensor_lists, k) or lists.find(value) or (find_single(value) if k else None)
                    )
                if tensor_lists[k] is None:
                    return tensor_lists, None
            elif kind == "Tensor" and not self.take_tensor(k, values, tensor_lists):
                return tensor_lists, None
        present = [b for b in tensor_lists if b is not None]
        domain = next((b.geometry for b in present if not b.geometry.is_numbers), present[0].geometry)
        if self.inplace and present[0].geometry is not domain:
            return tensor_lists, None
        # Whose strides of dimensions of one element the results have is PyTorch's matter.
        if not self.inplace and any(b.geometry is not domain and not b.geometry.is_numbers for b in present):
            return tensor_lists, None
        if any(layout_in(domain, b.geometry) is None or b.device != present[0].device for b in present):
            return tensor_lists, None
        if not domain.is_numbers and not all(domain.shapes) and len({b.dtype for b in present}) > 1:
            return tensor_lists, None  # type promotion would differ from tuple to tuple
        return tensor_lists, domain

    def take_tensor(self, k: int, values: list[Any], tensor_lists: list[RecordedList | None]) -> bool:
        value = values[k]
        if self.names[k] == "scalars":
            if value.device.type != "cpu" or value.dim() != 1:
                return False
            values[k] = value.tolist()
        elif value.dim() or value.device.type not in ("cpu", DEVICE_TYPE):
            return False
        elif value.device.type == DEVICE_TYPE:
            tensor_lists[k] = find([value])
            return tensor_lists[k] is not None
        return True

    def key(self, values: list[Any], tensor_lists: Sequence[RecordedList | None], domain: ListGeometry) -> Any:
        """All that decides the code; None for a list of numbers that cannot be parameters."""
        key: list[Any] = [None if is_contiguous(domain) else domain.id]
        for k, (value, tensor_list) in enumerate(zip(values, tensor_lists)):
            if tensor_list is not None:
                key.append((layout_in(domain, tensor_list.geometry), tensor_list.dtype))
            elif isinstance(value, list):
                classes = set(map(type, value))
                if len(value) != len(domain.numels) or len(classes) != 1:
                    return None
                if self.in_code is not None and any(map(self.in_code, value)):
                    return None
                key.append(classes.pop())
                if key[-1] not in (int, float):
                    return None
            else:
                key.append(self.kernel.key_of(self.kernel.parameters[k], value, []))
        return tuple(key)

    def recipe(
        self, values: list[Any], tensor_lists: Sequence[RecordedList | None], domain: ListGeometry
    ) -> ListRecipe | None:
        """Asks the per-tensor kernel about the first tuple; None where it does not compute it itself."""
        samples = [self.first_of(v, b is None) for v, b in zip(values, tensor_lists)]
        try:
            kernel_values = self.kernel.bind(tuple(samples), {})
            computation = self.kernel.compute(kernel_values)
            if isinstance(computation, str) or len(computation.body.roots) != 1:
                return None
            if not self.inplace and not self.keeps_strides(values, samples, domain):
                return None
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return None  # PyTorch's own loop raises it with the right tensor
        return operation(
            str(self.overload), computation.body.roots[0], computation.operands, computation.scalars, tensor_lists,
            [None if b is None else layout_in(domain, b.geometry) for b in tensor_lists],
            [isinstance(v, list) for v in values],
            None if self.inplace else computation.outputs[0],
        )  # fmt: skip

    def first_of(self, value: Any, is_number: bool) -> Any:
        """An argument of the per-tensor operator. A number that is no default and not special stands for a list."""
        if not isinstance(value, list):
            return value
        return value[0].__class__(2) if is_number and self.in_code is None else value[0]

    def keeps_strides(self, values: list[Any], samples: list[Any], domain: ListGeometry) -> bool:
        """Whether each result has the strides of its operands."""
        if is_contiguous(domain):
            return True
        functional = functional_of(self.kernel.overload)
        assert functional is not None
        for k, strides in enumerate(domain.strides):
            own = [
                v[k] if isinstance(v, list) and isinstance(v[0], torch.Tensor) else s for v, s in zip(values, samples)
            ]
            own = self.kernel.bind(tuple(own), {})
            [(_, natural, _)] = infer(functional, *self.kernel.positional(own), **self.kernel.keywords(own))
            if natural != strides:
                return False
        return True


class StoreKernel(ListKernel):
    """The kernel of ``_foreach_zero_``, ``_foreach_copy_`` and ``_foreach_clone``, which compute nothing."""

    def __init__(self, overload: OpOverload) -> None:
        super().__init__(overload, POINTWISE[aten.neg_.default])  # asked for nothing

    def key(self, values: list[Any], tensor_lists: Sequence[RecordedList | None], domain: ListGeometry) -> Any:
        if not self.inplace and values[1] not in (None, torch.preserve_format):
            return None
        return tuple([(layout_in(domain, b.geometry), b.dtype) for b in tensor_lists if b is not None])

    def recipe(
        self, values: list[Any], tensor_lists: Sequence[RecordedList | None], domain: ListGeometry
    ) -> ListRecipe | None:
        lists = tuple([k for k, b in enumerate(tensor_lists) if b is not None])
        names = [dtypes.of(b.dtype).name for b in tensor_lists if b is not None]
        layouts = [None if b is None else layout_in(domain, b.geometry) for b in tensor_lists]
        if self.inplace:
            root = ops.load(1, names[1]) if len(lists) > 1 else ops.constant(0, names[0])
            return operation(str(self.overload), root, lists, (), tensor_lists, layouts, [], None)
        result = (domain.shapes[0], domain.strides[0], values[0][0].dtype)
        return operation(str(self.overload), ops.load(0, names[0]), lists, (), tensor_lists, layouts, [], result)


def same(values: Sequence[Any], tensor_lists: Sequence[RecordedList | None], k: int) -> RecordedList | None:
    """The tensor list of the argument before ``k``, if both are the same tensors (``addcmul(x, g, g)``)."""
    one, other = values[k - 1], values[k]
    if not k or tensor_lists[k - 1] is None or one.__class__ is not other.__class__ or len(one) != len(other):
        return None
    if all(map(is_, one, other)):
        return tensor_lists[k - 1]
    return None


def is_contiguous(geometry: ListGeometry) -> bool:
    known = geometry.__dict__.get("contiguous")
    if known is None:
        known = all(t == contiguous_strides(s) for s, t in zip(geometry.shapes, geometry.strides))
        geometry.__dict__["contiguous"] = known
    return known


def operation(
    name: str,
    root: Expr,
    lists: tuple[int, ...],
    slots: tuple[ScalarSlot, ...],
    tensor_lists: Sequence[RecordedList | None],
    layouts: Sequence[ListLayout | None],
    each: Sequence[bool],
    result: Meta | None,
) -> ListRecipe | None:
    """What stores ``root`` into its first list, or into a new one laid out like ``result``."""
    columns = []
    for k in lists:
        tensor_list, layout = tensor_lists[k], layouts[k]
        assert tensor_list is not None
        assert layout is not None
        columns.append(ListColumn(dtypes.of(tensor_list.dtype).name, layout))
    if result is not None:
        row = dtypes.BY_TORCH.get(result[2])
        if row is None or row.itemsize > 4:
            return None
        columns.append(ListColumn(row.name, "elements"))
    target = 0 if result is None else len(lists)
    if any(slot.kind not in PARAM_TYPES for slot in slots):
        return None
    numbers = tuple(Number(slot.kind, slot.argument < len(each) and each[slot.argument]) for slot in slots)
    roots = (ops.to_dtype(root, columns[target].dtype),)
    expression = ListExpression(name, roots, (target,), tuple(columns), numbers)
    return ListRecipe(expression, lists, slots, None if result is None else result[2])


def numbers_for(value: Any, slot: ScalarSlot) -> Sequence[int | float]:
    """The number, or each tuple's, that goes into a kernel's parameters."""
    if not isinstance(value, list):
        return split_scalar(number_for(value, slot), slot.kind)
    if slot.dtype != "f32":
        return [part for v in value for part in split_scalar(number_for(v, slot), slot.kind)]
    array = np.asarray(value, np.float64)
    if slot.checked:
        finite = array[np.isfinite(array)]
        if finite.size:
            check_fits(float(finite.min()), slot.dtype)
            check_fits(float(finite.max()), slot.dtype)
    with np.errstate(over="ignore"):  # beyond float32 is infinity
        return array.astype(np.float32).tolist()


def kernels() -> dict[OpOverload, ListKernel]:
    """A kernel for each overload of a ``_foreach_`` operator whose per-tensor operator is pointwise."""
    by_overload: dict[OpOverload, ListKernel] = {}
    for packet in dir(torch):
        if not packet.startswith("_foreach_"):
            continue
        name = packet.removeprefix("_foreach_")
        for overload_name, overload in overloads(packet).items():
            base = name.removesuffix("_")
            per_tensor, table = PER_TENSOR.get(name) or PER_TENSOR.get(base) or (base, UNARY)
            if name != base and not per_tensor.endswith("_"):
                per_tensor += "_"
            inner = overloads(per_tensor).get(table.get(overload_name, ""))
            if inner in POINTWISE:
                by_overload[overload] = ListKernel(overload, POINTWISE[inner])
    for overload in (aten._foreach_zero_.default, aten._foreach_copy_.default, *clones()):
        by_overload[overload] = StoreKernel(overload)
    return by_overload


def clones() -> list[OpOverload]:
    """``_foreach_clone``, where this PyTorch has it."""
    return [overload for name, overload in overloads("_foreach_clone").items() if name == "default"]


KERNELS: dict[OpOverload, ListKernel] = {}
"""Those that are registered."""


def register() -> None:
    KERNELS.update(kernels())
    for overload, kernel in KERNELS.items():
        impl(overload, kernel)
