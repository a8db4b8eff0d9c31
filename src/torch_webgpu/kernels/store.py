"""Where the finished sums of a product go: into the output, or into partial sums that a second kernel adds up.

The body declares

* ``fn place(slice: u32, m: u32, n: u32) -> u32``: the element of the output that sum (m, n) of a slice belongs to
* ``fn is_stored(slice: u32, n: u32) -> bool``: whether there is one
* ``fn result(slice: u32, m: u32, n: u32, v: T) -> T``: what becomes of the sum
"""

from __future__ import annotations

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Spec
from torch_webgpu.wgsl.kernel import Access, Binding
from torch_webgpu.wgsl.link import HostCaps

from .points import PointKernel, source

# The dtype that partial sums are kept in, by compute kind.
ACCUMULATOR = {"i": "i32", "u": "u32", "l": "i64", "f": "f32", "d": "f64", "c": "c64"}

_STORE_SUM = """fn finish_one(slice: u32, split: u32, m: u32, n: u32, v: T) {
  if (is_stored(slice, n)) { OUT_store(place(slice, m, n), result(slice, m, n, v)); }
}"""
STORE_PARTIAL = """fn finish_one(slice: u32, split: u32, m: u32, n: u32, v: T) {
  partials_store(((slice * P.splits + split) * P.m + m) * P.n + n, v);
}"""
_FINISH = """fn finish(slice: u32, split: u32, m: u32, n: u32, v: f32) {
  if (m < P.m && n < P.n) { finish_one(slice, split, m, n, v); }
}"""
# Two elements share a word: n is even, and so is P.n.
_FINISH_WORDS = """fn finish(slice: u32, split: u32, m: u32, n: u32, v: vec2<f32>) {
  if (m >= P.m || n >= P.n) { return; }
  let word = DTYPE_pack(DTYPE_pack(0u, 0u, result(slice, m, n, v.x)), 1u, result(slice, m, n + 1u, v.y));
  OUT_store_word(place(slice, m, n) / 2u, word);
}"""


def store_sum(out: str) -> str:
    """``fn finish_one`` into the output, binding ``out``."""
    return _STORE_SUM.replace("OUT", out)


def finish(out: str, dtype: str, words: bool) -> str:
    """``fn finish`` of a blocked product (see tile.py); ``words``: of pairs, which fill words of a packed output."""
    return _FINISH_WORDS.replace("DTYPE", dtype).replace("OUT", out) if words else _FINISH


def writes_words(y: Spec, inner: int, caps: HostCaps) -> bool:
    """Whether neighbours along dimension ``inner`` of the output always fill a 32-bit word."""
    packed = y.dtype == "bf16" or (y.dtype == "f16" and not caps.float16)
    even = all(stride % 2 == 0 for d, stride in enumerate(y.strides) if d != inner and y.shape[d] != 1)
    return packed and even and y.aligned and y.strides[inner] == 1 and y.shape[inner] % 2 == 0


def partials_binding(kind: str, access: Access) -> Binding:
    """The buffer of partial sums, laid out (slice, split, m, n), of a product of this compute kind."""
    return Binding("partials", ACCUMULATOR[kind], access)


def add_partials(kernel: PointKernel, arg: int, kind: str, slices: int, splits: int, m: int, n: int) -> int:
    """Gives ``kernel`` the function ``split_total(slice, m, n)`` over temporary ``arg``; returns its size in bytes."""
    kernel.binding(partials_binding(kind, "read"), arg)
    for name, value in (("splits", splits), ("m", m), ("n", n)):
        kernel.param(name, value)
    kernel.add(source("split_sum"))
    return slices * splits * m * n * BY_NAME[ACCUMULATOR[kind]].itemsize
