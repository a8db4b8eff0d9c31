"""Quantization: making quantized tensors, and fake quantization with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.torch_abi import aten, impl
from torch_webgpu.aten.tensors.factories import device_index
from torch_webgpu.engine.record import engine

from .quantized_tensor import (
    INTEGERS,
    PerChannel,
    PerTensor,
    QuantizedTensor,
    Quantizer,
    quantized_integers,
    quantizer_of,
)

QUANTIZED_KEY = "QuantizedPrivateUse1"


def quantized(x: torch.Tensor, quantizer: Quantizer, dtype: torch.dtype) -> QuantizedTensor:
    check_dtype(dtype)
    if not x.is_floating_point():
        raise RuntimeError(f"quantization expects a floating-point tensor, got {x.dtype}")
    if isinstance(quantizer, PerTensor):
        check_zero_point(quantizer.zero_point, dtype)
    return QuantizedTensor(quantized_integers(x, quantizer, dtype), dtype, quantizer)


def check_dtype(dtype: torch.dtype) -> None:
    if dtype not in INTEGERS:
        raise RuntimeError(f"webgpu quantizes to {', '.join(map(str, INTEGERS))}, not to {dtype}")


def check_zero_point(zero_point: int, dtype: torch.dtype) -> None:
    info = torch.iinfo(INTEGERS[dtype])
    if zero_point > info.max:
        raise RuntimeError(f"quantize_per_tensor zero_point {zero_point} is out of range: above upper bound {info.max}")
    if zero_point < info.min:
        raise RuntimeError(f"quantize_per_tensor zero_point {zero_point} is out of range: below lower bound {info.min}")


def quantize_per_tensor(self: torch.Tensor, scale: float, zero_point: int, dtype: torch.dtype) -> QuantizedTensor:
    return quantized(self, PerTensor(float(scale), int(zero_point)), dtype)


def quantize_per_tensor_qparams(
    self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, dtype: torch.dtype
) -> QuantizedTensor:
    return quantize_per_tensor(self, scale.item(), int(zero_point.item()), dtype)


def quantize_tensors(
    tensors: Sequence[torch.Tensor], scales: torch.Tensor, zero_points: torch.Tensor, dtype: torch.dtype
) -> list[QuantizedTensor]:
    parameters = zip(tensors, scales.tolist(), zero_points.tolist(), strict=True)
    return [quantize_per_tensor(t, scale, zero_point, dtype) for t, scale, zero_point in parameters]


def quantize_dynamic(self: torch.Tensor, dtype: torch.dtype, reduce_range: bool) -> QuantizedTensor:
    """Parameters from the smallest and largest element: PyTorch chooses them, given these two numbers."""
    ends = torch.stack(self.float().aminmax()).cpu() if self.numel() else torch.zeros(2, device="cpu")
    chosen = torch.quantize_per_tensor_dynamic(ends, dtype, reduce_range)
    return quantize_per_tensor(self, chosen.q_scale(), chosen.q_zero_point(), dtype)


def quantize_per_channel(
    self: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, axis: int, dtype: torch.dtype
) -> QuantizedTensor:
    return quantized(self, channels_of(self, scales, zero_points, axis), dtype)


def channels_of(self: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, axis: int) -> PerChannel:
    for name, t in (("scales", scales), ("zero_points", zero_points)):
        if t.shape != self.shape[axis : axis + 1]:
            raise RuntimeError(f"{name} of shape {tuple(t.shape)} for axis {axis} of a tensor of {tuple(self.shape)}")
    device = self.device
    return PerChannel(scales.to(device, torch.float32), zero_points.to(device, torch.int32), axis % self.dim())


def make_per_tensor(self: torch.Tensor, scale: float, zero_point: int) -> QuantizedTensor:
    return QuantizedTensor(self.clone(), quantized_dtype(self), PerTensor(scale, zero_point))


def make_per_channel(self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int) -> QuantizedTensor:
    return QuantizedTensor(self.clone(), quantized_dtype(self), channels_of(self, scale, zero_point, axis))


def quantized_dtype(integers: torch.Tensor) -> torch.dtype:
    for dtype, underlying in INTEGERS.items():
        if underlying == integers.dtype:
            return dtype
    raise RuntimeError(f"{integers.dtype} holds no quantized type; expected one of {list(INTEGERS.values())}")


def empty(size: Sequence[int], dtype: Any, device: Any, quantizer: Quantizer) -> QuantizedTensor:
    check_dtype(dtype)
    return QuantizedTensor(engine().empty(size, INTEGERS[dtype], device_index(device)), dtype, quantizer)


def empty_affine(
    size: Sequence[int], *, dtype: Any = None, device: Any = None, scale: float = 1.0, zero_point: int = 0, **_: Any
) -> QuantizedTensor:
    return empty(size, dtype, device, PerTensor(scale, zero_point))


def empty_per_channel(
    size: Sequence[int],
    *,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    dtype: Any = None,
    device: Any = None,
    **_: Any,
) -> QuantizedTensor:
    place = torch.device("webgpu", device_index(device))
    return empty(
        size, dtype, place, PerChannel(scales.to(place, torch.float32), zero_points.to(place, torch.int32), axis)
    )


def empty_quantized(
    size: Sequence[int], qtensor: torch.Tensor, *, dtype: Any = None, device: Any = None, **_: Any
) -> QuantizedTensor:
    place = torch.device("webgpu", device_index(device))
    return empty(size, dtype or qtensor.dtype, place, quantizer_of(qtensor, place))


def refuse_strides(*args: Any, **kwargs: Any) -> Any:
    """Raises what PyTorch does, on every device, for strides of a quantized dtype, so for ``x.to(torch.quint8)``."""
    raise RuntimeError(
        "empty_strided not supported on quantized tensors yet see https://github.com/pytorch/pytorch/issues/74540"
    )


def quantized_to_device(self: torch.Tensor, *, device: Any = None, **_: Any) -> QuantizedTensor:
    """A CPU tensor's ``to("webgpu")``. PyTorch's kernel would read the quantizer off the result's C++ object."""
    if not self.is_quantized:  # converted by its dtype, which PyTorch has no kernel for
        refuse_strides()
    place = torch.device("webgpu", device_index(device))
    return QuantizedTensor(self.int_repr().to(place), self.dtype, quantizer_of(self, place))


# Fake quantization: quantize and dequantize in floating point ---------------------------------------------------------


def fake(
    x: torch.Tensor, scale: Any, zero_point: Any, low: int, high: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(quantized and back, which elements were in range, unclamped integers as floats)."""
    inverse = 1 / scale if isinstance(scale, torch.Tensor) else float(torch.tensor(scale, device="cpu").reciprocal())
    integers = torch.round(x.float() * inverse) + zero_point
    inside = (integers >= low) & (integers <= high)
    return ((integers.clamp(low, high) - zero_point) * scale).to(x.dtype), inside, integers


def fake_per_tensor(
    self: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[torch.Tensor, torch.Tensor]:
    if quant_min > quant_max:
        raise RuntimeError("`quant_min` should be less than or equal to `quant_max`.")
    if not quant_min <= zero_point <= quant_max:
        raise RuntimeError("`zero_point` must be between `quant_min` and `quant_max`.")
    return fake(self, scale, zero_point, quant_min, quant_max)[:2]


def fake_qparams(
    self: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    fake_quant_enabled: torch.Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, inside, _ = fake(self, scale.float(), zero_point, quant_min, quant_max)
    enabled = fake_quant_enabled != 0
    return torch.where(enabled, out, self), inside | ~enabled


def along(axis: int, like: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Tensors of one number a channel, shaped to broadcast against ``like``."""
    shape = [-1 if d == axis % like.dim() else 1 for d in range(like.dim())]
    return [t.float().view(shape) for t in tensors]


def fake_per_channel(
    self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[torch.Tensor, torch.Tensor]:
    if zero_point.shape != scale.shape or scale.numel() != self.shape[axis]:
        raise RuntimeError("scale and zero-point need to have the same dimensions, one number for each channel")
    scales, points = along(axis, self, scale, zero_point)
    return fake(self, scales, points, quant_min, quant_max)[:2]


def rounded(zero_point: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """A learned zero point as the integer it stands for."""
    return torch.round(zero_point.float()).clamp(low, high)


def learnable(
    self: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> torch.Tensor:
    return fake(self, scale.float(), rounded(zero_point, quant_min, quant_max), quant_min, quant_max)[0]


def learnable_channels(
    self: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> torch.Tensor:
    scales, points = along(axis, self, scale, rounded(zero_point, quant_min, quant_max))
    return fake(self, scales, points, quant_min, quant_max)[0]


def learnable_gradients(
    grad: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, point: torch.Tensor, low: int, high: int, factor: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per-element gradients by Esser et al., "Learned step size quantization" (2020): of x, scale and zero point."""
    out, inside, integers = fake(x, scale, point, low, high)
    outside = torch.where(integers < low, low - point, high - point)
    of_scale = torch.where(inside, (out - x) / scale, outside) * grad * factor
    of_point = torch.where(inside, torch.zeros_like(grad), -scale * grad * factor)
    return grad * inside, of_scale, of_point


def learnable_backward(
    grad: torch.Tensor,
    self: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    point = rounded(zero_point, quant_min, quant_max)
    of_x, of_scale, of_point = learnable_gradients(grad, self, scale, point, quant_min, quant_max, grad_factor)
    return of_x, of_scale.sum().view(1), of_point.sum().view(1)


def learnable_channels_backward(
    grad: torch.Tensor,
    self: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scales, points = along(axis, self, scale, rounded(zero_point, quant_min, quant_max))
    of_x, *others = learnable_gradients(grad, self, scales, points, quant_min, quant_max, grad_factor)
    rest = [d for d in range(self.dim()) if d != axis % self.dim()]
    of_scale, of_point = (t.sum(rest) if rest else t for t in others)
    return of_x, of_scale, of_point


def moving_average_fake_quantize(
    self: torch.Tensor,
    observer_on: torch.Tensor,
    fake_quant_on: torch.Tensor,
    running_min: torch.Tensor,
    running_max: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Observes the range of ``self``, then fake-quantizes with it.

    The elements stay on the device; how a range becomes scale and zero point is PyTorch's own code, run on the CPU over
    the range's ends.
    """
    observe, quantize = int(observer_on.item()), int(fake_quant_on.item())
    state = (running_min, running_max, scale, zero_point)
    if per_row_fake_quant and running_min.numel() == 0:
        for t, start in zip(state, (float("inf"), float("-inf"), 1.0, 0), strict=True):
            t.resize_(self.shape[ch_axis]).fill_(start)
    if not observe and not quantize:
        return self.clone(), torch.ones_like(self, dtype=torch.bool)
    rows = self.movedim(ch_axis, 0).flatten(1) if per_row_fake_quant else self.reshape(1, -1)
    ends = torch.stack(rows.aminmax(dim=1), 1).cpu()
    on_host = [t.cpu() for t in state]
    flags = [torch.tensor([flag], device="cpu") for flag in (observe, quantize)]
    aten._fused_moving_avg_obs_fq_helper(
        ends, *flags, *on_host, averaging_const, quant_min, quant_max, 0, per_row_fake_quant, symmetric_quant
    )
    for t, updated in zip(state, on_host, strict=True):
        t.copy_(updated)
    if not quantize:
        return self.clone(), torch.ones_like(self, dtype=torch.bool)
    if per_row_fake_quant:
        return fake_per_channel(self, scale, zero_point, ch_axis, quant_min, quant_max)
    return fake(self, scale.float(), zero_point, quant_min, quant_max)[:2]


KERNELS: tuple[tuple[OpOverload, Callable[..., Any]], ...] = (
    (aten.quantize_per_tensor.default, quantize_per_tensor),
    (aten.quantize_per_tensor.tensor_qparams, quantize_per_tensor_qparams),
    (aten.quantize_per_tensor.tensors, quantize_tensors),
    (aten.quantize_per_tensor_dynamic.default, quantize_dynamic),
    (aten.quantize_per_channel.default, quantize_per_channel),
    (aten.dequantize.self, lambda self: self.to(torch.float32)),
    (aten.dequantize.tensors, lambda tensors: [t.dequantize() for t in tensors]),
    (aten._make_per_tensor_quantized_tensor.default, make_per_tensor),
    (aten._make_per_channel_quantized_tensor.default, make_per_channel),
    (aten.fake_quantize_per_tensor_affine_cachemask.default, fake_per_tensor),
    (aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default, fake_qparams),
    (aten.fake_quantize_per_channel_affine_cachemask.default, fake_per_channel),
    (aten._fake_quantize_learnable_per_tensor_affine.default, learnable),
    (aten._fake_quantize_learnable_per_tensor_affine_backward.default, learnable_backward),
    (aten._fake_quantize_learnable_per_channel_affine.default, learnable_channels),
    (aten._fake_quantize_learnable_per_channel_affine_backward.default, learnable_channels_backward),
    (aten._fused_moving_avg_obs_fq_helper.default, moving_average_fake_quantize),
)
FACTORIES: tuple[tuple[OpOverload, Callable[..., Any]], ...] = (
    (aten._empty_affine_quantized.default, empty_affine),
    (aten._empty_per_channel_affine_quantized.default, empty_per_channel),
    (aten.empty_quantized.default, empty_quantized),
    (aten._to_copy.default, quantized_to_device),
    (aten.empty_strided.default, refuse_strides),
)


def register() -> None:
    for overload, kernel in KERNELS:
        impl(overload, kernel)
    for overload, kernel in FACTORIES:
        impl(overload, kernel, QUANTIZED_KEY)
