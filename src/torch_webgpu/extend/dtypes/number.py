"""The WGSL expression of a dtype's number: as PyTorch's operators over component tensors, and for kernels."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torch_webgpu import dtypes
from torch_webgpu.extend.expression import Element, Lowering
from torch_webgpu.extend.reference import evaluate
from torch_webgpu.extend.syntax import names_in, parse
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

from .component import DTypeComponent

POSITION = "i"
"""The name of a number's position in its block."""


def is_float8(dtype: torch.dtype) -> bool:
    return dtype.itemsize == 1 and dtype.is_floating_point


def expression_of(wgsl: str, components: Mapping[str, DTypeComponent], dtype: torch.dtype) -> Expr:
    """``wgsl`` in ``dtype``, whose ``load k`` is component ``k``, and past the last one the position.

    8-bit floats are loaded as float32. ExpressionError, with line, column and a caret, for what is no such expression.
    """
    elements = {name: "f32" if is_float8(one.dtype) else dtypes.of(one.dtype).name for name, one in components.items()}
    elements[POSITION] = "i32"
    tree = parse(wgsl, list(elements))
    loads = {name: Element(ops.load(k, one), one) for k, (name, one) in enumerate(elements.items())}
    return ops.to_dtype(Lowering(loads).result(tree).expr, dtypes.of(dtype).name)


def uses_position(wgsl: str, components: Mapping[str, DTypeComponent]) -> bool:
    return POSITION in names_in(parse(wgsl, [*components, POSITION]))


def numbers_of(
    number: Expr, parts: Mapping[str, torch.Tensor], position: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """What ``number``, of :func:`expression_of`, is for component tensors."""
    loads = [part.to(torch.float32) if is_float8(part.dtype) else part for part in parts.values()]
    (value,) = evaluate([number], [*loads, position], (), double=dtype == torch.float64)
    return value
