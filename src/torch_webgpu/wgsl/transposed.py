"""Pointwise kernels of inputs that lie across their outputs: tiles of them are turned in workgroup memory.

Along the innermost dimension of the output, ``n``, such an input steps far; along another one, ``m``, it does not.
A workgroup takes TILE by TILE points of the two: its threads read the input along ``m`` and, after a barrier, compute
and store four points each along ``n``, so that both go through memory in order. On an H200 a transposed copy reaches
3.5 TB/s, point by point 1.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Expr, Operation
from torch_webgpu.layout import Shape

from .quads import LANES, QUAD, Place, compute_type, evaluate, load, point_function, store_whole

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


def turn(op: Operation, sizes: Shape, strides: Sequence[Shape]) -> Turn | None:
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


@dataclass(frozen=True)
class Turned:
    """A turned input: its binding, the WGSL of its element number at the tile's corner and of its step along ``n``.

    ``fours``: four elements along ``m`` are a group of four of the buffer.
    """

    name: str
    corner: str
    step: str
    fours: bool


def in_tile(op: Operation, k: int) -> tuple[str, str, str]:
    """The type that an input's elements have in workgroup memory, and templates of the ways there and back.

    Not bool: NVIDIA's driver gives back something else than was stored.
    """
    kind = compute_type(op, k)
    return ("u32", "select(0u, 1u, {})", "({} != 0u)") if kind == "bool" else (kind, "{}", "{}")


def stage(op: Operation, k: int, turned: Turned) -> list[str]:
    """Statements that put the workgroup's tile of input ``k`` into workgroup memory, four elements a thread."""
    _, put, _ = in_tile(op, k)
    at = f"{turned.corner} + line * {turned.step} + run"
    inside = "n0 + line < n && m0 + run < m"
    if turned.fours:
        text = [f"  if ({inside}) {{", f"    let w{k} = {turned.name}_load4(({at}) / {QUAD}u);"]
        text += [f"    tile{k}[slot + {e}u] = {put.format(f'w{k}.{lane}')};" for e, lane in enumerate(LANES)]
        return [*text, "  }"]
    values = [put.format(f"{turned.name}_load({at} + {e}u)") for e in range(QUAD)]
    return [
        f"  if (n0 + line < n && m0 + run + {e}u < m) {{ tile{k}[slot + {e}u] = {value}; }}"
        for e, value in enumerate(values)
    ]


def transposed_text(
    op: Operation,
    roots: Sequence[Expr],
    names: Mapping[int, str],
    turned: Mapping[int, Turned],
    places: Mapping[int, Place],
    scalars: Mapping[int, str],
    main: Sequence[str],
    corner: Sequence[str],
) -> str:
    """The kernel's text. ``main`` opens the entry point with the number ``group`` of the workgroup.

    ``corner``: statements that declare the sizes ``n`` and ``m``, the tile's first point ``n0``, ``m0`` along them and
    the coordinates of the other dimensions, and return if there is no such tile. ``places`` are those of the point
    ``cn``, ``cm``.
    """
    function, loaded = point_function(op, roots, scalars)
    text = [f"var<workgroup> tile{k}: array<{in_tile(op, k)[0]}, {TILE * PITCH}>;" for k in turned]
    text += [*function, *main, *corner]
    text += [f"  let line = lid / {TILE // QUAD}u;", f"  let run = {QUAD}u * (lid % {TILE // QUAD}u);"]
    text.append(f"  let slot = line * {PITCH}u + run;")
    for k, where in turned.items():
        text += stage(op, k, where)
    text += ["  workgroupBarrier();", "  let cn = n0 + run;", "  let cm = m0 + line;"]
    text.append("  if (cn >= n || cm >= m) { return; }")
    lanes = []
    for k in loaded:
        if k in turned:
            lanes.append([in_tile(op, k)[2].format(f"tile{k}[(run + {e}u) * {PITCH}u + line]") for e in range(QUAD)])
            continue
        declared, values = load(k, names[k], places[k])
        text += declared
        lanes.append(values)
    text += evaluate(lanes, "0u")
    for k in range(op.n_inputs, len(op.args)):
        text += store_whole(op, k, names[k], places[k])
    return "\n".join([*text, "}", ""])
