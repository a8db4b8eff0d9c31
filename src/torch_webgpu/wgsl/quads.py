"""Pointwise kernels in which a thread owns four consecutive points and moves them in one access.

Memory moves at full speed only in 16-byte pieces: on an H200 an addition reaches 2.9 TB/s element by element and 4.1
in fours. This is the layout for outputs that lie in iteration order and start at a multiple of four elements, if the
innermost dimension consists of groups of four. An input whose groups lie like that is loaded in fours, one that is the
same everywhere in a group once, any other element by element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME, COMPUTE_TYPE
from torch_webgpu.ir.graph import Expr, Operation, Pointwise

from .expr import convert, emit

QUAD = 4
LANES = "xyzw"


@dataclass(frozen=True)
class Place:
    """Where an argument's elements of four consecutive points lie: WGSL of their numbers, one if it is always the same.

    ``fours``: they are elements 4g to 4g + 3 of the buffer.
    """

    elements: tuple[str, ...]
    fours: bool = False


def point_function(op: Operation, roots: Sequence[Expr], scalars: Mapping[int, str]) -> tuple[list[str], list[int]]:
    """``point(i, elements…) -> Point``: the operation at one point; and the arguments whose elements it takes."""
    assert isinstance(op.body, Pointwise)
    loaded: dict[int, str] = {}

    def leaf(e: Expr) -> str:
        if e.op == "load":
            k = e.args[0]
            loaded[k] = f"a{k}"
            return convert(f"a{k}", op.args[k].dtype, e.dtype, fits=True)
        return scalars[e.args[0]] if e.op == "param" else "i"

    lines, results = emit(roots, leaf)
    outputs = range(op.n_inputs, len(op.args))
    values = [
        convert(text, root.dtype, op.args[k].dtype, fits=True)
        for text, root, k in zip(results, roots, outputs, strict=True)
    ]
    fields = ", ".join(f"f{k}: {compute_type(op, k)}" for k in outputs)
    arguments = ", ".join(["i: u32", *(f"a{k}: {compute_type(op, k)}" for k in loaded)])
    text = [f"struct Point {{ {fields} }}", f"fn point({arguments}) -> Point {{", *lines]
    return [*text, f"  return Point({', '.join(values)});", "}"], list(loaded)


def quads_text(
    op: Operation,
    roots: Sequence[Expr],
    names: Mapping[int, str],
    places: Mapping[int, Place],
    scalars: Mapping[int, str],
    numel: str,
    main: Sequence[str],
) -> str:
    """The kernel's text. ``main`` opens the entry point, up to the number ``base`` of the thread's first point."""
    function, loaded = point_function(op, roots, scalars)
    text = [*function, *main]
    lanes = []
    for k in loaded:
        declared, values = load(k, names[k], places[k])
        text += declared
        lanes.append(values)
    text += evaluate(lanes, "base")
    text.append(f"  let whole = base + {QUAD}u <= {numel};")
    for k in range(op.n_inputs, len(op.args)):
        text += store(op, k, names[k], places[k], numel)
    return "\n".join([*text, "}", ""])


def compute_type(op: Operation, k: int) -> str:
    return COMPUTE_TYPE[BY_NAME[op.args[k].dtype].kind]


def evaluate(lanes: Sequence[Sequence[str]], base: str) -> list[str]:
    """``q0`` to ``q3``: the results at points ``base``, a multiple of four, and after it, of the elements in ``lanes``.

    Numbered by ``|``, so that compilers see what the four have in common: a block of random numbers, say.
    """
    return [
        f"  let q{e} = point({', '.join([f'{base} | {e}u', *(values[e] for values in lanes)])});" for e in range(QUAD)
    ]


def load(k: int, name: str, place: Place) -> tuple[list[str], list[str]]:
    """Statements that load argument ``k`` for four points, and the WGSL of each one's value."""
    if place.fours:
        lines = [f"  let v{k} = {name}_load4(({place.elements[0]}) / {QUAD}u);"]
        return lines, [f"v{k}.{lane}" for lane in LANES]
    if len(place.elements) == 1:
        return [f"  let s{k} = {name}_load({place.elements[0]});"], [f"s{k}"] * QUAD
    lines = [f"  let v{k}_{e} = {name}_load({at});" for e, at in enumerate(place.elements)]
    return lines, [f"v{k}_{e}" for e in range(QUAD)]


def store(op: Operation, k: int, name: str, place: Place, numel: str) -> list[str]:
    """Statements that store output ``k`` of four points; what lies beyond the tensor is kept."""
    if not place.fours:
        return [f"  if (base + {e}u < {numel}) {{ {name}_store({at}, q{e}.f{k}); }}" for e, at in each(place)]
    inside = ", ".join(f"base + {e}u < {numel}" for e in range(QUAD))
    return [
        f"  var out{k} = {vector(op, k)};",
        f"  let at{k} = ({place.elements[0]}) / {QUAD}u;",
        f"  if (!whole) {{ out{k} = select({name}_load4(at{k}), out{k}, vec4<bool>({inside})); }}",
        f"  {name}_store4(at{k}, out{k});",
    ]


def store_whole(op: Operation, k: int, name: str, place: Place) -> list[str]:
    """Statements that store output ``k`` of four points that all exist."""
    if not place.fours:
        return [f"  {name}_store({at}, q{e}.f{k});" for e, at in each(place)]
    return [f"  {name}_store4(({place.elements[0]}) / {QUAD}u, {vector(op, k)});"]


def each(place: Place) -> Iterable[tuple[int, str]]:
    elements = place.elements if len(place.elements) == QUAD else place.elements * QUAD
    return enumerate(elements)


def vector(op: Operation, k: int) -> str:
    return f"vec4<{compute_type(op, k)}>({', '.join(f'q{e}.f{k}' for e in range(QUAD))})"
