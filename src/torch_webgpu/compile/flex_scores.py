"""FlexAttention's functions of scores, graphs of operators over numbers, as expressions that kernels compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from torch_webgpu.aten.dispatch.register_pointwise import POINTWISE, number_for
from torch_webgpu.compiler.fuse.substitution import rewrite
from torch_webgpu.dtypes import BY_NAME, BY_TORCH, of
from torch_webgpu.errors import UnsupportedDtypeError
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import MissingKindError, ops
from torch_webgpu.kernels.attention.score_function import Element, ScoreFunction

from .matching import aten
from .private import without_fakes

SAME = frozenset(
    {
        aten._to_copy.default, aten.alias.default, aten.clone.default, aten.detach.default, aten.expand.default,
        aten.lift_fresh.default,
        aten.lift_fresh_copy.default, aten.view.default,
    }
)  # fmt: skip
"""What gives a number as it is, but perhaps in another dtype."""
CONSTANTS: Mapping[Any, Callable[..., Any]] = {
    aten.full.default: lambda size, value, **options: value,
    aten.full_like.default: lambda x, value, **options: value,
    aten.new_full.default: lambda x, size, value, **options: value,
    aten.new_ones.default: lambda x, size, **options: 1,
    aten.new_zeros.default: lambda x, size, **options: 0,
    aten.ones.default: lambda size, **options: 1,
    aten.ones_like.default: lambda x, **options: 1,
    aten.scalar_tensor.default: lambda value, **options: value,
    aten.zeros.default: lambda size, **options: 0,
    aten.zeros_like.default: lambda x, **options: 0,
}
"""What gives a number that its arguments say."""
KNOWN = SAME | CONSTANTS.keys()
KINDS = "bfilu"
"""Of numbers that are computed with here, and read."""


class UnknownError(Exception):
    """A function does what is no expression of a score and its place."""


@dataclass(frozen=True)
class Value:
    """A number: its expression, and a fake tensor as which operators know it."""

    expr: Expr
    fake: torch.Tensor


@dataclass(frozen=True)
class Part:
    """A tensor that is read, or a part of one: its number, and the places along its first dimensions."""

    number: int
    places: tuple[Expr, ...]
    fake: torch.Tensor


@dataclass(frozen=True)
class Symbol:
    """A number of the program's that may be another one at the next call."""

    expr: Expr


EXAMPLE = 1_000_003
"""Of a symbol, for operators that look at numbers: no default, and of no meaning to any."""


class Translator:
    """Makes expressions of graphs, and collects the tensors that they read, which elements of these, and the program's
    numbers.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.tensors: list[Node] = []
        self.elements: list[Element] = []
        self.numbers: list[Node] = []

    def translate(self, function: GraphModule, numbers: Sequence[tuple[Expr, torch.dtype]], read: Sequence[Any]) -> Any:
        """What a function returns for these numbers and what it reads, tensors by their nodes: a :class:`Value` for
        each number. Raises UnknownError. Fake tensors are made in the mode that is on.
        """
        places = [node for node in function.graph.nodes if node.op == "placeholder"]
        values: dict[Node, Any] = {}
        for place, (expr, dtype) in zip(places, numbers):
            values[place] = Value(expr, torch.empty((), dtype=dtype, device=self.device))
        for place, what in zip(places[len(numbers) :], read, strict=True):
            values[place] = self._read(what) if isinstance(what, Node) else what
        for node in function.graph.nodes:
            if node.op == "output":
                return map_arg(node.args[0], values.__getitem__)
            if node.op == "get_attr":
                values[node] = self._constant(getattr(function, str(node.target)))
            elif node.op == "call_function":
                arguments: Any = map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = self._call(node.target, *arguments)
            elif node.op != "placeholder":
                raise UnknownError(f"{node.op} of {node.target}")
        raise UnknownError("the function returns nothing")

    def number(self, value: Any, dtype: str) -> Expr:
        """A result of a function as this dtype."""
        value = self._whole(value) if isinstance(value, Part) else value
        if not isinstance(value, Value):
            raise UnknownError(f"{value!r} is no number")
        return ops.to_dtype(value.expr, dtype)

    def _constant(self, tensor: torch.Tensor) -> Value:
        if tensor.numel() != 1:
            raise UnknownError("a tensor of the function's own")
        with without_fakes():
            value = tensor.item()
        return self._value(ops.constant(value, self._known(tensor.dtype)), tensor.dtype)

    def _value(self, expr: Expr, dtype: torch.dtype) -> Value:
        return Value(expr, torch.empty((), dtype=dtype, device=self.device))

    def _read(self, node: Node) -> Part | Symbol:
        fake = node.meta["val"]
        if isinstance(fake, torch.SymInt):
            if node not in self.numbers:
                self.numbers.append(node)
            return Symbol(ops.param(self.numbers.index(node), "i32"))
        if not isinstance(fake, torch.Tensor):
            raise UnknownError(f"{fake!r}, which is no tensor")
        if fake.device != self.device or fake.dtype not in BY_TORCH or not fake.numel():
            raise UnknownError(f"a tensor of {fake.dtype} on {fake.device}")
        if BY_TORCH[fake.dtype].kind not in KINDS:
            raise UnknownError(f"a tensor of {fake.dtype}")
        if node not in self.tensors:
            self.tensors.append(node)
        return Part(self.tensors.index(node), (), fake)

    def _call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = pytree.tree_map_only(Part, self._whole, (args, kwargs))
        if target is aten.index.Tensor:
            return self._indexed(*args)
        if target is aten.select.int:
            part, dim, place = args
            if dim != 0 or isinstance(place, torch.SymInt):
                raise UnknownError(f"{target} along dimension {dim}")
            return self._indexed(part, [self._value(ops.constant(place, "i32"), torch.int32)])
        if target not in KNOWN and target not in POINTWISE:
            raise UnknownError(str(target))
        fake = target(*self._fakes(args), **self._fakes(kwargs))
        if not isinstance(fake, torch.Tensor) or fake.dim():
            raise UnknownError(f"{target} gives more than a number")
        dtype = self._known(fake.dtype)
        fake = fake if fake.device == self.device else torch.empty((), dtype=fake.dtype, device=self.device)
        if target in CONSTANTS:
            value = CONSTANTS[target](*args, **kwargs)
            if isinstance(value, Symbol):
                return Value(ops.to_dtype(value.expr, dtype), fake)
            if not isinstance(value, (bool, int, float)):
                raise UnknownError(f"{target} of {value!r}")
            return Value(ops.constant(value, dtype), fake)
        if target in SAME:
            return Value(ops.to_dtype(args[0].expr, dtype), fake)
        return Value(self._computed(target, args, kwargs, fake.dtype), fake)

    def _computed(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Expr:
        """The expression of a pointwise operator, over those of its operands."""
        kernel = POINTWISE[target]
        values = kernel.bind(tuple(args), dict(kwargs))
        try:
            body, operands, scalars = kernel.trace(self._fakes(values), [dtype])
        except (MissingKindError, UnsupportedDtypeError) as error:
            raise UnknownError(str(error)) from error

        symbols = {k for k, value in enumerate(values) if isinstance(value, Symbol)}
        if not symbols <= {slot.argument for slot in scalars}:
            raise UnknownError(f"{target} makes code of a number that may change")

        def leaf(e: Expr) -> Expr:
            if e.op == "load":
                return values[operands[e.args[0]]].expr
            if e.op == "param":
                slot = scalars[e.args[0]]
                if isinstance(symbol := values[slot.argument], Symbol):
                    return ops.to_dtype(ops.to_dtype(symbol.expr, slot.dtype), e.dtype)
                return ops.constant(number_for(values[slot.argument], slot), e.dtype)
            return e

        return rewrite(body.roots[0], leaf, {})

    def _whole(self, part: Part) -> Value | Part:
        """An element of a tensor, where as many places are known as it has dimensions."""
        if len(part.places) < part.fake.dim():
            return part
        element = Element(part.number, part.places)
        if element not in self.elements:
            self.elements.append(element)
        expr = ops.load(self.elements.index(element), of(part.fake.dtype).name)
        return self._value(expr, part.fake.dtype)

    def _indexed(self, part: Any, places: Sequence[Any]) -> Part:
        if not isinstance(part, Part) or not all(isinstance(place, (Symbol, Value)) for place in places):
            raise UnknownError("an index that is no number, or of what is no tensor")
        places = [self._value(place.expr, torch.int32) if isinstance(place, Symbol) else place for place in places]
        if any(place.expr.dtype == "bool" or BY_NAME[place.expr.dtype].kind not in "ilu" for place in places):
            raise UnknownError("a mask as an index")
        more = tuple([ops.to_dtype(place.expr, "i32") for place in places])
        return Part(part.number, (*part.places, *more), part.fake)

    def _known(self, dtype: torch.dtype) -> str:
        if dtype not in BY_TORCH or BY_TORCH[dtype].kind not in KINDS:
            raise UnknownError(f"a number of {dtype}")
        return BY_TORCH[dtype].name

    def _fakes(self, values: Any) -> Any:
        def fake(part: Part) -> torch.Tensor:
            raise UnknownError("an operator over a tensor that is read")

        values = pytree.tree_map_only(Symbol, lambda symbol: EXAMPLE, values)
        return pytree.tree_map_only(Part, fake, pytree.tree_map_only(Value, lambda value: value.fake, values))


def score_function(
    scores: GraphModule,
    mask: GraphModule,
    joint: GraphModule | None,
    read_by_scores: Sequence[Any],
    read_by_mask: Sequence[Any],
    device: torch.device,
    block: tuple[int, int] | None,
) -> tuple[ScoreFunction, list[Node], list[Node]]:
    """What FlexAttention's functions do to a score, the tensors that they read, and the numbers.

    ``joint``: the gradient of ``scores``, in a backward pass; it is a multiple of the new score's, so that of 1 says
    all. Raises UnknownError.
    """
    translator = Translator(device)
    place = [(ops.index(d), torch.int32) for d in range(4)]
    score, slope = [(e, torch.float32) for e in (ops.acc(0, "f32"), ops.constant(1.0, "f32"))]
    changed = translator.number(translator.translate(scores, [score, *place], read_by_scores), "f32")
    is_seen = translator.number(translator.translate(mask, place, read_by_mask), "bool")
    gradient = slope[0]
    if joint is not None:
        first, *others = translator.translate(joint, [score, *place, slope], read_by_scores)
        if any(other is not None for other in others):
            raise UnknownError("gradients of what the function reads")
        gradient = ops.constant(0.0, "f32") if first is None else translator.number(first, "f32")
    function = ScoreFunction(
        len(translator.tensors),
        len(translator.numbers),
        tuple(translator.elements),
        None if changed is score[0] else changed,
        None if is_seen is ops.constant(True, "bool") else is_seen,
        None if gradient is slope[0] or score[0] is changed else gradient,
        block,
    )
    return function, translator.tensors, translator.numbers
