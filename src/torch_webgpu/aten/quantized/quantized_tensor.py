"""Quantized tensors on webgpu: integers and the affine map to the numbers they stand for.

PyTorch's own quantized tensors are a C++ class whose constructor asks the device's C++ allocator, which a Python
backend has not (``new_qtensor`` in aten/src/ATen/quantized/Quantizer.cpp). This is a tensor subclass instead, over a
plain webgpu tensor of integers: it has the dtype, device, quantizer and operators of a quantized tensor that store,
move, view and dequantize it. Arithmetic goes through ``dequantize()``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.torch_abi import DISABLED_TORCH_FUNCTION, aten, is_webgpu

INTEGERS = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}
"""Quantized dtype → the dtype of its integers."""


@dataclass(frozen=True)
class PerTensor:
    """One scale and zero point for all elements: number = (integer - zero_point) * scale."""

    scale: float
    zero_point: int
    scheme = torch.per_tensor_affine

    def spread(self, like: torch.Tensor) -> tuple[float, int]:
        """Scale and zero point as they broadcast against ``like``."""
        return self.scale, self.zero_point

    def on_cpu(self, integers: torch.Tensor) -> torch.Tensor:
        return torch._make_per_tensor_quantized_tensor(integers, self.scale, self.zero_point)

    @property
    def pickled(self) -> tuple[Any, ...]:
        return self.scheme, self.scale, self.zero_point


@dataclass(frozen=True, eq=False)
class PerChannel:
    """A scale (float32) and a zero point (int32) for each index along ``axis``, as webgpu tensors."""

    scales: torch.Tensor
    zero_points: torch.Tensor
    axis: int
    scheme = torch.per_channel_affine

    def spread(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = [-1 if d == self.axis else 1 for d in range(like.dim())]
        return self.scales.view(shape), self.zero_points.view(shape)

    def on_cpu(self, integers: torch.Tensor) -> torch.Tensor:
        scales, zero_points = self.scales.cpu().double(), self.zero_points.cpu().long()
        return torch._make_per_channel_quantized_tensor(integers, scales, zero_points, self.axis)

    @property
    def pickled(self) -> tuple[Any, ...]:
        return self.scheme, self.scales, self.zero_points, self.axis


Quantizer = PerTensor | PerChannel


def quantizer_of(t: torch.Tensor, device: torch.device) -> Quantizer:
    """The quantizer of any quantized tensor, for one on ``device``."""
    if isinstance(t, QuantizedTensor):
        return t.quantizer
    if t.qscheme() == torch.per_tensor_affine:
        return PerTensor(t.q_scale(), t.q_zero_point())
    scales, zero_points = t.q_per_channel_scales(), t.q_per_channel_zero_points()
    return PerChannel(scales.to(device, torch.float32), zero_points.to(device, torch.int32), t.q_per_channel_axis())


class QuantizedTensor(torch.Tensor):
    """A quantized webgpu tensor. ``integers`` has its shape and strides; see the module for what it can do."""

    integers: torch.Tensor
    quantizer: Quantizer

    __torch_function__ = DISABLED_TORCH_FUNCTION  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, integers: torch.Tensor, dtype: torch.dtype, quantizer: Quantizer) -> QuantizedTensor:
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            integers.shape,
            strides=integers.stride(),
            storage_offset=integers.storage_offset(),
            dtype=dtype,
            device=integers.device,
        )
        self.integers, self.quantizer = integers, quantizer
        return self

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kernel = KERNELS.get(op)
        if kernel is None:
            composite = op.decompose(*args, **(kwargs or {}))
            if composite is not NotImplemented:
                return composite
            kernel = view if is_view(op) else None
        if kernel is None:
            raise NotImplementedError(
                f"{op} has no kernel for quantized webgpu tensors: dequantize() them first, or move them with cpu()"
            )
        return kernel(op, *args, **(kwargs or {}))

    @property
    def is_quantized(self) -> bool:  # type: ignore[override]
        return True

    def qscheme(self) -> torch.qscheme:
        return self.quantizer.scheme

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.integers.untyped_storage()

    def data_ptr(self) -> int:
        return self.integers.data_ptr()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.cpu()).replace(", size=", f", device='{self.device}', size=", 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedTensor:
        return memo.setdefault(id(self), self.clone())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """As PyTorch's quantized tensors, so that a file can be loaded on any device."""
        storage = torch.storage.TypedStorage(
            wrap_storage=self.integers.untyped_storage(), dtype=self.dtype, _internal=True
        )
        place = (self.integers.storage_offset(), tuple(self.shape), self.stride())
        return torch._utils._rebuild_qtensor, (storage, *place, self.quantizer.pickled, False, {})


def with_integers(like: QuantizedTensor, integers: torch.Tensor) -> QuantizedTensor:
    return QuantizedTensor(integers, like.dtype, like.quantizer)


def is_view(op: OpOverload) -> bool:
    returns = op._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


# Kernels: fn(op, *args, **kwargs) -------------------------------------------------------------------------------------


def view(op: OpOverload, self: QuantizedTensor, *args: Any, **kwargs: Any) -> Any:
    if isinstance(self.quantizer, PerChannel) and op not in (aten.detach.default, aten.alias.default):
        raise NotImplementedError(f"{op} of a tensor quantized per channel: its channels would move")
    result = op(self.integers, *args, **kwargs)
    if isinstance(result, torch.Tensor):
        return with_integers(self, result)
    return [with_integers(self, t) for t in result]


def dequantize(op: OpOverload, self: QuantizedTensor) -> torch.Tensor:
    scale, zero_point = self.quantizer.spread(self)
    return (self.integers.to(torch.int32) - zero_point).to(torch.float32) * scale


def clone(op: OpOverload, self: QuantizedTensor, *, memory_format: Any = None) -> QuantizedTensor:
    return with_integers(self, op(self.integers, memory_format=memory_format))


def empty_like(op: OpOverload, self: QuantizedTensor, **options: Any) -> QuantizedTensor:
    options = {k: v for k, v in options.items() if k != "dtype"}
    return with_integers(self, op(self.integers, **options))


def to_copy(op: OpOverload, self: QuantizedTensor, *, device: Any = None, dtype: Any = None, **options: Any) -> Any:
    if dtype not in (None, self.dtype):
        return self.dequantize().to(device=device, dtype=dtype, **options)
    target = self.device if device is None else torch.device(device)
    integers = self.integers.to(target, copy=True)
    return with_integers(self, integers) if is_webgpu(integers) else self.quantizer.on_cpu(integers.cpu()).to(target)


def copy_(op: OpOverload, self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """From a quantized tensor integers and quantizer; from another one its numbers, quantized as ``self`` is."""
    if not isinstance(self, QuantizedTensor):
        return self.copy_(source.cpu() if self.is_quantized else source.dequantize())
    if source.is_quantized:
        self.integers.copy_(source.int_repr())
        self.quantizer = quantizer_of(source, self.device)
    else:
        self.integers.copy_(quantized_integers(source.to(self.device), self.quantizer, self.dtype))
    return self


def quantized_integers(x: torch.Tensor, quantizer: Quantizer, dtype: torch.dtype) -> torch.Tensor:
    """``round(x / scale + zero_point)``, clamped to the type's range; halves round to even."""
    scale, zero_point = quantizer.spread(x)
    info = torch.iinfo(INTEGERS[dtype])
    inverse = torch.as_tensor(scale, dtype=torch.float32, device=x.device).reciprocal()
    rounded = torch.round(x.float() * inverse + zero_point)
    if dtype == torch.qint32:
        rounded = rounded.clamp(-(2.0**31), 2.0**31).to(torch.int64)  # the upper end is no float32
    return rounded.clamp(info.min, info.max).to(INTEGERS[dtype])


def set_(op: OpOverload, self: QuantizedTensor, *args: Any) -> QuantizedTensor:
    self.integers.set_(*args)
    return self


def equal(op: OpOverload, self: Any, other: Any) -> bool:
    if not (isinstance(self, QuantizedTensor) and isinstance(other, QuantizedTensor)):
        raise RuntimeError("Cannot compare a quantized tensor with one that is not")
    same = isinstance(self.quantizer, PerTensor) and self.quantizer == other.quantizer and self.dtype == other.dtype
    return same and torch.equal(self.integers, other.integers)


def per_tensor(name: str) -> Callable[..., Any]:
    def kernel(op: OpOverload, self: QuantizedTensor) -> Any:
        if not isinstance(self.quantizer, PerTensor):
            raise RuntimeError(f"{op} is for tensors quantized per tensor, not per channel")
        return getattr(self.quantizer, name)

    return kernel


def per_channel(name: str) -> Callable[..., Any]:
    def kernel(op: OpOverload, self: QuantizedTensor) -> Any:
        if not isinstance(self.quantizer, PerChannel):
            raise RuntimeError(f"{op} is for tensors quantized per channel, not per tensor")
        return getattr(self.quantizer, name)

    return kernel


KERNELS: dict[OpOverload, Callable[..., Any]] = {
    aten.dequantize.self: dequantize,
    aten.dequantize.tensors: lambda op, tensors: [t.dequantize() for t in tensors],
    aten.int_repr.default: lambda op, self: self.integers.clone(),
    aten.q_scale.default: per_tensor("scale"),
    aten.q_zero_point.default: per_tensor("zero_point"),
    aten.q_per_channel_scales.default: per_channel("scales"),
    aten.q_per_channel_zero_points.default: per_channel("zero_points"),
    aten.q_per_channel_axis.default: per_channel("axis"),
    aten.clone.default: clone,
    aten.empty_like.default: empty_like,
    aten._to_copy.default: to_copy,
    aten.copy_.default: copy_,
    aten.set_.source_Storage_storage_offset: set_,
    aten.equal.default: equal,
    aten._local_scalar_dense.default: lambda op, self: self.dequantize().item(),
}
