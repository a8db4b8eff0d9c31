"""Fusion patterns: chains of operators that are counted where they fuse, and may be a program's own WGSL function.

A chain is operations of which each uses the result of the one before, in one kernel. Where its pattern is bound to a
function, the last result is that function of the chain's arguments instead; results in between that somebody else
sees are computed as ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from torch_webgpu.ir.expr import Expr, WgslFunction, walk
from torch_webgpu.ir.graph import Call
from torch_webgpu.ir.names import operator_name
from torch_webgpu.ir.operation import Pointwise
from torch_webgpu.ir.ops import ops

if TYPE_CHECKING:
    from .group import Group


@dataclass(frozen=True)
class Pattern:
    """A chain of ATen operators' names, and the function that computes it, if one does: ``wgsl``'s."""

    name: str
    ops: tuple[str, ...]
    function: WgslFunction | None = None
    arity: int = 0
    description: str = ""
    wgsl: str | None = None


BUILT_IN = (
    Pattern("add_relu", ("add", "relu"), description="a bias and its activation"),
    Pattern("scale_shift", ("mul", "add"), description="x * gamma + beta"),
    Pattern("squared_diff", ("sub", "square"), description="the terms of a squared error"),
)
"""Chains that are counted from the start. They fuse whether they have a name or not."""


class _Joined(NamedTuple):
    """A node of a group: what its operands and numbers are there, and which node computed each operand."""

    names: frozenset[str]
    operands: tuple[Expr, ...]
    writers: tuple[int | None, ...]
    numbers: tuple[Expr, ...]


@dataclass
class Matcher:
    """Looks for chains while a recording is fused. ``counts``: how often each pattern occurred."""

    patterns: Sequence[Pattern]
    counts: Counter[str] = field(default_factory=Counter)
    _joined: dict[int, _Joined] = field(default_factory=dict)

    def join(
        self, group: Group, i: int, node: Call, loads: dict[int, Expr], first_number: int, results: list[Expr]
    ) -> list[Expr]:
        """The ``results`` of node ``i``, which is about to become part of ``group``; a bound pattern's are its own."""
        if len(results) != 1:
            return results
        values = [group.values.get(use.tensor) for use in node.arguments[: node.op.n_inputs]]
        writers = tuple([None if value is None else value.writer[0] for value in values])
        kinds = node.op.param_kinds
        numbers = tuple([ops.param(first_number + n, "f32" if kind == "f" else kind) for n, kind in enumerate(kinds)])
        self._joined[i] = _Joined(names_of(node), tuple([loads[k] for k in range(len(writers))]), writers, numbers)
        calls: dict[int, Expr] = {}
        for pattern in self.patterns:
            chain = self._chain(i, pattern.ops)
            if chain is None:
                continue
            self.counts[pattern.name] += 1
            arguments = self._arguments(chain)
            fits = len(arguments) == pattern.arity and {e.dtype for e in (*arguments, *results)} == {"f32"}
            if pattern.function is not None and fits:
                calls[len(chain)] = Expr("call", (pattern.function, *arguments), "f32")
        return [calls[max(calls)]] if calls else results

    def _chain(self, i: int, names: Sequence[str]) -> list[int] | None:
        """The nodes of a chain of these names that ends with node ``i``."""
        joined = self._joined.get(i)
        if joined is None or names[-1] not in joined.names:
            return None
        if len(names) == 1:
            return [i]
        for writer in dict.fromkeys(joined.writers):
            before = None if writer is None or writer == i else self._chain(writer, names[:-1])
            if before is not None:
                return [*before, i]
        return None

    def _arguments(self, chain: Sequence[int]) -> list[Expr]:
        """What a chain depends on: of each operation the operands that are not the result before it, then numbers."""
        operands: list[Expr] = []
        before: int | None = None
        for i in chain:
            joined = self._joined[i]
            pairs = zip(joined.operands, joined.writers, strict=True)
            operands += [operand for operand, writer in pairs if before is None or writer != before]
            operands += joined.numbers
            before = i
        return operands


def names_of(node: Call) -> frozenset[str]:
    """The names that a node goes by in patterns: its operator's, without the underscore of one in place."""
    name = operator_name(node.op.name).removesuffix("_")
    body = node.op.body
    # PyTorch makes a power of torch.square, and the expression of a power of two multiplies a number by itself.
    if name == "pow" and isinstance(body, Pointwise):
        factors = [e.args for e in walk(body.roots) if e.op == "mul"]
        if len(factors) == 1 and factors[0][0] is factors[0][1] and factors[0][0].op == "load":
            return frozenset({name, "square"})
    return frozenset({name})
