"""Operations on tensors that lie far into their storages: refused where kernels have no numbers for their elements.

What an operation's layouts alone say is checked when it is made (``ir.operation``). Where its tensors start
is another matter at every call, and asked only once there is an allocation in which a tensor may start too far.
"""

from __future__ import annotations

from torch_webgpu import dtypes
from torch_webgpu.ir.operation import Operation, Spec, check_addressable

from .recorded_lists import RecordedList
from .tensor import FIRST_BYTE, OFFSET_MASK


def check(op: Operation, addresses: tuple[int, ...]) -> None:
    """Raises AddressError for an operation on what kernels cannot address."""
    for address, spec in zip(addresses, op.args):
        if isinstance(address, RecordedList):
            _check_list(op, address)
        else:
            check_addressable(op.name, spec, (address & OFFSET_MASK) - FIRST_BYTE)


def _check_list(op: Operation, tensors: RecordedList) -> None:
    geometry, dtype = tensors.geometry, dtypes.of(tensors.dtype).name
    starts = tensors.starts or [0] * len(geometry.shapes)  # of an intermediate list
    for shape, strides, start in zip(geometry.shapes, geometry.strides, starts):
        check_addressable(op.name, Spec(dtype, shape, strides), start)
