"""The rows of element types against what PyTorch says of its dtypes."""

from __future__ import annotations

import ctypes
import struct

import pytest
import torch

from torch_webgpu import dtypes
from torch_webgpu.dtypes import BY_NAME, KINDS, STORED, DType
from torch_webgpu.wgsl.workgroup_memory import type_bytes

ROWS = [pytest.param(row, id=row.name) for row in dtypes.ROWS]
COMPUTED = [pytest.param(row, id=row.name) for row in dtypes.BY_TORCH.values()]


class DLTensor(ctypes.Structure):
    """The first members of a DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
    )  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_dlpack_types_are_those_that_pytorch_exports(row: DType) -> None:
    capsule = torch.utils.dlpack.to_dlpack(torch.zeros(3, dtype=row.torch))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = DLTensor.from_address(pointer(capsule, b"dltensor"))
    assert (tensor.code, tensor.bits, tensor.lanes) == (row.dlpack, row.bits, 1)


@pytest.mark.parametrize("row", ROWS)
def test_sizes(row: DType) -> None:
    assert row.itemsize == row.torch.itemsize
    assert row.is_subword == (row.itemsize < 4)
    if row.format:
        assert struct.calcsize(f"={row.format}") == row.itemsize
        one = bytes(torch.ones(1, dtype=row.torch).view(torch.uint8).tolist())
        assert struct.unpack(f"={row.format}", one) == (1,)
    if row.element and row.element not in ("i64", "f64"):
        assert type_bytes(row.element) == row.itemsize


@pytest.mark.parametrize("row", COMPUTED)
def test_sums_are_kept_in_a_type_of_the_same_kind(row: DType) -> None:
    if row.kind == "b":
        assert not row.accumulator
        return
    sums = BY_NAME[row.accumulator]
    assert sums.kind == row.kind
    assert sums.bits >= row.bits
    assert KINDS[row.kind].wgsl == row.compute
    assert not row.matrix_sum or BY_NAME[row.matrix_sum].bits == 32


@pytest.mark.parametrize("row", COMPUTED)
def test_whatever_is_smaller_than_what_computes_it_is_narrowed(row: DType) -> None:
    narrower = row.kind in "if" and row.is_subword
    assert bool(row.narrow) == narrower


def test_what_is_only_stored_has_no_kernel() -> None:
    only_stored = [dtype for dtype, row in STORED.items() if not row.kind]
    assert torch.float8_e5m2 in only_stored
    for dtype in only_stored:
        with pytest.raises(dtypes.UnsupportedDtypeError, match="has no kernel"):
            dtypes.of(dtype)
