"""The forward kernel of embedding bags."""

from __future__ import annotations

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import arithmetic, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Binding, Kernel, Param
from torch_webgpu.wgsl.launch import ERRORS, Launch, Lowered, Source, Value, grid_for

SUM, MEAN, MAX = 0, 1, 2
NONE = 0xFFFFFFFF


def lower_embedding_bag(
    op: Operation, alias: tuple[int, ...], target: Target, mode: int, padding: int, weighted: bool
) -> Lowered:
    """For arguments (weight (rows, features), indices (n), offsets, [sample weights (n),] output (bags, features),
    bag sizes (bags), rows of the maxima (bags, features)); all but the weight contiguous. ``padding`` < 0: none.
    """
    names = ("weight", "indices", "offsets", *(["sample"] if weighted else []), "output", "bag_size", "largest")
    specs = dict(zip(names, op.args, strict=True))
    written = ("output", "bag_size", "largest")
    kept = [name for name in names if name != "largest" or mode == MAX]
    bindings = tuple(Binding(name, specs[name].dtype, "read_write" if name in written else "read") for name in kept)
    bindings += (ERROR_FLAGS,)
    order = (*(names.index(name) for name in kept), ERRORS)
    params: dict[str, Value] = {f"{name}_offset": Source("offset", names.index(name)) for name in kept}
    weight = specs["weight"]
    params |= {
        "op": op.id,
        "rows": weight.shape[0],
        "features": weight.shape[1],
        "row_stride": weight.strides[0],
        "feature_stride": weight.strides[1],
        "n": specs["indices"].shape[0],
        "offsets": specs["offsets"].shape[0],
        "bags": specs["output"].shape[0],
        "padding": padding if padding >= 0 else NONE,
    }
    index, offset = BY_NAME[specs["indices"].dtype].kind, BY_NAME[specs["offsets"].dtype].kind
    sample = "sample_load(P.sample_offset + i)" if weighted else "T(1.0)"
    index_at = f"checked_index_{index}(P.op, indices_load(P.indices_offset + i), P.rows)"
    prelude = [
        arithmetic(weight.dtype, "truediv"),
        f"const MODE = {mode}u;",
        f"fn index_at(i: u32) -> u32 {{ return {index_at}; }}",
        f"fn offset_at(bag: u32) -> u32 {{ return min(P.n, "
        f"checked_index_{offset}(P.op, offsets_load(P.offsets_offset + bag), P.n + 1u)); }}",
        f"fn sample_weight(i: u32) -> T {{ return {sample}; }}",
    ]
    text = wgsl_source("indexing/embedding_bag")
    if mode != MAX:
        text = "\n".join(line for line in text.splitlines() if "largest_store" not in line)
    kernel = Kernel(
        "embedding_bag", "\n".join([*prelude, text]), bindings, tuple(Param(p) for p in params), trusted=True
    )
    threads = specs["output"].shape[0] * weight.shape[1]
    return Lowered((Launch(kernel, order, tuple(params.values()), grid_for(threads)),))
