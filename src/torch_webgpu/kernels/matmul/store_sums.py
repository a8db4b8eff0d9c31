"""How the sums of a product are stored: finished, or, of one that is split along its inner dimension, as partial sums
that one kernel leaves and the next adds up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_webgpu.dtypes import BY_NAME, KINDS
from torch_webgpu.kernels.points import Draft, PointKernel, wgsl_source
from torch_webgpu.wgsl.kernel import Access, Binding

from .epilogue import NOT_TOGETHER, SUM, Epilogue

STORE_PARTIAL = f"""fn finish_one({SUM}, v: T) {{
  partials_store(((slice * P.splits + split) * P.m + m) * P.n + n, v);
}}"""
STORE_PARTIALS = f"""fn finish({SUM}, v: vec4<T>) {{
  if (m >= P.m || n >= P.n) {{ return; }}
  partials_store4((((slice * P.splits + split) * P.m + m) * P.n + n) / 4u, v);
}}"""


def partials_together(n: int, most: int = 4) -> int:
    """How many of a row of ``n`` partial sums are stored at once, up to ``most``: four or one."""
    return 4 if most >= 4 and n % 4 == 0 else 1


def accumulator(dtype: str) -> str:
    """The dtype in which products of ``dtype`` are summed up."""
    return BY_NAME[dtype].accumulator


def partials_binding(kind: str, access: Access) -> Binding:
    """The buffer of partial sums, laid out (slice, split, m, n), of a product of this compute kind."""
    return Binding("partials", KINDS[kind].accumulator, access)


def store_sums(
    kernel: Draft,
    epilogue: Epilogue | None,
    kind: str,
    partials: int,
    place: Sequence[str],
    widths: Mapping[int, int] = NOT_TOGETHER,
) -> None:
    """Gives ``kernel`` what :mod:`.epilogue` says, and the functions ``place`` that this asks for; without an epilogue
    one that leaves partial sums in argument ``partials``. ``widths``: by argument, how many neighbours of an output or
    of the partial sums are stored at once.
    """
    if epilogue is None:
        kernel.binding(partials_binding(kind, "read_write"), partials)
        kernel.add(STORE_PARTIALS if widths.get(partials) == 4 else STORE_PARTIAL)
        return
    bindings, stores = epilogue.stores(kernel.params, widths)
    for binding, arg in (*epilogue.inputs(), *bindings):
        kernel.binding(binding, arg)
    kernel.add(*place, *epilogue.text(kernel.params, widths), *stores)


def add_partials(kernel: PointKernel, arg: int, kind: str, slices: int, splits: int, m: int, n: int) -> int:
    """Gives ``kernel`` the function ``split_total(slice, m, n)`` over temporary ``arg``; returns its size in bytes."""
    kernel.binding(partials_binding(kind, "read"), arg)
    for name, value in (("splits", splits), ("m", m), ("n", n)):
        kernel.param(name, value)
    kernel.add(wgsl_source("matmul/split_sum"))
    return slices * splits * m * n * BY_NAME[KINDS[kind].accumulator].itemsize
