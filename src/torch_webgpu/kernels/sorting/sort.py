"""Sorting rows: tiles in workgroup memory, then merges; for the first few of a long row, tiles that drop the rest; or,
where that has fewer passes, by radix (:mod:`.radix`).

Keys and places travel in temporaries; the results are the places that elements had, as int64, and values if they are of
four bytes or more. Stable, NaN last (first when descending). The merges follow Green, McColl and Bader's merge path.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding, Kernel, Param
from torch_webgpu.wgsl.launch import Launch, Lowered, Source, Value, grid_for

from .radix import RadixSort, passes

BLOCK = 1024
THREADS = 256
MANY = 1 << 19
"""Elements whose moves take longer than a launch."""
MAX_KEEP = BLOCK // 2
"""Up to so many elements of a row are selected tile by tile; each pass must leave at most half."""

_KEYS = {
    "u32": """alias Key = u32;
fn before(a: Key, b: Key) -> bool { return a < b; }
fn last_key() -> Key { return 0xffffffffu; }
fn flipped(key: Key) -> Key { return ~key; }""",
    "i64": """alias Key = I64;
fn before(a: Key, b: Key) -> bool { return i64_lt(a, b); }
fn last_key() -> Key { return i64_make(0xffffffffu, 0x7fffffffu); }
fn flipped(key: Key) -> Key { return i64_not(key); }""",
}
_PAIR = "struct Pair { key: Key, place: u32 }"
_LOAD_VALUES = "fn load_pair(i: u32, place: u32) -> Pair {{ return Pair({key}, place); }}"
_LOAD_PAIRS = "fn load_pair(i: u32, place: u32) -> Pair { return Pair(keys_in_load(i), places_in_load(i)); }"
_STORE_PAIRS = (
    "fn store_pair(row: u32, i: u32, key: Key, place: u32) { keys_out_store(i, key); places_out_store(i, place); }"
)
_STORE_PLACE = "indices_store(P.indices_offset + i, i64_from_u32(place));"
_STORE_VALUE = "values_store(P.values_offset + i, x_load(P.x_offset + row * P.x_n + place));"


@dataclass(frozen=True)
class Pairs:
    """Where keys and places lie between launches: temporaries, by their binding index."""

    keys: int
    places: int

    def bindings(self, direction: str, key: str) -> tuple[Binding, ...]:
        access = "read" if direction == "in" else "read_write"
        return Binding(f"keys_{direction}", key, access), Binding(f"places_{direction}", "u32", access)  # type: ignore[arg-type]


VALUES = Pairs(0, 0)
RESULTS = Pairs(1, 1)
"""The operation's arguments, as a source and as a sink."""


@dataclass(frozen=True)
class Sorter:
    """Builds the launches of one sort of a (rows, n) matrix of ``dtype``, whose arguments are values, the first values
    of each row in order if ``has_values``, and their places.
    """

    dtype: str
    descending: bool
    rows: int
    n: int
    has_values: bool

    @property
    def n_args(self) -> int:
        return 2 + self.has_values

    @property
    def key(self) -> str:
        return "i64" if BY_NAME[self.dtype].kind in "ld" else "u32"

    def key_bytes(self, count: int) -> int:
        return self.rows * count * BY_NAME[self.key].itemsize

    def place_bytes(self, count: int) -> int:
        return self.rows * count * 4

    def _launch(self, name: str, source: Pairs, sink: Pairs, sizes: dict[str, int], tiles: int) -> Launch:
        """One launch over ``tiles`` workgroups: prelude and bindings follow from where it reads and writes."""
        prelude = [_KEYS[self.key], _PAIR]
        bindings: tuple[Binding, ...] = ()
        order: tuple[int, ...] = ()
        values: dict[str, Value] = {**sizes, "rows": self.rows}
        bits = "i64" if self.dtype == "f64" else self.dtype
        if source is VALUES:
            key = f"key_{BY_NAME[self.dtype].kind}(x_load(P.x_offset + i))"
            prelude.append(_LOAD_VALUES.format(key=f"flipped({key})" if self.descending else key))
        else:
            prelude += [_LOAD_PAIRS] if name == "block_sort" else []
            bindings, order = source.bindings("in", self.key), (source.keys, source.places)
        if source is VALUES or (sink is RESULTS and self.has_values):
            bindings, order = (*bindings, Binding("x", bits)), (*order, 0)
            values["x_offset"] = Source("offset", 0)
        if sink is RESULTS:
            stores = [_STORE_PLACE]
            if self.has_values:
                stores.append(_STORE_VALUE)
                bindings, order = (*bindings, Binding("values", bits, "read_write")), (*order, 1)
                values.update(x_n=self.n, values_offset=Source("offset", 1))
            prelude.append(f"fn store_pair(row: u32, i: u32, key: Key, place: u32) {{ {' '.join(stores)} }}")
            bindings += (Binding("indices", "i64", "read_write"),)
            order += (self.n_args - 1,)
            values["indices_offset"] = Source("offset", self.n_args - 1)
        else:
            prelude.append(_STORE_PAIRS)
            bindings += sink.bindings("out", self.key)
            order += (sink.keys, sink.places)
        body = "\n".join([*prelude, wgsl_source("sorting/merge_path"), wgsl_source(f"sorting/{name}")])
        params = tuple(Param(p) for p in values)
        kernel = Kernel(name, body, bindings, params, workgroup_size=(THREADS, 1, 1), trusted=True)
        return Launch(kernel, order, tuple(values.values()), grid_for(tiles * THREADS))

    def tiles(self, source: Pairs, sink: Pairs, n: int, keep: int, width: int) -> Launch:
        """Sorts tiles of rows of ``n`` and keeps the first ``keep`` of each, in rows of ``width``."""
        tile = max(4, min(BLOCK, 1 << (n - 1).bit_length()))
        per_row = -(-n // tile)
        sizes = {"n": n, "tile": tile, "tiles": per_row, "keep": keep, "width": width}
        return self._launch("block_sort", source, sink, sizes, -(-self.rows * per_row * tile // BLOCK))

    def merge(self, source: Pairs, sink: Pairs, n: int, run: int, width: int) -> Launch:
        """Merges runs of ``run`` in rows of ``n``; keeps the first ``width`` of each row."""
        per_row = -(-n // BLOCK)
        # Each round of the search leaves at most one part in 128 of what may be a run's length.
        rounds = -(-run.bit_length() // 7)
        sizes = {"n": n, "run": run, "tiles": per_row, "width": width, "rounds": rounds}
        return self._launch("merge", source, sink, sizes, self.rows * per_row)


def lower_sort(op: Operation, alias: tuple[int, ...], target: Target, descending: bool) -> Lowered:
    """For arguments (contiguous values (rows, n), contiguous int64 indices (rows, k)): the first k places in order.

    Between them may be values (rows, k), of a dtype of four bytes or more, that become those at the places.
    """
    values, indices = op.args[0], op.args[-1]
    (rows, n), k = values.shape, indices.shape[1]
    has_values = len(op.args) == 3
    sorter = Sorter(values.dtype, descending, rows, n, has_values)
    if n <= BLOCK:
        return Lowered((sorter.tiles(VALUES, RESULTS, n, k, k),))
    if k <= MAX_KEEP:
        return selection(sorter, n, k)
    if by_radix(values.dtype, rows, n):
        return RadixSort(values.dtype, descending, rows, n, k, has_values, target).lowered()
    return merge_sort(sorter, n, k)


def by_radix(dtype: str, rows: int, n: int) -> bool:
    """Whether a radix sort is faster than merges. On an H200 one of its passes takes as long as 1.5 merges; of few
    elements, where launches are what takes time, as 3.
    """
    merges = (-(-n // BLOCK) - 1).bit_length()
    return passes(dtype) * (1.5 if rows * n >= MANY else 3) < merges + 1


def selection(sorter: Sorter, n: int, k: int) -> Lowered:
    """Each pass sorts tiles and keeps the first k of each, until one tile is left."""
    temporaries: list[int] = []
    launches: list[Launch] = []
    source = VALUES
    while n > BLOCK:
        width = -(-n // BLOCK) * k
        sink = Pairs(*(sorter.n_args + len(temporaries) + part for part in range(2)))
        temporaries += [sorter.key_bytes(width), sorter.place_bytes(width)]
        launches.append(sorter.tiles(source, sink, n, k, width))
        source, n = sink, width
    launches.append(sorter.tiles(source, RESULTS, n, k, k))
    return Lowered(tuple(launches), tuple(temporaries))


def merge_sort(sorter: Sorter, n: int, k: int) -> Lowered:
    """Sorted tiles, then merges back and forth between two pairs of temporaries; the last one stores the results."""
    first = sorter.n_args
    source, sink = Pairs(first, first + 1), Pairs(first + 2, first + 3)
    launches = [sorter.tiles(VALUES, source, n, BLOCK, n)]
    run = BLOCK
    while run < n:
        last = 2 * run >= n
        launches.append(sorter.merge(source, RESULTS if last else sink, n, run, k if last else n))
        source, sink, run = sink, source, 2 * run
    return Lowered(tuple(launches), (sorter.key_bytes(n), sorter.place_bytes(n)) * 2)
