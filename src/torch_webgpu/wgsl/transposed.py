"""Pointwise kernels of inputs that lie across their outputs: tiles of them are turned in workgroup memory.

Along the innermost dimension of the output, ``n``, such an input steps far; along another one, ``m``, it does not.
A workgroup takes TILE by TILE points of the two: its threads read the input along ``m`` and, after a barrier, compute
and store four points each along ``n``, so that both go through memory in order. On an H200 a transposed copy reaches
3.5 TB/s, point by point 1.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.layout import Shape

from .indexing import GROUPS, LANES, QUAD, split_number
from .launch import WORKGROUP, Launch
from .quads import QuadWriter, evaluate, numbered

TILE = 32
PITCH = TILE + 1
"""Elements from one line of a tile to the next: one more than it has, so that reading across hits every bank."""
MAX_TURNED = 3
"""Inputs turned at most: what fits into the 16 KiB of workgroup memory that every adapter has."""
NARROW = TILE // 2
"""Dimensions shorter than this would leave most of a tile empty."""


@dataclass(frozen=True)
class Turn:
    """Which dimension is ``m`` and which inputs are turned. ``n`` is the last dimension."""

    m: int
    inputs: tuple[int, ...]


def find_turn(op: Operation, sizes: Shape, strides: Sequence[Shape]) -> Turn | None:
    """How to turn the inputs that lie across the iteration space; None if there are none or a tile would be empty."""
    if len(sizes) < 2 or sizes[-1] < NARROW:
        return None
    across = [
        (k, d)
        for k, spec in enumerate(op.inputs)
        for d in range(len(sizes) - 1)
        if strides[k][-1] > 1 and strides[k][d] == 1 and sizes[d] >= NARROW and BY_NAME[spec.dtype].itemsize <= 4
    ]
    if not across:
        return None
    m = across[0][1]
    return Turn(m, tuple([k for k, d in across if d == m][:MAX_TURNED]))


def in_tile(kind: str) -> tuple[str, str, str]:
    """The type that elements of type ``kind`` have in workgroup memory, and templates of the ways there and back.

    Not bool: NVIDIA's driver gives back something else than was stored.
    """
    return ("u32", "select(0u, 1u, {})", "({} != 0u)") if kind == "bool" else (kind, "{}", "{}")


def build_transposed(writer: QuadWriter, turn: Turn) -> Launch:
    """The kernel of a pointwise operation some of whose inputs lie across its outputs."""
    indexing, params = writer.indexing, writer.params
    sizes, last, m = indexing.sizes, indexing.rank - 1, turn.m
    n_tiles, m_tiles = (-(-sizes[d] // TILE) for d in (last, m))
    others = [d for d in range(indexing.rank) if d not in (last, m)]
    outer = {d: f"c{d}" for d in others}
    slices = prod(sizes[d] for d in others)
    corner = [
        f"  let n = {params.add('n', sizes[last])};",
        f"  let m = {params.add('m', sizes[m])};",
        f"  let n0 = {TILE}u * (group % {params.add('n_tiles', n_tiles)});",
        "  let rest = group / P.n_tiles;",
        f"  let m0 = {TILE}u * (rest % {params.add('m_tiles', m_tiles)});",
        f"  if (rest >= P.m_tiles * {params.add('slices', slices)}) {{ return; }}",
    ]
    if others:
        axes = [(f"c{d}", f"r{d}", params.add(f"n{d}", sizes[d])) for d in reversed(others[1:])]
        corner += split_number("(rest / P.m_tiles)", axes, f"c{others[0]}")
    staged = [line for k in turn.inputs for line in stage(writer, turn, k, outer)]
    first = {**outer, m: "cm", last: "cn"}
    quads = {k: indexing.quad(k, writer.op.args[k], first) for k in writer.used if k not in turn.inputs}
    text = [f"var<workgroup> tile{k}: array<{in_tile(writer.types[k])[0]}, {TILE * PITCH}>;" for k in turn.inputs]
    text += [*writer.point, *GROUPS, *corner]
    text += [f"  let line = lid / {TILE // QUAD}u;", f"  let run = {QUAD}u * (lid % {TILE // QUAD}u);"]
    text += [f"  let slot = line * {PITCH}u + run;", *staged, "  workgroupBarrier();"]
    text += ["  let cn = n0 + run;", "  let cm = m0 + line;", "  if (cn >= n || cm >= m) { return; }"]
    lanes = []
    for k in writer.loaded:
        if k in turn.inputs:
            back = in_tile(writer.types[k])[2]
            lanes.append([back.format(f"tile{k}[(run + {e}u) * {PITCH}u + line]") for e in range(QUAD)])
            continue
        lines, values = writer.load(k, quads[k])
        text += lines
        lanes.append(values)
    text += evaluate(lanes, "0u")
    for k in writer.outputs:
        if quads[k].fours:
            text.append(f"  {writer.names[k]}_store4({quads[k].group}, {writer.vector(k)});")
        else:
            text += [f"  {writer.names[k]}_store({at}, q{e}.y{k});" for e, at in numbered(quads[k])]
    return writer.launch(text, n_tiles * m_tiles * slices * WORKGROUP)


def stage(writer: QuadWriter, turn: Turn, k: int, outer: Mapping[int, str]) -> list[str]:
    """Statements that put the workgroup's tile of input ``k`` into workgroup memory, four elements a thread.

    ``outer``: the coordinates of the dimensions beside ``m`` and ``n``.
    """
    indexing, last, name = writer.indexing, writer.indexing.rank - 1, writer.names[k]
    corner = [indexing.offset(k, k), *indexing.terms(k, {**outer, last: "n0"}), "m0"]
    at = f"{' + '.join(corner)} + line * {indexing.stride(k, last)} + run"
    _, put, _ = in_tile(writer.types[k])
    if indexing.in_fours(k, writer.op.args[k], turn.m):
        text = ["  if (n0 + line < n && m0 + run < m) {", f"    let w{k} = {name}_load4(({at}) / {QUAD}u);"]
        text += [f"    tile{k}[slot + {e}u] = {put.format(f'w{k}.{lane}')};" for e, lane in enumerate(LANES)]
        return [*text, "  }"]
    values = [put.format(f"{name}_load({at} + {e}u)") for e in range(QUAD)]
    return [
        f"  if (n0 + line < n && m0 + run + {e}u < m) {{ tile{k}[slot + {e}u] = {value}; }}"
        for e, value in enumerate(values)
    ]
