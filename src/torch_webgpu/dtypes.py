"""Element types: one row for each says how it lies in memory, what WGSL computes with it and what others call it.

A *storage* type is how an element lies in memory (PyTorch's layout, byte for byte); a *compute* kind is
the WGSL type that arithmetic is done in. Half-width floats compute in f32 and small integers in i32,
as CPU PyTorch's "opmath" does; they are rounded or wrapped when they are stored.

A new type is a row here and, if it is smaller than a word, ``{name}_unpack`` and ``{name}_pack`` in the WGSL library.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_webgpu.errors import UnsupportedDtypeError

WORD_BITS = 32
"""Of the words that WGSL's storage buffers are made of."""
DL_INT, DL_UINT, DL_FLOAT, DL_BFLOAT, DL_COMPLEX, DL_BOOL = 0, 1, 2, 4, 5, 6
"""Codes of DLDataTypeCode: https://github.com/dmlc/dlpack/blob/main/include/dlpack/dlpack.h."""


@dataclass(frozen=True)
class Kind:
    """What WGSL computes with: the type ``wgsl``, whose sums are kept in elements of the dtype ``accumulator``."""

    wgsl: str
    accumulator: str = ""


KINDS: dict[str, Kind] = {
    "b": Kind("bool"),
    "i": Kind("i32", accumulator="i32"),
    "u": Kind("u32", accumulator="u32"),
    "l": Kind("I64", accumulator="i64"),  # an alias that the linker declares: `i64`, or a vec2<u32> pair
    "f": Kind("f32", accumulator="f32"),
    "d": Kind("f64", accumulator="f64"),
    "c": Kind("vec2<f32>", accumulator="c64"),
}


@dataclass(frozen=True)
class Halves:
    """WGSL for a 64-bit value as two words: ``join`` of the low and the high one, and those of a value ``v``."""

    join: str
    low: str
    high: str


@dataclass(frozen=True)
class DType:
    """An element type. ``name`` is ours and WGSL's ("f32"); ``kind`` is the letter of its compute type in ``KINDS``,
    none for a type that is only stored.

    * ``element``: WGSL's type of a buffer's elements, where WGSL has one; others lie packed in ``u32`` words
    * ``narrow``: WGSL that brings a computed value, ``{0}``, to one that an element holds
    * ``halves``: of a 64-bit type, whose atomic operations are on words
    * ``matrix_sum``: the dtype in which a GPU's matrix units add up products of it
    * ``dlpack``: its DLDataTypeCode
    * ``format``: the character that Python's ``struct`` has for it
    """

    name: str
    torch: torch.dtype
    bits: int
    kind: str = ""
    element: str = ""
    narrow: str = ""
    halves: Halves | None = None
    matrix_sum: str = ""
    dlpack: int = DL_INT
    format: str = ""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.bits // 8

    @property
    def per_word(self) -> int:
        """Elements in a word, of a type that is smaller than one."""
        return WORD_BITS // self.bits

    @property
    def compute(self) -> str:
        """The WGSL type of a value."""
        return KINDS[self.kind].wgsl

    @property
    def accumulator(self) -> str:
        """The dtype in which its sums are kept; empty for bool, which has none."""
        return KINDS[self.kind].accumulator

    @property
    def is_float(self) -> bool:
        return self.kind in ("f", "d")

    @property
    def is_integer(self) -> bool:
        return self.kind in ("i", "u", "l")

    @property
    def is_subword(self) -> bool:
        """Smaller than the 32-bit words WGSL storage buffers are made of."""
        return self.bits < WORD_BITS

    def __repr__(self) -> str:
        return self.name


_I64 = Halves("i64_make({}, {})", "i64_lo(v)", "i64_hi(v)")
_C64 = Halves("vec2<f32>(bitcast<f32>({}), bitcast<f32>({}))", "bitcast<u32>(v.x)", "bitcast<u32>(v.y)")

ROWS = (
    DType("bool", torch.bool, 8, "b", dlpack=DL_BOOL, format="?"),
    DType("u8", torch.uint8, 8, "i", narrow="({0} & 255)", matrix_sum="u32", dlpack=DL_UINT, format="B"),
    DType("i8", torch.int8, 8, "i", narrow="(({0} << 24u) >> 24u)", matrix_sum="i32", format="b"),
    DType("i16", torch.int16, 16, "i", narrow="(({0} << 16u) >> 16u)", format="h"),
    DType("i32", torch.int32, 32, "i", "i32", format="i"),
    DType("u16", torch.uint16, 16, "i", narrow="({0} & 65535)", dlpack=DL_UINT, format="H"),
    DType("u32", torch.uint32, 32, "u", "u32", dlpack=DL_UINT, format="I"),
    DType("i64", torch.int64, 64, "l", "i64", halves=_I64, format="q"),
    DType("f16", torch.float16, 16, "f", "f16", "round_f16({0})", matrix_sum="f32", dlpack=DL_FLOAT, format="e"),
    DType("bf16", torch.bfloat16, 16, "f", narrow="round_bf16({0})", dlpack=DL_BFLOAT),
    DType("f32", torch.float32, 32, "f", "f32", dlpack=DL_FLOAT, format="f"),
    DType("f64", torch.float64, 64, "d", "f64", dlpack=DL_FLOAT, format="d"),
    DType("c64", torch.complex64, 64, "c", "vec2<f32>", halves=_C64, dlpack=DL_COMPLEX),
    # Stored, copied and converted, but not computed with.
    DType("u64", torch.uint64, 64, dlpack=DL_UINT, format="Q"),
    DType("c32", torch.complex32, 32, dlpack=DL_COMPLEX),
    DType("c128", torch.complex128, 128, dlpack=DL_COMPLEX),
    DType("float8_e4m3fn", torch.float8_e4m3fn, 8, dlpack=10),
    DType("float8_e4m3fnuz", torch.float8_e4m3fnuz, 8, dlpack=11),
    DType("float8_e5m2", torch.float8_e5m2, 8, dlpack=12),
    DType("float8_e5m2fnuz", torch.float8_e5m2fnuz, 8, dlpack=13),
    DType("float8_e8m0fnu", torch.float8_e8m0fnu, 8, dlpack=14),
)

STORED: dict[torch.dtype, DType] = {row.torch: row for row in ROWS}
"""The types that tensors of the device may have."""
BY_TORCH: dict[torch.dtype, DType] = {row.torch: row for row in ROWS if row.kind}
"""Those that kernels compute with."""
BY_NAME: dict[str, DType] = {row.name: row for row in BY_TORCH.values()}


def of(dtype: torch.dtype) -> DType:
    """The row of a torch dtype; UnsupportedDtypeError for one that kernels do not compute with (float8, complex128)."""
    try:
        return BY_TORCH[dtype]
    except KeyError:
        raise UnsupportedDtypeError(
            f"{dtype} has no kernel on the webgpu device; supported: {', '.join(str(t) for t in BY_TORCH)}"
        ) from None
