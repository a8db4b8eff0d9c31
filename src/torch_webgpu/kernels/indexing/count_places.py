"""How often each of some places is named: histograms of whole numbers, counted in the memory of workgroups."""

from __future__ import annotations

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.builder import per_point
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, Lowered, ParamList, Source

ITEMS = 8
"""Places that a thread loads at once."""
SHORTEST = WORKGROUP * ITEMS
MOST_BYTES = 16384
"""Of a workgroup's memory for its bins: more would leave room for few workgroups at once."""
PLACES_PER_BIN = 8
"""A workgroup counts at least so many places for each bin, as each of its bins is added to everybody's."""


def lower_count(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """For arguments (contiguous places (n), of an integer dtype, counts (bins), int32 or int64): how often each number
    below ``bins`` is among the places. What is none of them is counted nowhere.
    """
    places, counts = op.args
    n, bins = places.shape[0], counts.shape[0]
    room = max(256, 1 << (bins - 1).bit_length())  # one kernel for many numbers of bins
    is_own = 4 * room <= min(target.workgroup_bytes, MOST_BYTES)
    length = max(SHORTEST, PLACES_PER_BIN * bins) if is_own else SHORTEST
    length = -(-length // WORKGROUP) * WORKGROUP
    params = ParamList()
    first = params.add("places_offset", Source("offset", 0))
    for name, size in (("n", n), ("bins", bins), ("length", length)):
        params.add(name, size)
    load = f"places_load({first} + i)"
    is_long = BY_NAME[places.dtype].itemsize == 8
    value = "select(0xffffffffu, i64_lo(place), i64_hi(place) == 0u)" if is_long else "u32(place)"
    place_at = f"fn place_at(i: u32) -> u32 {{ let place = {load}; return {value}; }}"
    text = render("indexing/count_places", is_own=is_own, room=room, threads=WORKGROUP, items=ITEMS)
    bindings = (Binding("places", places.dtype), Binding("totals", "u32", "read_write", "atomic"))
    count = params.launch("count_places", f"{place_at}\n{text}", bindings, (0, 2), -(-n // length) * WORKGROUP)
    return Lowered((count, _converted(counts.dtype, bins)), (4 * bins,), cleared=(0,))


def _converted(dtype: str, bins: int) -> Launch:
    """Counts as they are asked for."""
    params = ParamList()
    numel, first = params.add("bins", bins), params.add("counts_offset", Source("offset", 1))
    value = "i64_from_u32(totals_load(i))" if BY_NAME[dtype].itemsize == 8 else "i32(totals_load(i))"
    text = per_point([f"  counts_store({first} + i, {value});"], numel)
    bindings = (Binding("totals", "u32"), Binding("counts", dtype, "read_write"))
    return params.launch("counts", text, bindings, (2, 1), bins)
