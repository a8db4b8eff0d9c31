"""Registration of pointwise operators: one Python expression per ATen name serves all its overloads.

``@pointwise("add")`` over ``def add(self, other, alpha=1)`` registers ``add.Tensor``, ``add.Scalar``, ``add_.Tensor``,
``add.out``, … Shapes, strides, dtypes and errors are PyTorch's own (meta kernels, asked once per signature); the expression
says only what is computed per element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from .. import dtypes
from ..engine.record import engine, spec_of
from ..ir.graph import Expr, Operation, Pointwise
from ..ir.ops import MissingKind, ops
from ..layout import may_overlap_itself
from ..wgsl.expr import split_scalar
from .fallback import run_on_cpu
from .torch_abi import (
    Meta,
    empty_like_meta,
    functional_of,
    impl,
    infer,
    is_inplace,
    is_out,
    is_webgpu,
    is_wrapped_number,
    overloads,
)

Compute = Literal["out", "promote", "keep"]
"""The dtype operands are brought to before the expression: the result's, the operands' common one, or each its own."""

KEEPS_OWN_DTYPE = frozenset({"condition", "mask"})
PREPARED_CACHE_SIZE = 50_000


def opmath(dtype: torch.dtype) -> str:
    """The dtype expressions compute in: f32 for the half types, else the type itself."""
    return "f32" if dtype in (torch.float16, torch.bfloat16) else dtypes.of(dtype).name


@dataclass(frozen=True)
class Parameter:
    """One argument of the schema. ``role``: "tensor", "scalar", "static" or "out"."""

    name: str
    role: str
    default: Any
    keyword: bool


def parameters_of(overload: OpOverload) -> list[Parameter]:
    found = []
    for a in overload._schema.arguments:
        written = a.alias_info is not None and a.alias_info.is_write
        kind = str(a.type).removeprefix("Optional[").removesuffix("]")
        role = "out" if written and a.kwarg_only else {"Tensor": "tensor", "number": "scalar"}.get(kind, "static")
        found.append(Parameter(a.name, role, a.default_value, a.kwarg_only))
    return found


@dataclass(frozen=True)
class Prepared:
    """What a signature needs at each call: output layouts, the operation, where operands and scalars come from."""

    outputs: list[Meta]
    name: str
    body: Pointwise
    tensors: tuple[int, ...]
    scalars: tuple[tuple[int, str], ...]
    op: Operation | None = None


class PointwiseKernel:
    """The kernel of one overload."""

    def __init__(self, overload: OpOverload, expression: Callable[..., Any], compute: Compute) -> None:
        self.overload = overload
        self.expression = expression
        self.compute = compute
        self.parameters = parameters_of(overload)
        self.inplace = is_inplace(overload)
        self.out = [i for i, p in enumerate(self.parameters) if p.role == "out"]
        self.prepared: dict[Any, Prepared | str] = {}
        self.name = str(overload)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = self.bind(args, kwargs)
        key = tuple([self.key_of(p, v) for p, v in zip(self.parameters, values, strict=True)])
        found = self.prepared.get(key)
        if found is None:
            found = self.prepare(values)
            if len(self.prepared) >= PREPARED_CACHE_SIZE:
                self.prepared.pop(next(iter(self.prepared)))
            self.prepared[key] = found
        if found.__class__ is str:
            return run_on_cpu(self.overload, args, kwargs, found)  # type: ignore[arg-type]
        return self.launch(found, values)  # type: ignore[arg-type]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        values = list(args)
        for p in self.parameters[len(args) :]:
            values.append(kwargs.get(p.name, p.default))
        return values

    @staticmethod
    def key_of(parameter: Parameter, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            device = value.device
            if device.type == "webgpu":
                # Sub-word types: where in its 32-bit word the tensor starts decides how it can be written.
                return (value.shape, value.stride(), value.dtype, device.index, value.storage_offset() & 3)
            return (value.shape, value.dtype, device.type, is_wrapped_number(value))
        if is_scalar(parameter, value):
            return value.__class__
        return tuple(value) if isinstance(value, list) else (value.__class__, value)

    def launch(self, found: Prepared, values: list[Any]) -> Any:
        inputs = [values[i] for i in found.tensors]
        scalars = [(kind, as_number(values[i])) for i, kind in found.scalars]
        if found.op is not None:
            outputs = empty_like_meta(found.outputs, inputs[0].device.index)
            if outputs[0].numel():
                params = tuple(part for kind, value in scalars for part in split_scalar(value, kind))
                engine().push(found.op, (*inputs, *outputs), params)
        else:
            outputs = [values[0]] if self.inplace else [values[i] for i in self.out]
            if not self.inplace:
                for out, (shape, _, _) in zip(outputs, found.outputs, strict=True):
                    if out.shape != shape:
                        out.resize_(shape)
            if outputs[0].numel():
                engine().record(found.name, inputs, outputs, lambda specs: found.body, (found.body, "pointwise"), scalars)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def prepare(self, values: list[Any]) -> Prepared | str:
        """Asks PyTorch about this signature and writes the expression; the reason when it must run on the CPU."""
        check_devices(values)
        metas = infer(self.overload, *self.positional(values), **self.keywords(values))
        functional = functional_of(self.overload)
        natural = metas
        if functional is not None and functional is not self.overload:
            natural = infer(functional, *self.positional(values), **self.keywords(values, with_out=False))
        if self.inplace or self.out:
            for shape, strides, _ in metas:
                check_writable(shape, strides)
        try:
            body, tensors, scalars = self.trace(values, [dtype for _, _, dtype in natural])
        except (MissingKind, TypeError) as reason:
            return str(reason)
        op = None
        if not self.inplace and not self.out:
            op = self.operation(values, metas, body, tensors, scalars)
        return Prepared(metas, self.name, body, tensors, scalars, op)

    def operation(
        self, values: list[Any], metas: list[Meta], body: Pointwise, tensors: Sequence[int], scalars: Any
    ) -> Operation:
        device = values[tensors[0]].device.index
        specs = [spec_of(values[i]) for i in tensors] + [spec_of(t) for t in empty_like_meta(metas, device)]
        return Operation(self.name, tuple(specs), len(metas), body, tuple(kind for _, kind in scalars))

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
    ) -> tuple[Pointwise, tuple[int, ...], tuple[tuple[int, str], ...]]:
        """Runs the expression on symbols for these arguments."""
        common = self.common_dtype(values, natural)
        tensors: list[int] = []
        scalars: list[tuple[int, str]] = []

        def symbol(i: int, p: Parameter, value: Any) -> Any:
            own = p.name in KEEPS_OWN_DTYPE or self.compute == "keep"
            if is_webgpu(value):
                tensors.append(i)
                loaded = ops.load(len(tensors) - 1, dtypes.of(value.dtype).name)
                target = value.dtype if own else common
                return ops.to_dtype(ops.to_dtype(loaded, dtypes.of(target).name), opmath(target))
            if isinstance(value, torch.Tensor) or is_scalar(p, value):
                target = value.dtype if own and isinstance(value, torch.Tensor) else common
                name = opmath(target)
                scalars.append((i, dtypes.BY_NAME[name].kind))
                return ops.param(len(scalars) - 1, name)
            return value

        symbols = [symbol(i, p, v) for i, (p, v) in enumerate(zip(self.parameters, values, strict=True)) if p.role != "out"]
        result = self.expression(*symbols)
        roots = result if isinstance(result, tuple) else (result,)
        finished = tuple(
            ops.to_dtype(root, dtypes.of(dtype).name) for root, dtype in zip(roots, natural, strict=True)
        )
        return Pointwise(finished), tuple(tensors), tuple(scalars)

    def common_dtype(self, values: list[Any], natural: list[torch.dtype]) -> torch.dtype:
        if self.compute == "out" or self.compute == "keep":
            return natural[0]
        operands = [
            as_number(v) if isinstance(v, torch.Tensor) and is_wrapped_number(v) else v
            for v, p in zip(values, self.parameters, strict=True)
            if p.role in ("tensor", "scalar") and v is not None and p.name not in KEEPS_OWN_DTYPE
        ]
        _, result = elementwise_dtypes(*operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
        return result


def is_scalar(parameter: Parameter, value: Any) -> bool:
    """Whether an argument is a number whose value stays out of the code.

    PyTorch hands a number given for a tensor (``x + 1``) over as it is. A default (``alpha=1``) is code: most calls use it.
    """
    if parameter.role not in ("tensor", "scalar") or not isinstance(value, (int, float, complex)):
        return False
    return parameter.default is None or value != parameter.default


def as_number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def check_devices(values: Sequence[Any]) -> None:
    """Raises, in PyTorch's words, unless all tensors with dimensions are on one device."""
    found: list[torch.device] = []
    for t in values:
        if isinstance(t, torch.Tensor) and not (t.dim() == 0 and t.device.type == "cpu") and t.device not in found:
            found.append(t.device)
    if len(found) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {found[0]} and {found[1]}!"
        )


def check_writable(shape: Sequence[int], strides: Sequence[int]) -> None:
    if may_overlap_itself(shape, strides):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def pointwise(
    *names: str, compute: Compute = "out", only: Sequence[str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers an expression for every overload of ``aten::name`` and ``aten::name_`` (or those named in ``only``).

    The expression takes the schema's arguments in order: an ``Expr`` for each tensor or scalar (already of the common
    dtype, half types widened to f32), None for an absent one, the plain value for anything else; it returns an ``Expr``, or
    a tuple of them for several outputs.
    """

    def register(expression: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            for packet in (name, f"{name}_"):
                for overload_name, overload in overloads(packet).items():
                    if only is not None and overload_name not in only:
                        continue
                    if takes_tensor(overload):
                        impl(overload, PointwiseKernel(overload, expression, compute))
        return expression

    return register


def takes_tensor(overload: OpOverload) -> bool:
    """Whether the schema's first argument is a tensor (``add.int`` and the like are TorchScript's) or a later one is."""
    return any(str(a.type) == "Tensor" for a in overload._schema.arguments if not a.kwarg_only)


__all__ = ["Expr", "PointwiseKernel", "check_devices", "check_writable", "is_out", "opmath", "pointwise"]
