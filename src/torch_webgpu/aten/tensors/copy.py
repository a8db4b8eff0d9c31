"""Copies: between host and device, between devices, between layouts and dtypes; reading a single number."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from struct import Struct

import torch
from torch.nn.parameter import is_lazy

from torch_webgpu.aten.dispatch.fallback import count
from torch_webgpu.aten.dispatch.memory_overlap import check_not_partly, check_writable
from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.aten.dispatch.recorded_once import record_once
from torch_webgpu.aten.dispatch.torch_abi import aten, impl, is_webgpu
from torch_webgpu.aten.quantized import float8
from torch_webgpu.dtypes import BY_TORCH, STORED
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.sync import Download, download, download_later, host_bytes, upload
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import is_contiguous, is_dense

from .pinned import is_pinned


def to_host(t: torch.Tensor) -> torch.Tensor:
    """A webgpu tensor's values as a contiguous CPU tensor; lazy conjugation and negation stay lazy."""
    if t.is_conj():
        return to_host(t.conj()).conj()
    if t.is_neg():
        return torch._neg_view(to_host(torch._neg_view(t)))
    host = torch.empty(t.shape, dtype=t.dtype, device="cpu")
    if t.numel():
        download(words(t), host_bytes(host))
    return host


def begin_download(source: torch.Tensor, target: torch.Tensor) -> Download | None:
    """A copy into a contiguous CPU tensor of the same shape and dtype, to be waited for; None if it is empty."""
    return Download(words(plain(source)), target) if source.numel() else None


BITS = {1: torch.uint8, 2: torch.int16, 8: torch.int64}


def words(t: torch.Tensor) -> torch.Tensor:
    """``t``, or its bits as integers if no kernel can hold its dtype (uint64, complex32, complex128, 8-bit floats)."""
    if t.dtype in BY_TORCH:
        return t
    if t.is_complex():
        t = torch.view_as_real(t)
    return t.view(BITS[t.element_size()])


PACKING = {dtype: Struct(f"={row.format}") for dtype, row in STORED.items() if row.format}
"""What makes Python's number of a tensor's bytes, for the common types: a tensor of the host's takes longer."""

NUMBER_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


@partial(record_once, reads_flags=True)
def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``target.copy_(source)`` with at least one of them on webgpu: broadcasts, converts, honours any strides.

    Uploads and copies on the device never wait. Downloads do, but for ``non_blocking`` ones into pinned memory: see
    :mod:`torch_webgpu.engine.readbacks`.
    """
    if source.__class__ in NUMBER_DTYPES:  # PyTorch hands Python's numbers over as they are
        source = torch.tensor(source, dtype=NUMBER_DTYPES[source.__class__], device="cpu")
    operand = source
    if source.shape != target.shape:
        source = source.expand(target.shape)
    if target.numel() == 0 or source is target:
        return target
    check_writable(target.shape, target.stride())
    if is_webgpu(source) and is_webgpu(target) and source.device == target.device:
        check_not_partly(target, [operand])  # of an expanded tensor PyTorch looks at what was expanded, too
        on_device(source, target)
    elif is_webgpu(source):
        from_device(source, target, non_blocking)
    elif source.device.type == "cpu":
        to_device(source, target)
    else:
        to_device(source.cpu(), target)
    return target


def from_device(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
    """A copy to any other device; straight into the target's memory where that is laid out like the values' bytes."""
    lazy = source.is_conj() or source.is_neg() or target.is_conj() or target.is_neg()
    if target.is_cpu and target.dtype == source.dtype and target.is_contiguous() and not lazy:
        if non_blocking and is_pinned(target):
            download_later(words(source), target)
        else:
            download(words(source), host_bytes(target))
    else:
        target.copy_(to_host(source))


def plain(t: torch.Tensor) -> torch.Tensor:
    """``t`` with lazy conjugation and negation carried out."""
    return t.resolve_conj().resolve_neg()


def on_device(source: torch.Tensor, target: torch.Tensor) -> None:
    """A copy between tensors of one shape."""
    if source.dtype not in BY_TORCH or target.dtype not in BY_TORCH:
        reinterpreted(source, target)
        return
    conj = source.is_conj() != target.is_conj()
    neg = source.is_neg() != target.is_neg()
    record_pointwise("copy", [source], [target], value_of, (conj, neg))


def value_of(conj: bool, neg: bool, value: Expr) -> Expr:
    value = ops.conj(value) if conj else value
    return ops.neg(value) if neg else value


def reinterpreted(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copies of types that no kernel can hold, through views of other types; through the host where none will do."""
    neg = source.is_neg() or target.is_neg()
    complex_pair = source.is_complex() or target.is_complex()
    if not neg and source.dtype == target.dtype and source.is_conj() == target.is_conj():
        on_device(words(unconjugated(source)), words(unconjugated(target)))
    elif not neg and float8.converts(source.dtype, target.dtype):
        float8.convert(source, target)
    elif not neg and complex_pair and torch.uint64 not in (source.dtype, target.dtype):
        copy_parts(source, target)
    elif not neg and target.dtype == torch.uint64 and not source.is_floating_point() and not complex_pair:
        on_device(source, target.view(torch.int64))
    elif not neg and source.dtype == torch.uint64 and not target.is_floating_point() and not complex_pair:
        on_device(source.view(torch.int64), target)
    else:
        count("aten::copy_", f"no kernel converts {source.dtype} to {target.dtype}")
        value = plain(to_host(source).to(target.dtype))
        if target.is_neg():
            target, value = torch._neg_view(target), -value
        if target.is_conj():
            target, value = target.conj(), value.conj().resolve_conj()
        to_device(value, target)


def unconjugated(t: torch.Tensor) -> torch.Tensor:
    """What ``t`` lazily conjugates."""
    return t.conj() if t.is_conj() else t


def copy_parts(source: torch.Tensor, target: torch.Tensor) -> None:
    """A copy from or to complex numbers by their real and imaginary parts."""
    if not target.is_complex():
        target.copy_(torch.view_as_real(unconjugated(source))[..., 0])
        return
    parts = torch.view_as_real(unconjugated(target))
    if source.is_complex():
        parts.copy_(torch.view_as_real(unconjugated(source)))
    else:
        parts[..., 0].copy_(source)
        parts[..., 1].zero_()
    if source.is_conj() != target.is_conj():
        parts[..., 1].neg_()


def to_device(source: torch.Tensor, target: torch.Tensor) -> None:
    """An upload, where the target's bytes can be written as they come; else one to a contiguous copy, and a kernel."""
    if source.dtype != target.dtype and not device_converts(source.dtype, target):
        source = source.to(target.dtype)
    source = plain(source)
    if source.dtype == target.dtype and not target.is_conj() and not target.is_neg():
        same_order = source.stride() == target.stride() and is_dense(source.shape, source.stride())
        if same_order and upload(flat(target), flat(source)):
            return
        if is_contiguous(target.shape, target.stride()) and upload(target, source.contiguous()):
            return
    staged = engine().empty(source.shape, source.dtype, target.device.index)
    upload(staged, source.contiguous())
    on_device(staged, target)


def device_converts(source: torch.dtype, target: torch.Tensor) -> bool:
    """Whether converting is the device's job: when it can, and no more bytes travel for it."""
    if source not in BY_TORCH or target.dtype not in BY_TORCH or source.itemsize > target.dtype.itemsize:
        return False
    return source != torch.float64 or engine().device(target.device.index).target.float64


def flat(t: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements in memory order, as one dimension."""
    return t.as_strided((t.numel(),), (1,), t.storage_offset())


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    target.resize_(source.shape)
    return copy_from(source, target)


def to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """As PyTorch's, but a non-blocking copy to the host does not ask for pinned memory: webgpu has none."""
    memory_format = memory_format or torch.preserve_format
    if is_lazy(self):
        self = self.data  # its own class does not say its shape
    if is_webgpu(self) and (device is None or device == self.device):
        return conversion(dtype, layout, memory_format)(self)
    out = torch.empty_like(
        self, dtype=dtype, layout=layout, device=device, pin_memory=bool(pin_memory), memory_format=memory_format
    )
    return out.copy_(self)


@cache
def conversion(
    dtype: torch.dtype | None, layout: torch.layout | None, memory_format: torch.memory_format
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes a copy of a tensor on its device: calls of one argument are recognised soonest."""

    def converted(self: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(self, dtype=dtype, layout=layout, memory_format=memory_format).copy_(self)

    return record_once(converted, reads_flags=True)


def clone(self: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """As PyTorch's, whose kernel would make two calls of it."""
    return conversion(None, None, memory_format or torch.preserve_format)(self)


def local_scalar_dense(t: torch.Tensor) -> int | float | bool | complex:
    if t.is_conj() or t.is_neg():
        return to_host(t).item()
    packing = PACKING.get(t.dtype)
    if packing is not None:
        host = bytearray(packing.size)
        download(t, memoryview(host))
        return packing.unpack(host)[0]
    host = bytearray(t.element_size())
    download(words(t), memoryview(host))
    return torch.frombuffer(host, dtype=t.dtype).item()


def register() -> None:
    impl(aten._copy_from.default, copy_from)
    impl(aten._to_copy.default, to_copy)
    impl(aten.clone.default, clone)
    for key in ("Conjugate", "Negative"):
        # Their fallback would clone the source first, and cloning is copying: copy_from carries them out itself.
        impl(aten._copy_from.default, torch.library.fallthrough_kernel, key)
    impl(aten._copy_from_and_resize.default, copy_from_and_resize)
    impl(aten._local_scalar_dense.default, local_scalar_dense)
