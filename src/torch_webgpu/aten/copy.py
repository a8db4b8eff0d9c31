"""Copies: between host and device, between devices, between layouts and dtypes; reading a single number."""

from __future__ import annotations

import torch

from torch_webgpu.dtypes import BY_TORCH
from torch_webgpu.engine.record import copy_body, engine
from torch_webgpu.engine.sync import download, upload
from torch_webgpu.ir.graph import Body, Pointwise, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import is_contiguous, is_dense

from .torch_abi import aten, impl, is_webgpu


def from_bytes(t: torch.Tensor) -> torch.Tensor:
    """A webgpu tensor's values as a contiguous CPU tensor."""
    host = torch.empty(t.shape, dtype=t.dtype)
    if t.numel():
        host.view(-1).view(torch.uint8).numpy()[:] = download(t)
    return host


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``target.copy_(source)`` with at least one of them on webgpu: broadcasts, converts, honours any strides."""
    if source.shape != target.shape:
        source = source.expand(target.shape)
    if target.numel() == 0:
        return target
    if is_webgpu(source) and is_webgpu(target) and source.device == target.device:
        on_device(source, target)
    elif is_webgpu(source):
        host = from_bytes(plain(source))
        target.copy_(host)
    elif source.device.type == "cpu":
        to_device(source, target)
    else:
        to_device(source.cpu(), target)
    return target


def plain(t: torch.Tensor) -> torch.Tensor:
    """``t`` with lazy conjugation and negation carried out."""
    return t.resolve_conj().resolve_neg()


def on_device(source: torch.Tensor, target: torch.Tensor) -> None:
    conj = source.is_conj() != target.is_conj()
    neg = source.is_neg() != target.is_neg()

    def body(specs: tuple[Spec, ...]) -> Body:
        if not conj and not neg:
            return copy_body(specs)
        value = ops.load(0, specs[0].dtype)
        value = ops.conj(value) if conj else value
        value = ops.neg(value) if neg else value
        return Pointwise((ops.to_dtype(value, specs[1].dtype),))

    engine().record("copy", [source], [target], body, (conj, neg))


def to_device(source: torch.Tensor, target: torch.Tensor) -> None:
    if source.dtype != target.dtype and (source.dtype not in BY_TORCH or source.element_size() > target.element_size()):
        source = source.to(target.dtype)
    source = plain(source)
    straight = source.dtype == target.dtype and not target.is_conj() and not target.is_neg()
    if straight and source.stride() == target.stride() and is_dense(source.shape, source.stride()):
        if upload(flat(target), flat(source)):
            return
    if straight and is_contiguous(target.shape, target.stride()) and upload(target, source.contiguous()):
        return
    staged = engine().empty(source.shape, source.dtype, target.device.index)
    upload(staged, source.contiguous())
    on_device(staged, target)


def flat(t: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements in memory order, as one dimension."""
    return t.as_strided((t.numel(),), (1,), t.storage_offset())


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    target.resize_(source.shape)
    return copy_from(source, target)


def local_scalar_dense(t: torch.Tensor) -> int | float | bool | complex:
    return from_bytes(plain(t)).item()


def register() -> None:
    impl(aten._copy_from.default, copy_from)
    for key in ("Conjugate", "Negative"):
        # Their fallback would clone the source first, and cloning is copying: copy_from carries them out itself.
        impl(aten._copy_from.default, torch.library.fallthrough_kernel, key)
    impl(aten._copy_from_and_resize.default, copy_from_and_resize)
    impl(aten._local_scalar_dense.default, local_scalar_dense)
