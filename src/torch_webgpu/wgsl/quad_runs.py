"""Pointwise kernels of large tensors of 8- and 16-bit elements: a thread takes RUN groups of four, far apart.

A group of four is 8 bytes then, and a thread that moves one leaves memory idle: on an H200 a bfloat16 GELU reaches
2.3 TB/s with one group a thread, 2.8 with four. All loads come first, so that all are in flight.
"""

from __future__ import annotations

from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import walk

from .expr import struct_function
from .indexing import GROUPS, LANES, QUAD, all_inside
from .launch import WORKGROUP, Launch
from .quads import QuadWriter, evaluate

RUN = 4
MIN_NUMEL = 1 << 22
"""Elements from which on a large GPU is busy with a quarter of the threads."""
MAX_EXPRESSIONS = 64
"""The kernel has the operation's code RUN + 1 times."""


def takes_runs(writer: QuadWriter) -> bool:
    """Whether the operation should be written like this: every argument lies in iteration order or is a number,
    and no coordinate is asked for.
    """
    indexing, args = writer.indexing, writer.op.args
    layouts = {k: indexing.layout(k) for k in writer.used}
    simple = all(
        layout == "scalar" or (layout == "linear" and indexing.in_fours(k, args[k])) for k, layout in layouts.items()
    )
    narrow = all(BY_NAME[args[k].dtype].itemsize <= 2 for k in writer.used)
    small = sum(1 for _ in walk(writer.roots)) <= MAX_EXPRESSIONS
    return not writer.placed and simple and narrow and small and prod(indexing.sizes) >= MIN_NUMEL


def build_runs(writer: QuadWriter, numel: str) -> Launch:
    """The kernel. ``base`` is the number of a group's first point."""
    indexing, names, outputs = writer.indexing, writer.names, writer.outputs
    offsets = {k: indexing.offset(k, k) for k in writer.used}
    types = {k: f"vec4<{writer.types[k]}>" for k in writer.used}
    groups = [k for k in writer.loaded if indexing.layout(k) == "linear"]
    text = writer.point.copy()
    # Functions of the group of argument 3 that starts at point `base`: `load3`, of an output `old3` and `store3`.
    at = {k: f"({offsets[k]} + base) / {QUAD}u" for k in writer.used}
    text += [f"fn load{k}(base: u32) -> {types[k]} {{ return {names[k]}_load4({at[k]}); }}" for k in groups]
    for k in outputs:
        text.append(f"fn old{k}(base: u32) -> {types[k]} {{ return {names[k]}_load4({at[k]}); }}")
        text.append(f"fn store{k}(base: u32, v: {types[k]}) {{ {names[k]}_store4({at[k]}, v); }}")
    arguments = ["base: u32", *(f"a{k}: {types[k] if k in groups else writer.types[k]}" for k in writer.loaded)]
    lanes = [[f"a{k}.{lane}" if k in groups else f"a{k}" for lane in LANES] for k in writer.loaded]
    fields, vectors = [f"y{k}: {types[k]}" for k in outputs], [writer.vector(k) for k in outputs]
    text += struct_function(f"quad({', '.join(arguments)})", "Quad", fields, evaluate(lanes, "base"), vectors)
    text += [*GROUPS, f"  let first = group * {RUN * QUAD * WORKGROUP}u;"]
    text += [f"  let s{k} = {names[k]}_load({offsets[k]});" for k in writer.loaded if k not in groups]
    text.append(f"  if (first + {RUN * QUAD * WORKGROUP}u <= {numel}) {{")
    text += [f"    let base{u} = first + ({u * WORKGROUP}u + lid) * {QUAD}u;" for u in range(RUN)]
    text += [f"    let v{k}_{u} = load{k}(base{u});" for u in range(RUN) for k in groups]
    for u in range(RUN):
        values = [f"v{k}_{u}" if k in groups else f"s{k}" for k in writer.loaded]
        text.append(f"    let q{u} = quad({', '.join([f'base{u}', *values])});")
    text += [f"    store{k}(base{u}, q{u}.y{k});" for u in range(RUN) for k in outputs]
    text += ["    return;", "  }"]
    text.append(f"  for (var base = first + lid * {QUAD}u; base < {numel}; base += {QUAD * WORKGROUP}u) {{")
    values = [f"load{k}(base)" if k in groups else f"s{k}" for k in writer.loaded]
    text.append(f"    let q = quad({', '.join(['base', *values])});")
    # What lies beyond the tensor is kept.
    text += [f"    store{k}(base, select(old{k}(base), q.y{k}, {all_inside('base', numel)}));" for k in outputs]
    return writer.launch([*text, "  }"], -(-prod(indexing.sizes) // (QUAD * RUN)))
