"""What the engine reads off tensors: their layouts, and whether they get in each other's way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_webgpu import dtypes
from torch_webgpu.errors import different_devices
from torch_webgpu.ir.operation import Pointwise, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import extent

from .tensor import ADDRESS_BITS


def spec_of(t: torch.Tensor) -> Spec:
    """The layout of a webgpu tensor; TypeError for a dtype that no kernel can hold."""
    dtype = dtypes.of(t.dtype)
    unit = 4 if dtype.itemsize == 1 else 16  # bytes
    aligned = dtype.itemsize > 4 or t.data_ptr() % unit == 0
    return Spec(dtype.name, tuple(t.shape), t.stride(), aligned)


def layout_key(tensors: Sequence[torch.Tensor]) -> tuple[object, ...]:
    """What :func:`spec_of` says of each tensor, or more, without making a :class:`Spec`: a key for what follows."""
    return tuple([(t.shape, t.stride(), t.dtype, t.data_ptr() & 15) for t in tensors])


def copy_body(specs: tuple[Spec, ...]) -> Pointwise:
    """The body of a copy: the one input, converted to the one output's dtype."""
    source, target = specs
    return Pointwise((ops.to_dtype(ops.load(0, source.dtype), target.dtype),))


def clash(read: torch.Tensor, read_spec: Spec, written: torch.Tensor, written_spec: Spec) -> bool:
    """Whether a read of one storage can see a write to it, unless both are the very same elements in the same order."""
    if read_spec.dtype != written_spec.dtype:
        return True
    first, other = (t.data_ptr() // t.element_size() for t in (read, written))
    if first == other and read_spec == written_spec:
        return False
    end = first + extent(read_spec.shape, read_spec.strides)
    return first < other + extent(written_spec.shape, written_spec.strides) and other < end


def misplaced(tensors: Sequence[torch.Tensor]) -> RuntimeError:
    """Why these tensors are not of one webgpu device."""
    devices = list(dict.fromkeys(t.device for t in tensors))
    if len(devices) > 1:
        return different_devices(*devices[:2])
    return RuntimeError(f"a tensor on {devices[0]} has a storage that is not the webgpu device's")


def tangled(tensors: Sequence[torch.Tensor], specs: Sequence[Spec], n_inputs: int) -> list[int]:
    """The inputs that may overlap an output's elements other than lying exactly on top of them."""
    written: dict[int, list[int]] = {}
    for o in range(n_inputs, len(tensors)):
        written.setdefault(tensors[o].data_ptr() >> ADDRESS_BITS, []).append(o)
    return [
        k
        for k in range(n_inputs)
        for o in written.get(tensors[k].data_ptr() >> ADDRESS_BITS, ())
        if clash(tensors[k], specs[k], tensors[o], specs[o])
    ]
