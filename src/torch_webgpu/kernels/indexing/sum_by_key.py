"""Sums of rows by key: points are put in the order of their keys, then rows are added in that order, without atomics.

Float atomics are loops of compare and exchange, one for each element, and wait for each other where many points name an
element. In the order of keys the rows of a sum lie after each other, so that a thread adds them in a register.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.builder import bind, per_point
from torch_webgpu.wgsl.indexing import QUAD
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Binding, Kernel, Mode
from torch_webgpu.wgsl.launch import ERRORS, Launch, Lowered, ParamList, Source, grid_for

from .indexed import IndexGeometry, Walk

MOST_INDICES = 4
"""Index tensors of :func:`lower_rank`, which binds four buffers beside them, of the eight that WebGPU promises."""
UNROLLED = 8
"""Rows that a thread loads before it adds them: it waits for memory once for so many."""
SHORTEST, LONGEST = 16, 64
"""Rows of a chunk. Of each chunk up to two parts are kept, so that ever shorter ones move ever more bytes."""
THREADS = 1 << 18
"""As many as a large GPU holds at once: chunks are so long that there are not many more of them."""


def lower_rank(op: Operation, alias: tuple[int, ...], target: Target, geometry: IndexGeometry) -> Lowered:
    """For arguments (counts (count + 2), index tensors…, counts, keys (n), ranks (n)), all but the index tensors int32
    and contiguous: gives each point of ``geometry`` the number, from 1 on, of what it names, 0 if an index is out of
    range, adds the points with each key to ``counts[key + 1]``, and numbers those, from 0 on, as they come.

    The geometry's data are what has the numbers: it lies nowhere.
    """
    walk = Walk(geometry, tuple(range(len(geometry.shape))), op)
    written = op.n_inputs
    modes: dict[int, Mode] = {written: "atomic", written + 1: "plain", written + 2: "plain"}
    bindings, names, order = bind(op.args, alias, written, modes)
    counts, keys, ranks = (names[written + k] for k in range(3))
    first = walk.indexing.offset(0, 0)
    checks, condition = walk.positions(names, walk.index_elements())
    lines = [
        *walk.coordinates(),
        *checks,
        "  var key = 0u;",
        f"  if ({condition}) {{ key = {walk.data_element(0)} - {first} + 1u; }}",
        f"  {keys}_store({_offset(walk.params, 'keys', written + 1)} + i, i32(key));",
        f"  let rank = {counts}_atomic_add({first} + key + 1u, 1);",
        f"  {ranks}_store({_offset(walk.params, 'ranks', written + 2)} + i, rank);",
    ]
    return walk.launch(per_point(lines, walk.numel), bindings, order, prod(geometry.shape))


def lower_order(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """For contiguous arguments (int32 keys (n), ranks (n), starts, int64 points (n)): puts each point, which is its
    number in the high word and its key in the low one, where the points with its key start, and its rank further.
    """
    params = ParamList()
    numel = params.add("numel", op.args[0].shape[0])
    names = ("keys", "ranks", "starts", "points")
    keys, ranks, starts, points = (_offset(params, name, k) for k, name in enumerate(names))
    bindings = (*(Binding(name, "i32") for name in names[:3]), Binding("points", "i64", "read_write"))
    lines = [
        f"  let key = u32(keys_load({keys} + i));",
        f"  let at = u32(starts_load({starts} + key) + ranks_load({ranks} + i));",
        f"  points_store({points} + at, i64_make(key, i));",
    ]
    return Lowered((params.launch(op.name, per_point(lines, numel), bindings, tuple(range(4)), op.args[0].shape[0]),))


def _offset(params: ParamList, name: str, arg: int) -> str:
    return params.add(f"{name}_offset", Source("offset", arg))


@dataclass(frozen=True)
class Level:
    """A launch of the sums: over ``n`` rows in chunks of ``length``."""

    n: int
    length: int

    @property
    def chunks(self) -> int:
        return -(-self.n // self.length)

    @property
    def slots(self) -> int:
        """Parts of sums that it may leave to the next one."""
        return 2 * self.chunks - 1


def levels(n: int, lanes: int) -> list[Level]:
    """The launches that add ``n`` rows of ``lanes``: the last has one chunk, which leaves nothing."""
    length = LONGEST
    while length > SHORTEST and n > LONGEST and n * lanes < length * THREADS:
        length //= 2
    found = [Level(n, length)]
    while found[-1].chunks > 1:
        found.append(Level(found[-1].slots, LONGEST))
    return found


def moves_in_fours(spec: Spec) -> bool:
    """Whether rows of a matrix can be moved four elements at a time."""
    row, feature = spec.strides
    small = BY_NAME[spec.dtype].itemsize <= QUAD
    return small and spec.aligned and spec.shape[1] % QUAD == 0 and feature == 1 and row % QUAD == 0


def lower_sum_by_key(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """For arguments (target (count, features), rows (n, features), contiguous int64 points (n), target):
    ``target[key - 1] += rows[place]`` for all points, a key in the low word and a place in the high one, in float32,
    rounded once.

    Keys are in order; what has key 0 counts for nothing. A target of a half type can be moved in fours
    (:func:`moves_in_fours`). Each row of the target that has points is read and written once.
    """
    return _lowered(op, None)


def lower_sum_of_gathered(op: Operation, alias: tuple[int, ...], target: Target, geometry: IndexGeometry) -> Lowered:
    """:func:`lower_sum_by_key` of rows that are gathered as they are added, for arguments (target (count, features),
    rows (m, features), points (n), places (n), perhaps factors (n, 1), target): of each point the row that its place
    names, times its factor. ``geometry``: how places name rows.
    """
    return _lowered(op, geometry)


def _lowered(op: Operation, gathered: IndexGeometry | None) -> Lowered:
    written, (n,), features = op.args[-1], op.args[2].shape, op.args[1].shape[1]
    width = 1 if features % QUAD else QUAD
    assert written.dtype == "f32" or moves_in_fours(written), written
    plan = levels(n, features // width)
    launches = [_sum(op, width, plan, k, gathered) for k in range(len(plan))]
    temporaries = [size for level in plan[:-1] for size in (level.slots * features * 4, level.slots * 4)]
    return Lowered(tuple(launches), tuple(temporaries))


def _sum(op: Operation, width: int, plan: list[Level], number: int, gathered: IndexGeometry | None) -> Launch:
    """Launch ``number``: the first reads the operation's rows, each other one the parts that the one before it kept."""
    level, n_args = plan[number], len(op.args)
    written, rows = op.args[-1], op.args[1]
    params = ParamList()
    for name, value in (("n", level.n), ("length", level.length), ("chunks", level.chunks)):
        params.add(name, value)
    lanes = rows.shape[1] // width
    params.add("lanes", lanes)
    vector = "f32" if width == 1 else "vec4<f32>"
    prelude = [f"alias V = {vector};"]
    if number == 0:
        point = f"points_load({_offset(params, 'points', 2)} + i)"
        bindings = [Binding("rows", rows.dtype), Binding("points", "i64")]
        order = [1, 2]
        row, found, factor = "point.y", [], ""
        if gathered is not None:
            row, found = "row", _gather(op, gathered, params)
            bindings.append(Binding("places", op.args[3].dtype))
            order.append(3)
            if op.n_inputs > 4:
                stride = params.add("factors_stride", op.args[4].strides[0])
                factor = f" * factors_load({_offset(params, 'factors', 4)} + point.y * {stride})"
                bindings.append(Binding("factors", op.args[4].dtype))
                order.append(4)
        prelude += [
            f"fn point_at(i: u32) -> vec2<u32> {{ let point = {point}; return vec2(i64_lo(point), i64_hi(point)); }}",
            "fn row_at(point: vec2<u32>, lane: u32) -> V {",
            *found,
            f"  let first = {_element(params, 'rows', 1, rows, row, width)};",
            f"  return {_load('rows', rows, width)}{factor};",
            "}",
        ]
    else:
        bindings = [Binding("parts", "f32"), Binding("names", "u32")]
        order = [n_args + 2 * number - 2, n_args + 2 * number - 1]
        load = "parts_load4" if width == QUAD else "parts_load"
        prelude += [
            "fn point_at(i: u32) -> vec2<u32> { return vec2(names_load(i), i); }",
            "fn row_at(point: vec2<u32>, lane: u32) -> V {",
            "  if (point.x == 0u || point.x >= ABSENT) { return V(); }",
            f"  return {load}(point.y * P.lanes + lane);",
            "}",
        ]
    bindings.append(Binding("sums", written.dtype, "read_write"))
    order.append(n_args - 1)
    prelude += [
        "fn add_to(row: u32, lane: u32, sum: V) {",
        f"  let first = {_element(params, 'sums', n_args - 1, written, 'row', width)};",
        f"  let sums = {_load('sums', written, width)} + sum;",
        *_store("sums", written, width),
        "}",
    ]
    if number + 1 < len(plan):
        bindings += [Binding("kept", "f32", "read_write"), Binding("named", "u32", "read_write")]
        order += [n_args + 2 * number, n_args + 2 * number + 1]
        store = "kept_store4" if width == QUAD else "kept_store"
        keep, name = f"{store}(slot * P.lanes + lane, sum);", "named_store(slot, key);"
    else:
        keep = name = ""
    prelude += [
        f"fn keep(slot: u32, lane: u32, sum: V) {{ {keep} }}",
        f"fn name_slot(slot: u32, key: u32) {{ {name} }}",
    ]
    if number == 0 and gathered is not None:
        bindings.append(ERROR_FLAGS)
        order.append(ERRORS)
    text = "\n".join([*prelude, render("indexing/sum_by_key", unrolled=UNROLLED)])
    kernel = Kernel("sum_by_key", text, tuple(bindings), tuple(params.params), trusted=True)
    return Launch(kernel, tuple(order), tuple(params.values), grid_for(level.chunks * lanes))


def _gather(op: Operation, geometry: IndexGeometry, params: ParamList) -> list[str]:
    """Statements that declare the row which a point's place names; there is nothing of one out of range."""
    (term,), (_, (stride,)) = geometry.terms, geometry.strides
    at = f"{_offset(params, 'places', 3)} + point.y * {params.add('places_stride', stride)}"
    check, kind = "wrapped" if term.wraps else "checked", BY_NAME[op.args[3].dtype].kind
    number, size = params.add("op", op.id), params.add("size", term.size)
    return [
        f"  let row = {check}_index_{kind}({number}, places_load({at}), {size});",
        f"  if (row >= {size}) {{ return V(); }}",
    ]


def _element(params: ParamList, name: str, arg: int, spec: Spec, row: str, width: int) -> str:
    """The number of a lane's first element in row ``row``."""
    offset = _offset(params, name, arg)
    row_stride, step = (params.add(f"{name}_{k}_stride", s) for k, s in zip(("row", "feature"), spec.strides))
    return f"{offset} + {row} * {row_stride} + lane * {width}u * {step}"


def _load(name: str, spec: Spec, width: int) -> str:
    """The elements of a lane from ``first`` on."""
    if width == 1:
        return f"{name}_load(first)"
    if moves_in_fours(spec):
        return f"{name}_load4(first / {QUAD}u)"
    return f"V({', '.join(f'{name}_load(first + {k}u * P.{name}_feature_stride)' for k in range(QUAD))})"


def _store(name: str, spec: Spec, width: int) -> list[str]:
    if width == 1:
        return [f"  {name}_store(first, sums);"]
    if moves_in_fours(spec):
        return [f"  {name}_store4(first / {QUAD}u, sums);"]
    return [f"  {name}_store(first + {k}u * P.{name}_feature_stride, sums.{lane});" for k, lane in enumerate("xyzw")]
