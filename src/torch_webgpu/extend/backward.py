"""The backward of an operator as another operator: what it takes, and the expressions that it computes.

Where the gradient is shorter in terms of the result (``tanh``, ``exp``), the result is what is kept for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any

import torch

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.ops import ops

from .algebra import substituted
from .derivative import gradients
from .elementwise import Elementwise
from .expression import Element, Number, Value, promoted
from .signature import Parameter, Signature
from .syntax import ExpressionError

MAX_ODD = 3
"""How many tensors of an operator may have to be of integers or truth values."""
CATEGORY = {"float": "f", "int": "i", "bool": "b"}
ODD_DTYPES = (torch.bool, torch.int32)


@dataclass(frozen=True)
class Backward:
    """An operator that computes gradients, and what a call of it takes from the forward.

    ``grads``: the outputs whose gradients it takes, first; ``saved``: the positions of the forward's arguments that it
    takes next; ``results``: the outputs that it takes, last; ``wanted``: the positions of the arguments whose gradients
    it returns.
    """

    operator: Elementwise
    grads: tuple[int, ...]
    saved: tuple[int, ...]
    results: tuple[int, ...]
    wanted: tuple[int, ...]


def examples(operator: Elementwise) -> list[Any]:
    """Arguments for which the operator means something: of float32, where that will do.

    Raises what is wrong with it for float32, if it means nothing for any dtypes.
    """
    tensors = [k for k, p in enumerate(operator.signature.parameters) if p.is_tensor]
    first: ExpressionError | None = None
    for odd in range(min(len(tensors), MAX_ODD) + 1):
        for chosen in combinations(tensors, odd):
            for dtypes in product(ODD_DTYPES, repeat=odd):
                values = example(operator.signature, dict(zip(chosen, dtypes)))
                try:
                    operator.symbolic(values)
                except ExpressionError as error:
                    first = first or error
                else:
                    return values
    assert first is not None
    raise first


def example(signature: Signature, dtypes: Mapping[int, torch.dtype]) -> list[Any]:
    numbers = {"float": 0.5, "int": 2, "bool": False}
    return [
        torch.empty((1,), dtype=dtypes.get(k, torch.float32), device="meta") if p.is_tensor else numbers[p.kind]
        for k, p in enumerate(signature.parameters)
    ]


def unique(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


def numbered(name: str, count: int, taken: Sequence[str]) -> list[str]:
    """Names for so many of a kind: ``grad``, or ``grad_0``, ``grad_1``, …"""
    return [unique(name if count == 1 else f"{name}_{k}", taken) for k in range(count)]


def derive(operator: Elementwise, name: str) -> Backward | None:
    """The backward of an operator; None where nothing depends on a floating-point tensor.

    NoDerivativeError for a function without a derivative.
    """
    signature = operator.signature
    values = examples(operator)
    arguments: dict[str, Value] = {}
    for k, p in enumerate(signature.parameters):
        if p.is_tensor:
            dtype = {torch.float32: "f32", torch.bool: "bool"}.get(values[k].dtype, "i32")
            arguments[p.name] = Element(ops.load(k, dtype), dtype)
        else:
            arguments[p.name] = Number(CATEGORY[p.kind], partial(ops.param, k))
    elements = operator.body.elements(arguments, True)
    grads = [j for j, e in enumerate(elements) if BY_NAME[e.dtype].is_float]
    roots = [elements[j].expr for j in grads]
    seeds = [ops.load(-1 - j, "f32") for j in grads]
    candidates = [k for k, p in enumerate(signature.parameters) if p.is_tensor and values[k].dtype == torch.float32]
    found = gradients(roots, seeds, [ops.load(k, "f32") for k in candidates])
    wanted = [k for k, gradient in zip(candidates, found) if gradient is not None]
    if not wanted:
        return None
    direct = [gradient for gradient in found if gradient is not None]
    through = {root: ops.load(-1001 - j, "f32") for root, j in zip(roots, grads) if root.args and root.op != "load"}
    by_result = substituted(direct, through)
    read, read_by_result = leaves(direct, "load"), leaves(by_result, "load")
    inputs, remaining = [k for k in read if k >= 0], [k for k in read_by_result if k >= 0]
    results = sorted(-1001 - k for k in read_by_result if k <= -1001)
    if results and len(remaining) < len(inputs) and len(remaining) + len(results) <= len(inputs):
        chosen, saved = by_result, remaining
    else:
        chosen, saved, results = direct, inputs, []
    numbers = leaves(chosen, "param")
    grad_names = numbered("grad", len(grads), signature.names)
    result_names = numbered("result", len(results), signature.names)
    kept = [signature.parameters[k] for k in saved]
    parameters = [Parameter(n, "Tensor") for n in (*grad_names, *[p.name for p in kept], *result_names)]
    parameters += [Parameter(signature.parameters[k].name, signature.parameters[k].kind) for k in numbers]
    usual = tuple([e.dtype if isinstance(e := arguments[name], Element) else "" for name in signature.names])
    body = Gradients(
        operator, usual, tuple(grads), tuple(grad_names), tuple(wanted), tuple(results), tuple(result_names)
    )
    backward = Elementwise(name, Signature(tuple(parameters)), body, len(wanted))
    return Backward(backward, tuple(grads), (*saved, *numbers), tuple(results), tuple(wanted))


def leaves(roots: Sequence[Expr], op: str) -> list[int]:
    return sorted({e.args[0] for e in walk(roots) if e.op == op})


@dataclass(frozen=True)
class Gradients:
    """The body of a backward: the gradients of ``of`` for the arguments at positions ``wanted``.

    ``usual``: a dtype for each argument of ``of`` that is a tensor, with which that means something.
    """

    of: Elementwise
    usual: tuple[str, ...]
    grads: tuple[int, ...]
    grad_names: tuple[str, ...]
    wanted: tuple[int, ...]
    results: tuple[int, ...]
    result_names: tuple[str, ...]

    def elements(self, arguments: Mapping[str, Value], single: bool) -> list[Element]:
        given = [arguments[name] for name in self.grad_names]
        floats = [v for v in arguments.values() if isinstance(v, Element) and BY_NAME[v.dtype].is_float]
        dtype = promoted(floats)
        wide = "f64" if dtype == "f64" and not single else "f32"
        forward: dict[str, Value] = {}
        for k, p in enumerate(self.of.signature.parameters):
            # What the gradients do not depend on is not among the arguments.
            if p.name in arguments:
                forward[p.name] = arguments[p.name]
            elif p.is_tensor:
                read = wide if self.usual[k] == "f32" else self.usual[k]
                own = self.usual[k] if self.usual[k] != "f32" else dtype
                forward[p.name] = Element(Expr("load", (f"{self.of.name} {p.name}",), read), own)
            else:
                forward[p.name] = Number(CATEGORY[p.kind], lambda d: ops.constant(1, d))
        elements = self.of.body.elements(forward, single)
        roots = [elements[j].expr for j in self.grads]
        seeds = [ops.to_dtype(element(v).expr, root.dtype) for v, root in zip(given, roots, strict=True)]
        variables = [element(forward[self.of.signature.names[k]]).expr for k in self.wanted]
        found = gradients(roots, seeds, variables)
        exprs = [ops.constant(0, wide) if g is None else ops.to_dtype(g, wide) for g in found]
        results = {
            elements[j].expr: ops.to_dtype(element(arguments[name]).expr, elements[j].expr.dtype)
            for j, name in zip(self.results, self.result_names, strict=True)
        }
        rank = min(element(v).rank for v in floats)
        return [Element(e, dtype, rank) for e in substituted(exprs, results)]


def element(value: Value) -> Element:
    assert isinstance(value, Element)
    return value


def summed_to(gradient: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A gradient of the broadcast shape as that of a tensor that was broadcast."""
    if gradient.shape != shape:
        gradient = gradient.sum_to_size(shape)
    return gradient if gradient.dtype == dtype else gradient.to(dtype)
