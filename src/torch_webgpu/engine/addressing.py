"""Operations on tensors that lie far into their storages: whether kernels have numbers for their elements.

What an operation's layouts alone say is checked when it is made (``ir.operation``). Where its tensors start
is another matter at every call, and asked only once there is an allocation in which a tensor may start too far.
"""

from __future__ import annotations

from torch_webgpu import dtypes
from torch_webgpu.ir.operation import ForEach, Operation, Spec, check_addressable
from torch_webgpu.layout import is_addressable

from .division import is_numbered
from .recorded_lists import RecordedList
from .tensor import FIRST_BYTE, OFFSET_MASK


def is_reached(op: Operation, addresses: tuple[int, ...]) -> bool:
    """Whether kernels can address all that an operation uses. AddressError for lists of which they cannot."""
    if isinstance(op.body, ForEach):
        for address, spec in zip(addresses, op.args):
            if isinstance(address, RecordedList):
                _check_list(op, address)
            else:
                check_addressable(op.name, spec, (address & OFFSET_MASK) - FIRST_BYTE)
        return True
    return is_numbered(op) and all(
        isinstance(address, RecordedList)
        or is_addressable(spec.shape, spec.strides, 1 << shift, (address & OFFSET_MASK) - FIRST_BYTE)
        for address, spec, shift in zip(addresses, op.args, op.shifts)
    )


def _check_list(op: Operation, tensors: RecordedList) -> None:
    geometry, dtype = tensors.geometry, dtypes.of(tensors.dtype).name
    starts = tensors.starts or [0] * len(geometry.shapes)  # of an intermediate list
    for shape, strides, start in zip(geometry.shapes, geometry.strides, starts):
        check_addressable(op.name, Spec(dtype, shape, strides), start)
