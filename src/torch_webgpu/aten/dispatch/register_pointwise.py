"""Registration of pointwise operators: one Python expression per ATen name serves all its overloads.

``@pointwise("add")`` over ``def add(self, other, alpha)`` registers ``add.Tensor``, ``add.Scalar``, ``add_.Tensor``,
``add.out``, … Shapes, strides, dtypes and errors are PyTorch's own (meta kernels, asked once per signature); the
expression says only what is computed per element.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from torch_webgpu import dtypes
from torch_webgpu.engine.layouts import misplaced, spec_of
from torch_webgpu.engine.recipe import Instruction, Recipe
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.tensor import Template
from torch_webgpu.errors import UnsupportedDtypeError
from torch_webgpu.ir.expr import walk
from torch_webgpu.ir.operation import Operation, Pointwise
from torch_webgpu.ir.ops import MissingKindError, ops
from torch_webgpu.layout import is_dense, overlaps_itself
from torch_webgpu.wgsl.expr import FLOAT_MAX, split_scalar

from .decomps import decomposed
from .fallback import run_on_cpu
from .guards import NUMBERS
from .memory_overlap import check_not_partly, check_writable
from .recipes import Recipes, part
from .results import check_cast
from .scalars import cast_scalar, check_fits
from .torch_abi import (
    Meta,
    empty_like_meta,
    functional_of,
    impl,
    infer,
    is_composite,
    is_inplace,
    is_webgpu,
    is_wrapped_number,
    overloads,
    takes_numbers,
)
from .torch_abi import check_devices as check_devices  # the kernels of every family import it from here

Compute = Literal["out", "promote", "keep"]
"""The dtype operands are brought to before the expression: the result's, the operands' common one, or each its own."""

ScalarRule = Literal["operand", "opmath"]
"""Whether numbers among half operands are rounded to half first ("operand") or stay in f32 ("opmath")."""

KEEPS_OWN_DTYPE = frozenset({"condition", "mask"})
UNCHECKED = frozenset({"self", "other"})
PLAIN_NUMBERS: frozenset[Any] = frozenset({float, int})


def opmath(dtype: torch.dtype) -> str:
    """The dtype expressions compute in: f32 for the half types, else the type itself."""
    return "f32" if dtype in (torch.float16, torch.bfloat16) else dtypes.of(dtype).name


@dataclass(frozen=True)
class Rule:
    """How operands reach an expression.

    ``widen``: half operands are computed with in f32 and the result is rounded once; else every step is rounded.
    ``in_code(number)``: this value of a scalar argument deserves (or forces) code of its own, where it is a constant.
    ``check(*arguments)``: raises what PyTorch raises, and its meta kernel does not or in other words.
    ``checked``: the arguments whose numbers must fit the dtype; by default what PyTorch passes as Scalar, but operands.
    ``divisor``: the argument that integers are divided by, which must not be the number 0.
    ``expanded(*arguments)``: the in-place call where elements of what it writes share memory, if PyTorch allows that.
    """

    compute: Compute = "out"
    scalars: ScalarRule = "operand"
    widen: bool = True
    in_code: Callable[[Any], bool] | None = None
    check: Callable[..., None] | None = None
    checked: frozenset[str] | None = None
    divisor: str = ""
    expanded: Callable[..., Any] | None = None


@dataclass(frozen=True)
class OperatorParameter:
    """One argument of the schema. ``role``: "tensor", "scalar", "static" or "out"."""

    name: str
    role: str
    default: Any
    keyword: bool


ROLES = {"Tensor": "tensor", "number": "scalar", "float": "scalar"}


def parameters_of(overload: OpOverload) -> list[OperatorParameter]:
    parameters = []
    for a in overload._schema.arguments:
        written = a.alias_info is not None and a.alias_info.is_write
        kind = str(a.type).removeprefix("Optional[").removesuffix("]")
        role = "out" if written and a.kwarg_only else ROLES.get(kind, "static")
        parameters.append(OperatorParameter(a.name, role, a.default_value, a.kwarg_only))
    return parameters


class ScalarSlot(NamedTuple):
    """A number that travels as a kernel parameter: which argument, the dtype it is brought to, whether it must fit, and
    whether integers are divided by it.
    """

    argument: int
    dtype: str
    kind: str
    checked: bool
    divides: bool = False


class Computation(NamedTuple):
    """What a pointwise operator computes for one signature.

    ``outputs``: the layouts of the results, as new tensors; ``operands``: the arguments that ``body`` loads from;
    ``written``: those that get the results, none when these are new tensors.
    """

    outputs: list[Meta]
    body: Pointwise
    operands: tuple[int, ...]
    scalars: tuple[ScalarSlot, ...]
    written: tuple[int, ...]

    def moved(self, places: Sequence[int]) -> Computation:
        """The same of arguments that have moved to these places."""
        return self._replace(
            operands=tuple([places[i] for i in self.operands]),
            scalars=tuple([slot._replace(argument=places[slot.argument]) for slot in self.scalars]),
            written=tuple([places[i] for i in self.written]),
        )


class PointwiseKernel:
    """The kernel of one overload; :attr:`kernel` is what is registered."""

    def __init__(self, overload: OpOverload, expression: Callable[..., Any], rule: Rule) -> None:
        self.overload = overload
        self.expression = expression
        self.rule = rule
        self.parameters = parameters_of(overload)
        self.by_name = {p.name: p for p in self.parameters}
        self.inplace = is_inplace(overload)
        self.out = [i for i, p in enumerate(self.parameters) if p.role == "out"]
        self.name = str(overload)
        self.takes_numbers = takes_numbers(overload)
        self.recipes: Recipes[Recipe | str] = Recipes()
        self.kernel = self.recipes.kernel(self.call)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that no guard recognised."""
        # Absent defaults decide nothing: they stay out of the key.
        values = (*args, *kwargs.values()) if kwargs else args
        passed = [*self.parameters[: len(args)], *[self.by_name[name] for name in kwargs]]
        tensors: list[torch.Tensor] = []
        key = *[self.key_of(p, v, tensors) for p, v in zip(passed, values)], *kwargs
        recipe = self.recipes.get(key)
        if recipe is None:
            bound = self.bind(args, kwargs)
            if self.out and self.resize(bound):
                return self.kernel(*args, **kwargs)
            if self.inplace and self.rule.expanded is not None and overlaps_itself(bound[0].shape, bound[0].stride()):
                self.inquire(bound)  # raises what PyTorch raises
                return self.rule.expanded(*bound)
            computation = self.compute(bound)
            if isinstance(computation, str):
                recipe = computation
            else:
                places = [passed.index(p) if p in passed else -1 for p in self.parameters]
                recipe = self.recipe(computation.moved(places), values)
            self.recipes.keep(key, recipe)
        if isinstance(recipe, str):
            result = decomposed(self.overload, args, kwargs)
            return run_on_cpu(self.overload, args, kwargs, recipe) if result is NotImplemented else result
        result = recipe.run(values, engine().addresses(tensors))
        # A guard that does not look at numbers must not meet one that makes code of its own.
        vary = recipe.numbers is not None and self.rule.in_code is None
        if not vary or all(self.varies(p, v) for p, v in zip(passed, values) if isinstance(v, NUMBERS)):
            self.recipes.guard(key, args, kwargs, vary)
        return result

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return [*args, *[kwargs.get(p.name, p.default) for p in self.parameters[len(args) :]]]

    def key_of(self, parameter: OperatorParameter, value: Any, tensors: list[torch.Tensor]) -> Any:
        """The part of the key that is an argument's; collects the tensors that are not the host's."""
        if isinstance(value, torch.Tensor):
            if value.is_cpu:
                return value.shape, value.dtype, is_wrapped_number(value)
            return part(value, tensors)
        return value.__class__ if self.varies(parameter, value) else part(value, tensors)

    def varies(self, parameter: OperatorParameter, value: Any) -> bool:
        """Whether an argument is a number that travels as a kernel parameter.

        PyTorch hands a number given for a tensor (``x + 1``) over as it is. A default (``alpha=1``) is code: most calls
        use it.
        """
        if parameter.role not in ("tensor", "scalar") or not isinstance(value, NUMBERS):
            return False
        if parameter.default is not None and value == parameter.default:
            return False
        return self.rule.in_code is None or not self.rule.in_code(value)

    def recipe(self, c: Computation, values: Sequence[Any]) -> Recipe:
        """What calls like this one record: one operation, or none where there are no elements."""
        tensors = [i for i, v in enumerate(values) if is_webgpu(v)]
        inputs, outputs = [values[i] for i in c.operands], [values[i] for i in c.written]
        if not all(map(is_webgpu, outputs)):
            raise misplaced([*inputs, *outputs])
        device, n = values[tensors[0]].get_device(), len(tensors)
        places = [tensors.index(i) for i in (*c.operands, *c.written)]
        fresh: tuple[Template, ...] = ()
        if not c.written:
            places += range(n, n + len(c.outputs))
            fresh = tuple([engine().template(shape, dtype, device, strides) for shape, strides, dtype in c.outputs])
        instructions: tuple[Instruction, ...] = ()
        if prod(c.outputs[0][0]):
            specs = tuple(map(spec_of, (*inputs, *(outputs or empty_like_meta(c.outputs, device)))))
            kinds = tuple([slot.kind for slot in c.scalars])
            instructions = (Instruction.of(Operation(self.name, specs, len(c.outputs), c.body, kinds), places),)
        results = tuple([-1 - i for i in c.written] or range(len(c.outputs)))
        slots = c.scalars if instructions else [slot._replace(divides=False) for slot in c.scalars]
        numbers = parameters_for(slots) if slots else None
        # Of several outputs each must be apart from everything; one may be an input.
        aliasing, overlapping = () if len(c.written) > 1 else None, partial(self.record_overlapping, c)
        return Recipe(device, n, instructions, fresh, results, len(results) > 1, numbers, aliasing, overlapping)

    def record_overlapping(self, c: Computation, values: Sequence[Any]) -> Any:
        """Records it for operands that may overlap what is written: with gaps between each other's elements."""
        inputs, outputs = [values[i] for i in c.operands], [values[i] for i in c.written]
        for out in outputs:
            check_not_partly(out, inputs)
        scalars = [(slot.kind, number_for(values[slot.argument], slot)) for slot in c.scalars]
        engine().record(self.name, inputs, outputs, c.body, scalars=scalars)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def resize(self, values: list[Any]) -> bool:
        """Gives the outputs among the arguments the shapes of the results; False where they have them."""
        inquiry = self.inquire(values)
        if isinstance(inquiry, str):
            return False
        wrong = [(values[i], meta) for i, meta in zip(self.out, inquiry[1]) if values[i].shape != meta[0]]
        for out, (shape, strides, _) in wrong:
            out.resize_(shape)
            if is_dense(shape, strides):
                out.as_strided_(shape, strides)
        return bool(wrong)

    def inquire(self, values: list[Any]) -> tuple[list[Meta], list[Meta]] | str:
        """Asks PyTorch about this signature (see :meth:`layouts`); the reason when it cannot tell."""
        check_devices(values)
        if self.rule.check is not None:
            self.rule.check(*[v for v, p in zip(values, self.parameters) if p.role != "out"])
        # Numbers that vary decide no layout; PyTorch's own code for it may trip over some (an integer from NaN).
        asked = [v.__class__(1) if self.varies(p, v) else v for v, p in zip(values, self.parameters)]
        if not self.takes_numbers:  # C++ that calls it wraps them
            tensors = [p.role == "tensor" and isinstance(v, NUMBERS) for v, p in zip(asked, self.parameters)]
            asked = [torch.tensor(v, device="cpu") if wrap else v for v, wrap in zip(asked, tensors)]
        try:
            return self.layouts(asked)
        except NotImplementedError as reason:
            return f"PyTorch cannot tell its result's shape: {reason}"

    def compute(self, values: list[Any]) -> Computation | str:
        """What is computed for these arguments; the reason when it must be on the CPU."""
        inquiry = self.inquire(values)
        if isinstance(inquiry, str):
            return inquiry
        metas, natural = inquiry
        if self.inplace or self.out:
            for shape, strides, _ in metas:
                check_writable(shape, strides)
        try:
            body, operands, scalars = self.trace(values, [dtype for _, _, dtype in natural])
        except (MissingKindError, UnsupportedDtypeError) as reason:
            return str(reason)
        device = values[operands[0]].device.index if operands else 0
        if not engine().device(device).target.float64 and any(e.dtype == "f64" for e in walk(body.roots)):
            return "this adapter has no 64-bit floating point (shader-f64)"
        return Computation(metas, body, operands, scalars, (0,) if self.inplace else tuple(self.out))

    def layouts(self, values: list[Any]) -> tuple[list[Meta], list[Meta]]:
        """The layouts of what is written, and those that the results would have as new tensors.

        Raises what PyTorch raises for arguments that it refuses.
        """
        arguments, keywords = self.positional(values), self.keywords(values)
        functional = functional_of(self.overload)
        if functional is None or functional is self.overload:
            metas = infer(self.overload, *arguments, **keywords)
            return metas, metas
        natural = infer(functional, *arguments, **self.keywords(values, with_out=False))
        if self.inplace and natural[0][0] != values[0].shape:
            raise RuntimeError(
                f"output with shape {list(values[0].shape)} doesn't match the broadcast shape {list(natural[0][0])}"
            )
        written = [values[0]] if self.inplace else [values[i] for i in self.out]
        for (_, _, dtype), target in zip(natural, written):
            check_cast(dtype, target.dtype)
        return infer(self.overload, *arguments, **keywords), natural

    def positional(self, values: list[Any]) -> list[Any]:
        return [v for v, p in zip(values, self.parameters, strict=True) if not p.keyword]

    def keywords(self, values: list[Any], with_out: bool = True) -> dict[str, Any]:
        return {
            p.name: v
            for v, p in zip(values, self.parameters, strict=True)
            if p.keyword and (with_out or p.role != "out")
        }

    def trace(
        self, values: list[Any], natural: list[torch.dtype]
    ) -> tuple[Pointwise, tuple[int, ...], tuple[ScalarSlot, ...]]:
        """Runs the expression on symbols for these arguments."""
        common = self.common_dtype(values, natural)
        tensors: list[int] = []
        scalars: list[ScalarSlot] = []

        def symbol(i: int, p: OperatorParameter, value: Any) -> Any:
            own = p.name in KEEPS_OWN_DTYPE or self.rule.compute == "keep"
            dtype = value.dtype if own and isinstance(value, torch.Tensor) else common
            name = dtypes.of(dtype).name
            wide = opmath(dtype) if self.rule.widen else name
            if is_webgpu(value):
                tensors.append(i)
                loaded = ops.load(len(tensors) - 1, dtypes.of(value.dtype).name)
                return ops.to_dtype(ops.to_dtype(loaded, name), wide)
            number = name if self.rule.scalars == "operand" else wide
            if isinstance(value, torch.Tensor) or self.varies(p, value):
                kind = dtypes.BY_NAME[number].kind
                divides = p.name == self.rule.divisor and kind in "iul"
                scalars.append(ScalarSlot(i, number, kind, self.must_fit(p), divides))
                return ops.to_dtype(ops.param(len(scalars) - 1, number), wide)
            if p.role in ("tensor", "scalar") and isinstance(value, NUMBERS):
                return ops.constant(cast_scalar(value, number), wide)
            return value

        symbols = [symbol(i, p, v) for i, (p, v) in enumerate(zip(self.parameters, values)) if p.role != "out"]
        result = self.expression(*symbols)
        roots = result if isinstance(result, tuple) else (result,)
        stored = [ops.to_dtype(root, dtypes.of(dtype).name) for root, dtype in zip(roots, natural, strict=True)]
        return Pointwise(tuple(stored)), tuple(tensors), tuple(scalars)

    def must_fit(self, parameter: OperatorParameter) -> bool:
        if self.rule.checked is not None:
            return parameter.name in self.rule.checked
        return parameter.role == "scalar" and parameter.name not in UNCHECKED

    def common_dtype(self, values: list[Any], natural: list[torch.dtype]) -> torch.dtype:
        if self.rule.compute != "promote":
            return natural[0]
        operands = [
            as_number(v) if isinstance(v, torch.Tensor) and is_wrapped_number(v) else v
            for v, p in zip(values, self.parameters, strict=True)
            if p.role in ("tensor", "scalar") and v is not None and p.name not in KEEPS_OWN_DTYPE
        ]
        _, result = elementwise_dtypes(*operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
        return result


POINTWISE: dict[OpOverload, PointwiseKernel] = {}
"""The kernels that :func:`pointwise` registered."""


def as_number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def number_for(value: Any, slot: ScalarSlot) -> Any:
    """The number that goes into a kernel's parameters for the argument ``value``."""
    value = as_number(value)
    if slot.checked:
        check_fits(value, slot.dtype)
    if slot.divides and value == 0:
        raise RuntimeError("ZeroDivisionError")
    return value if slot.dtype == "f32" else cast_scalar(value, slot.dtype)


def parameters_for(slots: Sequence[ScalarSlot]) -> Callable[[Sequence[Any]], tuple[int | float, ...]]:
    """What gives the numbers among a call's arguments as a kernel takes them."""

    def any_of(values: Sequence[Any]) -> tuple[int | float, ...]:
        parts = [split_scalar(number_for(values[slot.argument], slot), slot.kind) for slot in slots]
        return tuple([part for split in parts for part in split])

    if len(slots) > 1 or slots[0].dtype != "f32":
        return any_of
    argument = slots[0].argument

    def one(values: Sequence[Any]) -> tuple[int | float, ...]:
        value: Any = values[argument]
        if value.__class__ in PLAIN_NUMBERS and -FLOAT_MAX <= value <= FLOAT_MAX:
            return (float(value),)  # nearly always, and what the rest comes to as well
        return any_of(values)

    return one


def warn_of_expanded(method: str, indexing: str) -> None:
    """PyTorch's warning of an in-place ``method``, and the ``indexing`` that calls it, on an expanded tensor."""
    warnings.warn(
        f"Use of {method} on expanded tensors is deprecated. Please clone() the tensor before performing this "
        f"operation. This also applies to advanced indexing e.g. {indexing}",
        stacklevel=2,
    )


def pointwise(
    *names: str, only: Sequence[str] | None = None, **rule: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers an expression for every overload of ``aten::name`` and ``aten::name_`` (or those named in ``only``).

    The expression takes the schema's arguments in order: an ``Expr`` for each tensor or number (already of the common
    dtype, half types widened to f32), None for an absent one, the plain value for anything else. It returns an
    ``Expr``, or a tuple of them for several outputs. Further keywords are those of :class:`Rule`.
    """
    how = Rule(**rule)

    def register(expression: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            for packet in (name, f"{name}_"):
                for overload_name, overload in overloads(packet).items():
                    if only is not None and overload_name not in only:
                        continue
                    if takes_tensor(overload) and not is_composite(overload):
                        POINTWISE[overload] = PointwiseKernel(overload, expression, how)
                        impl(overload, POINTWISE[overload].kernel)
        return expression

    return register


def takes_tensor(overload: OpOverload) -> bool:
    """Whether a positional argument is a tensor: ``add.int`` and the like are TorchScript's."""
    return any(str(a.type) == "Tensor" for a in overload._schema.arguments if not a.kwarg_only)
