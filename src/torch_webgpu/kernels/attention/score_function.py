"""What a program makes of attention's scores: FlexAttention's functions as expressions, and its mask of blocks.

The expressions are over a score and its place: ``acc 0`` is the score, scaled; ``index 0`` to ``index 3`` are its
batch, head, query and key; ``load k`` is element ``k`` of tensors that the program's functions read, and ``param k``
the operation's scalar ``k``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.points import Draft, locator
from torch_webgpu.layout import broadcast_strides
from torch_webgpu.wgsl.expr import compute_type, emit, function
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Source

PLACE = ("b", "h", "l", "s")
ARGUMENTS = ", ".join(PLACE)
PARAMETERS = ", ".join(f"{name}: u32" for name in PLACE)
PARTLY, SEEN = 1, 2
"""What a mask says of a block: of its scores those count that a function says, or all do; 0: none do."""
BLOCKS = 16
"""Of a word of a mask, two bits for each."""


class Scope(NamedTuple):
    """What a kernel asks of scores. ``in_blocks``: it visits blocks of a mask of which some scores count, and asks of
    no others. ``fixed``: the coordinates that a thread's scores share. ``of_keys``: lines of the mask are of keys.
    """

    in_blocks: bool
    fixed: frozenset[int]
    of_keys: bool = False


FEW = Scope(False, frozenset({0, 1, 2}))


@dataclass(frozen=True)
class Element:
    """An element of tensor ``number``: ``places`` are where along each of its dimensions, as int32. Negative ones count
    from the end.
    """

    number: int
    places: tuple[Expr, ...]


@dataclass(frozen=True)
class ScoreFunction:
    """What becomes of a score.

    * ``tensors``: how many are read; ``elements``: of them, each over those before
    * ``numbers``: how many scalars there are, int32
    * ``score``: what a score becomes, None if it stays as it is
    * ``is_seen``: whether it counts, None if all do
    * ``slope``: the derivative of the new score by the old one, None if it is 1
    * ``block``: how many queries and keys a block of the mask of blocks has, None without such a mask
    """

    tensors: int
    numbers: int
    elements: tuple[Element, ...]
    score: Expr | None
    is_seen: Expr | None
    slope: Expr | None = None
    block: tuple[int, int] | None = None

    @property
    def operands(self) -> int:
        """How many arguments there are: the tensors, then the mask of blocks."""
        return self.tensors + (self.block is not None)

    def divides(self, queries: int, keys: int) -> bool:
        """Whether so many queries and keys are part of one block of the mask, wherever they start."""
        return self.block is not None and not self.block[0] % queries and not self.block[1] % keys

    def text(
        self, draft: Draft, first: int, specs: Sequence[Spec], shape: tuple[int, ...], scope: Scope
    ) -> Iterator[str]:
        """WGSL functions of a score and its place, after ``start_scores``: ``changed_score``, which with a slope gives
        this, too, ``is_seen`` and, with a mask of blocks, ``kind_of`` its block.

        ``specs``: the layouts of the arguments, the first of which is argument ``first``; ``shape``: that of scores.
        Elements that depend on no coordinates but those that are fixed are read once, by ``start_scores``.
        """
        numbers = draft.params.scalars("i" * self.numbers, range(self.numbers))
        for number, spec in enumerate(specs[: self.tensors]):
            draft.binding(Binding(f"read{number}", spec.dtype), first + number)
            yield self._locate(draft, first + number, number, spec)

        def leaf(e: Expr) -> str:
            if e.op == "param":
                return numbers[e.args[0]]
            if e.op == "index":
                return f"i32({PLACE[e.args[0]]})"
            return f"element{e.args[0]}({ARGUMENTS})" if e.op == "load" else "score"

        once = []
        for k, element in enumerate(self.elements):
            lines, places = emit(element.places, leaf)
            value = f"read{element.number}_load(read{element.number}_at({', '.join(places)}))"
            name, type_ = f"element{k}", compute_type(specs[element.number].dtype)
            if self._coordinates(element) <= scope.fixed:
                once.append(f"  {name}_once = {name}_read({ARGUMENTS});")
                yield f"var<private> {name}_once: {type_};"
                yield f"fn {name}({PARAMETERS}) -> {type_} {{ return {name}_once; }}"
                name += "_read"
            yield from function(f"{name}({PARAMETERS})", type_, lines, value)
        yield from (f"fn start_scores({PARAMETERS}) {{", *once, "}")
        lines, values = emit([without_divisions(e) for e in (self.score, self.slope) if e is not None], leaf)
        values = values or ["score"]
        result = "f32" if self.slope is None else "vec2<f32>"
        yield from function(f"changed_score({PARAMETERS}, score: f32)", result, lines, f"{result}({', '.join(values)})")
        lines, values = emit([] if self.is_seen is None else [self.is_seen], leaf)
        yield from function(f"is_seen({PARAMETERS})", "bool", lines, *(values or ["true"]))
        if self.block is not None:
            yield from self._blocks(draft, first + self.tensors, specs[self.tensors], shape, scope.of_keys)

    def _coordinates(self, element: Element) -> set[int]:
        """Those that decide which element it is."""
        leaves = list(walk(element.places))
        others = [self._coordinates(self.elements[e.args[0]]) for e in leaves if e.op == "load"]
        return {e.args[0] for e in leaves if e.op == "index"}.union(*others)

    def _locate(self, draft: Draft, arg: int, number: int, spec: Spec) -> str:
        """``read<number>_at``: places that do not exist become the nearest ones."""
        name = f"read{number}"
        terms = [draft.params.add(f"{name}_offset", Source("offset", arg))]
        for d, (size, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
            count = draft.params.add(f"{name}_size{d}", size)
            place = f"clamp(select(i{d}, i{d} + i32({count}), i{d} < 0), 0, i32({count}) - 1)"
            terms.append(f"u32({place}) * {draft.params.add(f'{name}_stride{d}', stride)}")
        parameters = ", ".join(f"i{d}: i32" for d in range(len(spec.shape)))
        return f"fn {name}_at({parameters}) -> u32 {{ return {' + '.join(terms)}; }}"

    def _blocks(self, draft: Draft, arg: int, spec: Spec, shape: tuple[int, ...], of_keys: bool) -> Iterator[str]:
        """The mask of blocks, (B, H, lines, words), which broadcasts over batches and heads. A line is of a block of
        queries or, if it is ``of_keys``, of one of keys.
        """
        assert self.block is not None
        whole = (*shape[:2], *spec.shape[2:])
        strides = broadcast_strides(spec.shape, spec.strides, whole)
        draft.binding(Binding("blocks", spec.dtype), arg)
        yield locator(draft.params, "blocks", arg, ("b", "h", "line", "word"), strides)
        lines, words = [draft.params.add(f"blocks_{c}", spec.shape[d]) for d, c in ((2, "lines"), (3, "words"))]
        queries, keys = self.block
        (line, line_size), (other, other_size) = (
            (("s", keys), ("l", queries)) if of_keys else (("l", queries), ("s", keys))
        )
        yield f"const BLOCK = {other_size}u;"
        yield "fn kinds_of(b: u32, h: u32, place: u32, block: u32) -> u32 {"
        yield f"  let line = min(place / {line_size}u, {lines} - 1u);"
        yield f"  return u32(blocks_load(blocks_at(b, h, line, min(block / {BLOCKS}u, {words} - 1u))));"
        yield "}"
        yield f"fn kind_of({PARAMETERS}) -> u32 {{"
        yield f"  return (kinds_of(b, h, {line}, {other} / BLOCK) >> ({other} / BLOCK % {BLOCKS}u * 2u)) & 3u;"
        yield "}"


def without_divisions(root: Expr) -> Expr:
    """Multiplies by the inverses of constants instead of dividing by these, which takes as long as all the rest."""
    changed: dict[Expr, Expr] = {}
    for e in walk([root]):
        args = tuple([changed[a] if isinstance(a, Expr) else a for a in e.args])
        changed[e] = Expr(e.op, args, e.dtype)
        if e.op == "truediv" and e.dtype == "f32" and args[1].op == "const":
            divisor = float(args[1].args[0])
            if 1e-30 < abs(divisor) < 1e30:
                changed[e] = args[0] * (1 / divisor)
    return changed[root]
