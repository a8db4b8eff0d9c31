"""Operators that are reductions: a prologue, how contributions combine, an epilogue, and a map of every point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import compute_elementwise_output_strides

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.operations import Fold, record_reduction
from torch_webgpu.aten.dispatch.recorded_once import record_once
from torch_webgpu.aten.dispatch.register_operator import guarded
from torch_webgpu.aten.dispatch.scalars import cast_scalar
from torch_webgpu.aten.dispatch.torch_abi import check_devices, empty_like_meta, infer
from torch_webgpu.aten.reductions.reduce import reduced_dims
from torch_webgpu.errors import did_you_mean
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

from .elementwise import Elementwise, Trees, device_of, element_of, single
from .expression import CATEGORIES, Element, Lowering, Number, Value, literal, torch_dtype
from .signature import Parameter, Signature, SignatureError
from .syntax import Tree, names_in, parse

Texts = str | tuple[str, ...]
STATES: dict[str, tuple[str, ...]] = {
    "sum": ("sum",), "prod": ("prod",), "max": ("max",), "min": ("min",), "any": ("any",), "all": ("all",),
    "argmax": ("max", "index"), "argmin": ("min", "index"), "welford": ("mean", "m2"), "logsumexp": ("max", "sum"),
}  # fmt: skip
"""How contributions may combine, and the names of what that makes of them."""
COUNT, DIM, KEEPDIM = "count", "dim", "keepdim"


@dataclass(frozen=True)
class Reduction:
    """What the function under ``@torch.webgpu.op`` returns for a reduction.

    ``prologue``: an expression over the arguments' names, what each point contributes. ``combine``: how contributions
    meet: "sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "welford" or "logsumexp"; a tuple for several,
    each with a prologue of its own. ``epilogue``: an expression over what they came to, for each output; by default all
    of that. ``map``: an expression, for each further output, that is stored at every point, over that and the
    arguments' names: a normalisation.

    What contributions came to has the combine's name (``sum``); "argmax" gives ``max`` and ``index``, "welford"
    ``mean`` and ``m2``, the sum of squared deviations, "logsumexp" ``max`` and ``sum``, that of ``exp(x - max)``. Of
    several combines each name ends with its number (``sum_0``, ``max_1``). ``count`` is the number of points.

    The dimensions are the argument ``dim`` of the function, if it has one (``int``, ``int | None`` or ``list[int]``),
    otherwise ``dim`` here; None stands for all. With an argument ``keepdim: bool`` they stay, with size 1.
    """

    prologue: Texts
    combine: Texts
    epilogue: Texts | None = None
    map: Texts | None = None
    dim: int | tuple[int, ...] | None = None


def as_tuple(texts: Texts | None) -> tuple[str, ...]:
    return () if texts is None else (texts,) if isinstance(texts, str) else tuple(texts)


def state_names(combine: Sequence[str]) -> list[tuple[str, ...]]:
    """The names of what each combine makes."""
    if len(combine) == 1:
        return [STATES[combine[0]]]
    return [tuple([f"{name}_{k}" for name in STATES[c]]) for k, c in enumerate(combine)]


@dataclass(frozen=True)
class Reducing:
    """A reduction, read: ``prologue``, ``epilogue`` and ``maps`` are trees."""

    name: str
    signature: Signature
    combine: tuple[str, ...]
    prologue: tuple[Tree, ...]
    epilogue: tuple[Tree, ...]
    maps: tuple[Tree, ...]
    dim: int | tuple[int, ...] | None

    @property
    def outputs(self) -> int:
        return len(self.epilogue) + len(self.maps)

    def tensors(self, values: Sequence[Any]) -> list[torch.Tensor]:
        return [v for p, v in zip(self.signature.parameters, values, strict=True) if p.is_tensor]

    def option(self, values: Sequence[Any], name: str, otherwise: Any) -> Any:
        names = self.signature.names
        return values[names.index(name)] if name in names else otherwise

    def dims(self, values: Sequence[Any], rank: int) -> tuple[int, ...]:
        dim = self.option(values, DIM, self.dim)
        return reduced_dims(dim if dim is None or isinstance(dim, int) else list(dim), rank)

    def arguments(
        self, values: Sequence[Any], load: Callable[..., Expr], param: Callable[..., Expr], single: bool
    ) -> Any:
        """What names stand for, of the arguments, and ``count``."""
        found: dict[str, Value] = {COUNT: Number("i", partial(param, -1))}
        for k, (p, value) in enumerate(zip(self.signature.parameters, values, strict=True)):
            if p.is_tensor:
                found[p.name] = element_of(value, k, load, single)
            elif p.kind == "bool":
                found[p.name] = literal(bool(value))
            elif p.kind in ("float", "int"):
                found[p.name] = Number(CATEGORIES[float if p.kind == "float" else int], partial(param, k))
        return found

    def contributions(self, arguments: Mapping[str, Value], as_single: bool) -> list[Element]:
        """What each point contributes, in the dtype that it is combined in."""
        lowering = Lowering(arguments, as_single)
        found = []
        for tree, combine in zip(self.prologue, self.combine, strict=True):
            element = lowering.result(tree)
            kind = dtypes.BY_NAME[element.dtype].kind
            if combine in ("any", "all") and kind != "b":
                raise tree.place.error(f"{combine!r} combines bools: compare it, as in x != 0.0")
            if combine in ("welford", "logsumexp") and kind not in "fd":
                default = dtypes.of(torch.get_default_dtype()).name
                element = Element(lowering.element(element, default), default, element.rank)
            if combine in ("sum", "prod") and kind not in "fd":
                element = Element(ops.to_dtype(element.expr, "i64"), "i64", element.rank)
            found.append(element)
        return found

    def states(self, contributions: Sequence[Element], leaf: Callable[[int, str], Expr]) -> dict[str, Value]:
        """What the contributions came to, by name. ``leaf(n, dtype)`` is number ``n`` of the accumulators."""
        found: dict[str, Value] = {}
        n = 0
        for element, combine, names in zip(contributions, self.combine, state_names(self.combine), strict=True):
            for name in names:
                if name.startswith("index"):
                    found[name] = Element(ops.to_dtype(leaf(n, "u32"), "i64"), "i64", element.rank)
                else:
                    found[name] = Element(leaf(n, element.expr.dtype), element.dtype, element.rank)
                n += 1
            n += combine == "welford"  # its count
        return found

    def results(self, arguments: Mapping[str, Value], states: Mapping[str, Value], as_single: bool) -> list[Element]:
        numbers = {name: value for name, value in arguments.items() if isinstance(value, Number)}
        low = Lowering({**numbers, **states}, as_single)
        every = Lowering({**arguments, **states}, as_single)
        return [*[low.result(tree) for tree in self.epilogue], *[every.result(tree) for tree in self.maps]]

    def dtypes(self, values: Sequence[Any]) -> list[torch.dtype]:
        arguments = self.arguments(values, ops.load, ops.param, True)
        states = self.states(self.contributions(arguments, True), ops.acc)
        return [torch_dtype(e.dtype) for e in self.results(arguments, states, True)]

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """Results without contents: the meta kernel."""
        values = self.signature.bind(args, kwargs)
        tensors = self.tensors(values)
        shape = torch.broadcast_shapes(*[t.shape for t in tensors])
        dims = self.dims(values, len(shape))
        self.check_elements(shape, dims)
        keep = self.option(values, KEEPDIM, False)
        reduced = [1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims]
        strides = compute_elementwise_output_strides(*[t.expand(shape) for t in tensors])
        device, found = device_of(tensors), self.dtypes(values)
        results = [torch.empty(reduced, dtype=dtype, device=device) for dtype in found[: len(self.epilogue)]]
        for dtype in found[len(self.epilogue) :]:
            results.append(torch.empty_strided(shape, strides, dtype=dtype, device=device))  # noqa: PERF401
        return single(results)

    def check_elements(self, shape: Sequence[int], dims: Sequence[int]) -> None:
        extremes = [c for c in self.combine if c in ("max", "min", "argmax", "argmin")]
        if extremes and any(shape[d] == 0 for d in dims):
            raise IndexError(f"{self.name}: there is no {extremes[0]} of no elements, as in shape {list(shape)}")


def read(name: str, signature: Signature, reduction: Reduction) -> Reducing:
    """A reduction whose texts are read, and mean something for some dtypes."""
    combine, prologue = as_tuple(reduction.combine), as_tuple(reduction.prologue)
    for c in combine:
        if c not in STATES:
            raise SignatureError(f"{name}: there is no combine {c!r}{did_you_mean(c, STATES)}: {', '.join(STATES)}")
    if len(combine) != len(prologue) or not combine:
        raise SignatureError(f"{name}: {len(prologue)} prologues for {len(combine)} combines: each has one")
    if signature.mutated:
        raise SignatureError(f"{name}: a reduction writes into none of its arguments")
    numbers = [p.name for p in signature.parameters if p.is_number and p.name not in (DIM, KEEPDIM)]
    tensors = [p.name for p in signature.tensors]
    states = [s for names in state_names(combine) for s in names]
    for taken in [n for n in (*tensors, *numbers) if n in (*states, COUNT)]:
        raise SignatureError(f"{name}: {taken!r} is what {', '.join(combine)} makes: call the argument something else")
    default = () if reduction.map is not None else tuple(states)
    epilogue = as_tuple(reduction.epilogue) or default
    known = [*numbers, COUNT]
    return Reducing(
        name, signature, combine,
        tuple([parse(t, [*tensors, *known]) for t in prologue]),
        tuple([parse(t, [*states, *known]) for t in epilogue]),
        tuple([parse(t, [*tensors, *states, *known]) for t in as_tuple(reduction.map)]),
        reduction.dim,
    )  # fmt: skip


# The kernel


@dataclass(frozen=True)
class Described:
    """A tensor argument's dtype and number of dimensions, which decide what expressions mean."""

    dtype: torch.dtype
    rank: int

    def dim(self) -> int:
        return self.rank

    def is_complex(self) -> bool:
        return self.dtype.is_complex


def fold_of(operator: Reducing, values: tuple[Any, ...], slots: tuple[tuple[int, str], ...], *elements: Expr) -> Fold:
    """What the recorded reduction computes."""
    positions = [k for k, p in enumerate(operator.signature.parameters) if p.is_tensor]

    def load(k: int, dtype: str) -> Expr:
        return ops.to_dtype(elements[positions.index(k)], dtype)

    def param(k: int, dtype: str) -> Expr:
        return ops.param(slots.index((k, dtype)), dtype)

    arguments = operator.arguments(values, load, param, False)
    contributions = operator.contributions(arguments, False)

    def epilogue(*accumulators: Expr) -> tuple[Expr, ...]:
        states = operator.states(contributions, lambda n, dtype: accumulators[n])
        return tuple([e.expr for e in operator.results(arguments, states, False)])

    return Fold(tuple([c.expr for c in contributions]), operator.combine, epilogue)


def kernel_of(overload: OpOverload, operator: Reducing) -> Callable[..., Any]:
    """The kernel for webgpu tensors: one recorded reduction, which takes in what is before and after it."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        values = operator.signature.bind(args, kwargs)
        tensors = operator.tensors(values)
        check_devices(tensors)
        outputs = empty_like_meta(infer(overload, *args, **kwargs), device_of(tensors).index or 0)
        shape = torch.broadcast_shapes(*[t.shape for t in tensors])
        dims = operator.dims(values, len(shape))
        described = tuple([described_as(v) for v in values])
        slots: list[tuple[int, str]] = []

        def param(k: int, dtype: str) -> Expr:
            if (k, dtype) not in slots:
                slots.append((k, dtype))
            return ops.param(slots.index((k, dtype)), dtype)

        arguments = operator.arguments(described, ops.load, param, False)
        operator.results(arguments, operator.states(operator.contributions(arguments, False), ops.acc), False)
        count = math.prod([shape[d] for d in dims])
        scalars = [
            (dtypes.BY_NAME[dtype].kind, cast_scalar(count if k < 0 else values[k], dtype)) for k, dtype in slots
        ]
        fold = (operator, described, tuple(slots))
        inputs = [t.to(outputs[0].device) for t in tensors]
        record_reduction(
            operator.name, inputs, outputs, shape, dims, fold_of, fold, maps=len(operator.maps), scalars=scalars
        )
        return single(outputs)

    return record_once(guarded(overload, kernel))


def described_as(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Described(value.dtype, value.dim())
    return tuple(value) if isinstance(value, list) else value


# The composition


@dataclass(frozen=True)
class Pieces:
    """A reduction as operators on elements around reductions of PyTorch's: its derivative is theirs."""

    operator: Reducing
    prologue: tuple[OpOverload, ...]
    epilogue: tuple[OpOverload, ...]
    maps: tuple[OpOverload, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        operator = self.operator
        values = operator.signature.bind(args, kwargs)
        shape = torch.broadcast_shapes(*[t.shape for t in operator.tensors(values)])
        dims = operator.dims(values, len(shape))
        operator.check_elements(shape, dims)
        return self.over(values, dims, operator.option(values, KEEPDIM, False), operator.dtypes(values))

    def over(self, values: Sequence[Any], dims: tuple[int, ...], keep: bool, found: Sequence[torch.dtype]) -> Any:
        """The results, of these dtypes, of a reduction over ``dims``."""
        operator = self.operator
        shape = torch.broadcast_shapes(*[t.shape for t in operator.tensors(values)])
        names: dict[str, Any] = {COUNT: math.prod([shape[d] for d in dims])}
        for p, v in zip(operator.signature.parameters, values, strict=True):
            half = isinstance(v, torch.Tensor) and v.dtype in (torch.float16, torch.bfloat16)
            names[p.name] = v.float() if half else v
        for piece, tree, combine, states in zip(
            self.prologue, operator.prologue, operator.combine, state_names(operator.combine), strict=True
        ):
            contribution = applied(piece, tree, names).expand(shape)
            names.update(zip(states, combined(combine, contribution, dims), strict=True))
        results: list[torch.Tensor] = []
        for piece, tree in zip((*self.epilogue, *self.maps), (*operator.epilogue, *operator.maps), strict=True):
            result = applied(piece, tree, names)
            if piece in self.maps:
                result = result.expand(shape)
            elif not keep:
                result = result.squeeze(dims)
            results.append(result.to(found[len(results)]))
        return single(results)


def applied(piece: OpOverload, tree: Tree, names: Mapping[str, Any]) -> torch.Tensor:
    return piece(*[names[a.name] for a in piece._schema.arguments])


def combined(combine: str, x: torch.Tensor, dims: tuple[int, ...]) -> tuple[Any, ...]:
    """What contributions came to, over ``dims``, which stay with size 1."""
    if not dims:  # a tensor without dimensions
        return tuple([state.squeeze(-1) for state in combined(combine, x.unsqueeze(-1), (x.dim(),))])
    if combine in ("sum", "any", "all"):
        return (getattr(torch, combine)(x, dims, keepdim=True),)
    if combine == "prod":
        for d in dims:
            x = x.prod(d, keepdim=True)
        return (x,)
    if combine in ("max", "min"):
        return (getattr(torch, f"a{combine}")(x, dims, keepdim=True),)
    if combine in ("argmax", "argmin"):
        rest = [d for d in range(x.dim()) if d not in dims]
        flat = x.permute(*rest, *dims).flatten(len(rest))
        index = getattr(torch, combine)(flat, -1, keepdim=True)
        sizes = [1 if d in dims else n for d, n in enumerate(x.shape)]
        return flat.gather(-1, index).reshape(sizes), index.reshape(sizes)
    if combine == "welford":
        x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
        mean = x.mean(dims, keepdim=True)
        return mean, (x - mean).square().sum(dims, keepdim=True)
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    top = x.amax(dims, keepdim=True)
    shift = torch.where(top.isinf(), torch.zeros_like(top), top)
    return top, (x - shift).exp().sum(dims, keepdim=True)


def piece_signature(operator: Reducing, tree: Tree) -> Signature:
    """The parameters of the part of a reduction that a tree is: what it mentions."""
    known = {p.name: p for p in operator.signature.parameters}
    parameters = []
    for name in names_in(tree):
        p = known.get(name)
        kind = p.kind if p is not None else "int" if name == COUNT else "Tensor"
        parameters.append(Parameter(name, kind))
    parameters.sort(key=lambda p: not p.is_tensor)
    if not parameters or not parameters[0].is_tensor:
        raise tree.place.error("this depends on no tensor, and so on no device")
    return Signature(tuple(parameters))


def piece(operator: Reducing, name: str, tree: Tree) -> Elementwise:
    """A part of a reduction as an operator of its own."""
    return Elementwise(name, piece_signature(operator, tree), Trees((tree,)), 1)
