"""torch dtypes as the GPU sees them: how many bytes they take, how WGSL computes with them.

A *storage* type is how an element lies in memory (PyTorch's layout, byte for byte); a *compute* kind is
the WGSL type that arithmetic is done in. Half-width floats compute in f32 and small integers in i32,
as CPU PyTorch's "opmath" does; they are rounded or wrapped when they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .errors import UnsupportedDtypeError


@dataclass(frozen=True)
class DType:
    """One element type. ``name`` is ours and WGSL's ("f32"); ``kind`` is the letter of its compute type.

    Kinds: ``b`` bool, ``i`` i32, ``u`` u32, ``l`` 64-bit integer, ``f`` f32, ``d`` f64, ``c`` complex64 (vec2<f32>).
    """

    name: str
    torch: torch.dtype
    itemsize: int
    kind: str

    @property
    def is_float(self) -> bool:
        return self.kind in "fd"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iul"

    @property
    def is_subword(self) -> bool:
        """Smaller than the 32-bit words WGSL storage buffers are made of."""
        return self.itemsize < 4

    def __repr__(self) -> str:
        return self.name


_ROWS = (
    DType("bool", torch.bool, 1, "b"),
    DType("u8", torch.uint8, 1, "i"),
    DType("i8", torch.int8, 1, "i"),
    DType("i16", torch.int16, 2, "i"),
    DType("i32", torch.int32, 4, "i"),
    DType("u16", torch.uint16, 2, "i"),
    DType("u32", torch.uint32, 4, "u"),
    DType("i64", torch.int64, 8, "l"),
    DType("f16", torch.float16, 2, "f"),
    DType("bf16", torch.bfloat16, 2, "f"),
    DType("f32", torch.float32, 4, "f"),
    DType("f64", torch.float64, 8, "d"),
    DType("c64", torch.complex64, 8, "c"),
)

BY_NAME: dict[str, DType] = {row.name: row for row in _ROWS}
BY_TORCH: dict[torch.dtype, DType] = {row.torch: row for row in _ROWS}

# The WGSL type each kind computes in. Kind `l` is an alias the linker declares: `i64`, or a vec2<u32> pair.
COMPUTE_TYPE: dict[str, str] = {
    "b": "bool",
    "i": "i32",
    "u": "u32",
    "l": "I64",
    "f": "f32",
    "d": "f64",
    "c": "vec2<f32>",
}


def of(dtype: torch.dtype) -> DType:
    """The row of a torch dtype; UnsupportedDtypeError for one that kernels do not compute with (float8, complex128)."""
    try:
        return BY_TORCH[dtype]
    except KeyError:
        raise UnsupportedDtypeError(
            f"{dtype} has no kernel on the webgpu device; supported: {', '.join(str(t) for t in BY_TORCH)}"
        ) from None
