"""Operators that are expressions: their results' layouts, their kernel, and the composition that they equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch._ops import OpOverload
from torch._prims_common import compute_elementwise_output_strides

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.guards import NUMBERS
from torch_webgpu.aten.dispatch.memory_overlap import check_writable
from torch_webgpu.aten.dispatch.recipes import Recipes
from torch_webgpu.aten.dispatch.register_pointwise import Computation, PointwiseKernel, Rule, ScalarSlot
from torch_webgpu.aten.dispatch.results import check_cast
from torch_webgpu.aten.dispatch.torch_abi import Meta, is_webgpu
from torch_webgpu.engine.recipe import Recipe
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import Pointwise
from torch_webgpu.ir.ops import ops

from .algebra import substituted
from .expression import CATEGORIES, TENSOR, ZERO_DIM, Element, Lowering, Number, Value, literal, torch_dtype
from .reference import evaluate
from .signature import Signature
from .syntax import Tree

Param = Callable[[int, str], Expr]
"""``param(position, dtype)``: the number that is an argument, in a dtype."""


class Body(Protocol):
    """What an operator computes at a point, one element for each output, from the values of its arguments."""

    def elements(self, arguments: Mapping[str, Value], single: bool) -> list[Element]: ...


@dataclass(frozen=True)
class Trees:
    """A body that the user wrote: an expression for each output."""

    trees: tuple[Tree, ...]

    def elements(self, arguments: Mapping[str, Value], single: bool) -> list[Element]:
        return [Lowering(arguments, single).result(tree) for tree in self.trees]


@dataclass(frozen=True)
class Elementwise:
    """An operator of which each output is an expression over the arguments, which broadcast."""

    name: str
    signature: Signature
    body: Body
    outputs: int

    def lowered(self, values: Sequence[Any], load: Callable[[int, str], Expr], param: Param, single: bool) -> Any:
        """The elements of the outputs. ``load(position, dtype)`` is a tensor's element."""
        arguments: dict[str, Value] = {}
        for k, (p, value) in enumerate(zip(self.signature.parameters, values, strict=True)):
            if p.is_tensor:
                arguments[p.name] = element_of(value, k, load, single)
            elif p.kind == "bool":
                arguments[p.name] = literal(bool(value))
            else:
                category = CATEGORIES[float if p.kind == "float" else int]
                arguments[p.name] = Number(category, partial(param, k))
        return self.body.elements(arguments, single)

    def symbolic(self, values: Sequence[Any]) -> list[Element]:
        """The same with loads and parameters numbered as the arguments are, float64 as f32."""
        return self.lowered(values, ops.load, ops.param, single=True)

    def dtypes(self, values: Sequence[Any]) -> list[torch.dtype]:
        return [torch_dtype(element.dtype) for element in self.symbolic(values)]

    def tensors(self, values: Sequence[Any]) -> list[torch.Tensor]:
        return [v for p, v in zip(self.signature.parameters, values, strict=True) if p.is_tensor]

    def layout(self, values: Sequence[Any]) -> tuple[Any, Any]:
        """The shape and the strides of the results: PyTorch's, for an operator on elements."""
        tensors = self.tensors(values)
        shape = torch.broadcast_shapes(*[t.shape for t in tensors])
        return shape, compute_elementwise_output_strides(*[t.expand(shape) for t in tensors])

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """Results without contents: the meta kernel."""
        values = self.signature.bind(args, kwargs)
        shape, strides = self.layout(values)
        found = self.dtypes(values)
        if self.signature.mutated:
            self.check_mutated(values, shape, found)
            return None
        device = device_of(self.tensors(values))
        return single([torch.empty_strided(shape, strides, dtype=dtype, device=device) for dtype in found])

    def composed(self, *args: Any, **kwargs: Any) -> Any:
        """The results by PyTorch's operators, on any device, and differentiably."""
        values = self.signature.bind(args, kwargs)
        shape = torch.broadcast_shapes(*[t.shape for t in self.tensors(values)])
        double = any(t.dtype == torch.float64 for t in self.tensors(values))
        like = self.tensors(values)[0]
        elements = self.symbolic(values)
        results = []
        for element, value in zip(elements, evaluate([e.expr for e in elements], values, values, double), strict=True):
            if not isinstance(value, torch.Tensor):
                value = torch.full((), value, device=like.device)
            results.append(value.to(torch_dtype(element.dtype)).expand(shape))
        if not self.signature.mutated:
            return single(results)
        self.check_mutated(values, shape, [r.dtype for r in results])
        for k, result in zip(self.signature.mutated, results, strict=True):
            values[k].copy_(result)
        return None

    def on_host(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`composed`, in tensors of the layout that :meth:`fake` says: the kernel of every other device."""
        results = self.composed(*args, **kwargs)
        if results is None:
            return None
        shape, strides = self.layout(self.signature.bind(args, kwargs))
        given = results if isinstance(results, tuple) else (results,)
        return single([laid_out(r, shape, strides) for r in given])

    def check_mutated(self, values: Sequence[Any], shape: Sequence[int], found: Sequence[torch.dtype]) -> None:
        for k, dtype in zip(self.signature.mutated, found, strict=True):
            if tuple(values[k].shape) != tuple(shape):
                raise RuntimeError(
                    f"{self.name}: {self.signature.names[k]}, which it writes, has shape {list(values[k].shape)}, and "
                    f"its arguments broadcast to {list(shape)}"
                )
            check_cast(dtype, values[k].dtype)


def element_of(value: torch.Tensor, k: int, load: Callable[[int, str], Expr], as_single: bool) -> Element:
    if value.is_complex():
        raise NotImplementedError("operators made of WGSL expressions do not compute with complex numbers")
    dtype = dtypes.of(value.dtype).name
    wide = "f32" if dtype in ("f16", "bf16") or (as_single and dtype == "f64") else dtype
    read = load(k, "f32" if as_single and dtype == "f64" else dtype)
    return Element(ops.to_dtype(read, wide), dtype, TENSOR if value.dim() else ZERO_DIM)


def single(results: Sequence[Any]) -> Any:
    """What an operator returns: its one output, or the tuple of them."""
    return results[0] if len(results) == 1 else tuple(results)


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    """That of the results: a CPU tensor without dimensions may stand beside others."""
    return next((t.device for t in tensors if t.dim() or t.device.type != "cpu"), tensors[0].device)


def laid_out(result: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """``result`` as a tensor of its own with these strides."""
    if tuple(result.stride()) == tuple(strides) and not result._is_view():
        return result
    return torch.empty_strided(shape, strides, dtype=result.dtype, device=result.device).copy_(result)


class ElementwiseKernel(PointwiseKernel):
    """The kernel for webgpu tensors: one recorded operation, which fuses as any other."""

    def __init__(self, overload: OpOverload, operator: Elementwise) -> None:
        super().__init__(overload, operator.body.elements, Rule(compute="keep"))
        self.operator = operator
        self.name = operator.name
        numbers = {p.name for p in operator.signature.parameters if p.kind == "int"}
        self.parameters = [replace(p, role="scalar") if p.name in numbers else p for p in self.parameters]
        self.by_name = {p.name: p for p in self.parameters}
        self.inplace = False  # it says itself what it writes

    def trace(
        self, values: list[Any], natural: list[torch.dtype]
    ) -> tuple[Pointwise, tuple[int, ...], tuple[ScalarSlot, ...]]:
        slots: dict[ScalarSlot, int] = {}

        def param(k: int, dtype: str) -> Expr:
            value = values[k]
            if not isinstance(value, torch.Tensor) and not self.varies(self.parameters[k], value):
                return ops.constant(value, dtype)
            slot = ScalarSlot(k, dtype, dtypes.BY_NAME[dtype].kind, checked=False)
            return ops.param(slots.setdefault(slot, len(slots)), dtype)

        def load(k: int, dtype: str) -> Expr:
            return ops.load(k, dtype) if is_webgpu(values[k]) else param(k, dtype)

        elements = self.operator.lowered(values, load, param, single=False)
        roots = [ops.to_dtype(e.expr, dtypes.of(dtype).name) for e, dtype in zip(elements, natural, strict=True)]
        # Arguments that no output depends on are not read.
        loads = {e.args[0]: e for e in walk(roots) if e.op == "load"}
        tensors = sorted(loads)
        numbered = {loads[k]: ops.load(n, loads[k].dtype) for n, k in enumerate(tensors)}
        return Pointwise(tuple(substituted(roots, numbered))), tuple(tensors), tuple(slots)

    def remember(self, above: Recipes[Recipe], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Lets guards in another place of the dispatcher recognise calls like this one, which has run here."""
        values = (*args, *kwargs.values())
        given = [*self.parameters[: len(args)], *[self.by_name[name] for name in kwargs]]
        key = *[self.key_of(p, v, []) for p, v in zip(given, values)], *kwargs
        recipe = self.recipes.get(key)
        if isinstance(recipe, Recipe):
            vary = recipe.numbers is not None
            if not vary or all(self.varies(p, v) for p, v in zip(given, values) if isinstance(v, NUMBERS)):
                above.keep(key, recipe)
                above.guard(key, args, kwargs, vary)

    def layouts(self, values: list[Any]) -> tuple[list[Meta], list[Meta]]:
        mutated = self.operator.signature.mutated
        if not mutated:
            return super().layouts(values)
        self.operator.fake(*values)
        for k in mutated:
            check_writable(values[k].shape, values[k].stride())
        metas = [(tuple(values[k].shape), values[k].stride(), values[k].dtype) for k in mutated]
        return metas, metas

    def compute(self, values: list[Any]) -> Computation | str:
        found = super().compute(values)
        return found if isinstance(found, str) else found._replace(written=self.operator.signature.mutated)

    def recipe(self, c: Computation, values: Sequence[Any]) -> Recipe:
        found = super().recipe(c, values)
        return replace(found, results=(None,), several=False) if c.written else found

    def record_overlapping(self, c: Computation, values: Sequence[Any]) -> Any:
        super().record_overlapping(c, values)
        return None
