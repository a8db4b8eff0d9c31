"""Python numbers as arguments of per-element kernels: brought to a dtype as PyTorch brings them, or refused."""

from __future__ import annotations

import struct
from typing import Any

import torch

from torch_webgpu.dtypes import BY_NAME

_CPP_NAME = {
    "u8": "uint8_t",
    "i8": "int8_t",
    "u16": "uint16_t",
    "i16": "int16_t",
    "u32": "uint32_t",
    "i32": "int",
    "i64": "int64_t",
    "f16": "c10::Half",
    "bf16": "c10::BFloat16",
    "f32": "float",
}
_INTEGERS = {name: torch.iinfo(row.torch) for name, row in BY_NAME.items() if row.is_integer}
_WRAPPED_BITS = {name: BY_NAME[name].bits for name in _INTEGERS if BY_NAME[name].is_subword}
_LARGEST = {name: torch.finfo(row.torch).max for name, row in BY_NAME.items() if row.kind == "f"}


def cast_scalar(value: Any, dtype: str) -> Any:
    """``value`` as an element of ``dtype`` would hold it: small integers wrapped, halves rounded."""
    bits = _WRAPPED_BITS.get(dtype)
    if bits is not None:
        n = int(value) & (1 << bits) - 1
        return n - (1 << bits) if dtype[0] == "i" and n >> bits - 1 else n
    if dtype == "f16":
        try:
            return struct.unpack("<e", struct.pack("<e", float(value)))[0]
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if dtype == "bf16":
        return torch.tensor(float(value), dtype=torch.bfloat16).item()
    return value


def check_fits(value: Any, dtype: str) -> None:
    """RuntimeError, in PyTorch's words, for a number that ``dtype`` cannot hold.

    Unsigned types take negative integers, too, as far as they reach.
    """
    if isinstance(value, complex):
        if dtype == "c64":
            return
        fits, value = value.imag == 0, value.real
    else:
        fits = True
    info = _INTEGERS.get(dtype)
    if info is not None:
        wraps = info.min == 0 and isinstance(value, int)
        fits = fits and (-info.max if wraps else info.min) <= value <= info.max
    elif dtype in _LARGEST:
        fits = fits and not _LARGEST[dtype] < abs(value) < float("inf")
    if not fits:
        raise RuntimeError(f"value cannot be converted to type {_CPP_NAME[dtype]} without overflow")
