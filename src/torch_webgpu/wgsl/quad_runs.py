"""Pointwise kernels of large tensors of 8- and 16-bit elements: a thread takes RUN groups of four, far apart.

A group of four is 8 bytes then, and a thread that moves one leaves memory idle: on an H200 a bfloat16 GELU reaches
2.3 TB/s with one group a thread, 2.8 with four. All loads come first, so that all are in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Expr, Operation, walk

from .quads import LANES, QUAD, Place, compute_type, evaluate, point_function, vector

RUN = 4
MIN_NUMEL = 1 << 22
"""Elements from which on a large GPU is busy with a quarter of the threads."""
MAX_EXPRESSIONS = 64
"""The kernel has the operation's code RUN + 1 times."""


def runs_of_quads(op: Operation, roots: Sequence[Expr], places: Mapping[int, Place], numel: int) -> bool:
    """Whether the operation should be written like this."""
    narrow = all(BY_NAME[op.args[k].dtype].itemsize <= 2 for k in places)
    simple = all(place.fours or (len(place.elements) == 1 and k < op.n_inputs) for k, place in places.items())
    return narrow and simple and numel >= MIN_NUMEL and sum(1 for _ in walk(roots)) <= MAX_EXPRESSIONS


def quad_runs_text(
    op: Operation,
    roots: Sequence[Expr],
    names: Mapping[int, str],
    places: Mapping[int, Place],
    scalars: Mapping[int, str],
    numel: str,
    main: Sequence[str],
    workgroup: int,
) -> str:
    """The kernel's text. ``main`` opens the entry point with the number ``group`` of the workgroup.

    ``places`` are in terms of ``base``, the number of a group's first point.
    """
    function, loaded = point_function(op, roots, scalars)
    outputs = range(op.n_inputs, len(op.args))
    types = {k: f"vec4<{compute_type(op, k)}>" for k in (*loaded, *outputs)}
    groups = [k for k in loaded if places[k].fours]
    text = [*function, *accessors(groups, outputs, names, places, types)]
    text += quad_function(op, loaded, groups, types)
    text += [*main, f"  let first = group * {RUN * QUAD * workgroup}u;"]
    text += [f"  let s{k} = {names[k]}_load({places[k].elements[0]});" for k in loaded if k not in groups]
    text.append(f"  if (first + {RUN * QUAD * workgroup}u <= {numel}) {{")
    text += [f"    let base{u} = first + ({u * workgroup}u + lid) * {QUAD}u;" for u in range(RUN)]
    text += [f"    let v{k}_{u} = load{k}(base{u});" for u in range(RUN) for k in groups]
    for u in range(RUN):
        values = [f"v{k}_{u}" if k in groups else f"s{k}" for k in loaded]
        text.append(f"    let q{u} = quad({', '.join([f'base{u}', *values])});")
    text += [f"    store{k}(base{u}, q{u}.f{k});" for u in range(RUN) for k in outputs]
    text += ["    return;", "  }"]
    text.append(f"  for (var base = first + lid * {QUAD}u; base < {numel}; base += {QUAD * workgroup}u) {{")
    values = [f"load{k}(base)" if k in groups else f"s{k}" for k in loaded]
    text.append(f"    let q = quad({', '.join(['base', *values])});")
    # What lies beyond the tensor is kept.
    inside = f"vec4<bool>({', '.join(f'base + {e}u < {numel}' for e in range(QUAD))})"
    text += [f"    store{k}(base, select(old{k}(base), q.f{k}, {inside}));" for k in outputs]
    return "\n".join([*text, "  }", "}", ""])


def accessors(
    groups: Sequence[int],
    outputs: Sequence[int],
    names: Mapping[int, str],
    places: Mapping[int, Place],
    types: Mapping[int, str],
) -> list[str]:
    """``load3``, ``old3`` (of an output) and ``store3`` of the group of argument 3 that starts at point ``base``."""
    at = {k: f"({places[k].elements[0]}) / {QUAD}u" for k in (*groups, *outputs)}
    text = [f"fn load{k}(base: u32) -> {types[k]} {{ return {names[k]}_load4({at[k]}); }}" for k in groups]
    for k in outputs:
        text.append(f"fn old{k}(base: u32) -> {types[k]} {{ return {names[k]}_load4({at[k]}); }}")
        text.append(f"fn store{k}(base: u32, v: {types[k]}) {{ {names[k]}_store4({at[k]}, v); }}")
    return text


def quad_function(op: Operation, loaded: Sequence[int], groups: Sequence[int], types: Mapping[int, str]) -> list[str]:
    """``quad(base, …)``: the operation at four points."""
    outputs = range(op.n_inputs, len(op.args))
    arguments = [f"a{k}: {types[k] if k in groups else compute_type(op, k)}" for k in loaded]
    text = [f"struct Quad {{ {', '.join(f'f{k}: {types[k]}' for k in outputs)} }}"]
    text.append(f"fn quad({', '.join(['base: u32', *arguments])}) -> Quad {{")
    text += evaluate([[f"a{k}.{lane}" if k in groups else f"a{k}" for lane in LANES] for k in loaded], "base")
    return [*text, f"  return Quad({', '.join(vector(op, k) for k in outputs)});", "}"]
