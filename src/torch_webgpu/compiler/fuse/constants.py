"""Tensors that were filled with one number: who reads them may as well use the number."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.graph import Call
from torch_webgpu.ir.operation import Pointwise
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import extent, is_dense

from .group import uses
from .nodes import touched


class Constant(NamedTuple):
    """What the elements of a tensor are, ``numel`` of them in a row: an expression over the scalars of ``node``."""

    expr: Expr
    node: int
    storage: int
    numel: int


class Constants:
    """The constants in memory as of a point in a recording."""

    def __init__(self) -> None:
        self.by_tensor: dict[int, Constant] = {}

    def note(self, i: int, node: Call) -> None:
        """Node ``i`` has run."""
        written = node.arguments[node.op.n_inputs :]
        allocations = touched(written)
        if self.by_tensor:
            self.by_tensor = {p: c for p, c in self.by_tensor.items() if c.storage not in allocations}
        body = node.op.body
        if not isinstance(body, Pointwise) or uses(node.op, "load", "index", "linear"):
            return
        for root, spec, use in zip(body.roots, node.op.outputs, written, strict=True):
            if is_dense(spec.shape, spec.strides):
                value = ops.to_dtype(root, spec.dtype)
                self.by_tensor[use.tensor] = Constant(value, i, use.storage, prod(spec.shape))

    def inputs(self, node: Call) -> dict[int, Constant]:
        """The inputs of ``node`` that are constants."""
        constants: dict[int, Constant] = {}
        for k, spec in enumerate(node.op.inputs):
            constant = self.by_tensor.get(node.arguments[k].tensor)
            if constant is None or constant.expr.dtype != spec.dtype:
                continue
            if extent(spec.shape, spec.strides) <= constant.numel:
                constants[k] = constant
        return constants
