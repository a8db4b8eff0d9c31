"""Binary search in sorted rows."""

from __future__ import annotations

from math import prod

from torch_webgpu.dtypes import BY_NAME, KINDS
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Binding, Kernel, Param
from torch_webgpu.wgsl.launch import ERRORS, Launch, Lowered, Source, Value, grid_for

_COMPARE = {
    "b": ("(a || !b)", "(a && !b)"),
    "f": ("(!isnan_f(a) && !isnan_f(b) && a >= b)", "(!isnan_f(a) && !isnan_f(b) && a > b)"),
    "d": ("(a == a && b == b && a >= b)", "(a == a && b == b && a > b)"),
    "l": ("i64_ge(a, b)", "i64_gt(a, b)"),
}
_BY_SORTER = "row + min(checked_index_l(P.op, sorter_load(P.sorter_offset + row + i), P.n), P.n - 1u)"
_STORE = {"l": "i64_from_u32(place)", "i": "i32(place)"}


def lower_search(op: Operation, alias: tuple[int, ...], target: Target, right: bool) -> Lowered:
    """For contiguous arguments (sequence (..., n), values (..., m), [int64 sorter (..., n),] int32 or int64 places).

    A sequence of one dimension serves every row of values.
    """
    sequence, values, places = op.args[0], op.args[1], op.args[-1]
    sorted_by = len(op.args) == 4
    kind = BY_NAME[sequence.dtype].kind
    type_ = KINDS[kind].wgsl
    at_least, more_than = _COMPARE.get(kind, ("(a >= b)", "(a > b)"))
    element = _BY_SORTER if sorted_by else "row + i"
    store = _STORE[BY_NAME[places.dtype].kind]
    prelude = [
        f"fn at_least(a: {type_}, b: {type_}) -> bool {{ return {at_least}; }}",
        f"fn more_than(a: {type_}, b: {type_}) -> bool {{ return {more_than}; }}",
        f"fn sequence(row: u32, i: u32) -> {type_} {{ return sequence_load(P.sequence_offset + {element}); }}",
        f"fn store_place(i: u32, place: u32) {{ places_store(P.places_offset + i, {store}); }}",
    ]
    names = ("sequence", "values", "sorter", "places") if sorted_by else ("sequence", "values", "places")
    bindings = tuple(
        Binding(name, spec.dtype, "read_write" if name == "places" else "read")
        for name, spec in zip(names, op.args, strict=True)
    )
    n = sequence.shape[-1]
    params: dict[str, Value] = {f"{name}_offset": Source("offset", k) for k, name in enumerate(names)}
    params |= {
        "numel": prod(values.shape),
        "per_row": values.shape[-1] if values.shape else 1,
        "row_stride": n if len(sequence.shape) > 1 else 0,
        "n": n,
        "right": int(right),
    }
    body = "\n".join([*prelude, wgsl_source("indexing/search")])
    order = tuple(range(len(names)))
    if sorted_by:
        bindings += (ERROR_FLAGS,)
        order += (ERRORS,)
        params["op"] = op.id
    kernel = Kernel("search", body, bindings, tuple(Param(p) for p in params), trusted=True)
    launch = Launch(kernel, order, tuple(params.values()), grid_for(prod(values.shape)))
    return Lowered((launch,))
