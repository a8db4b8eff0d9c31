"""Pooling: maxima and means over windows, fixed or adaptive, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload

from torch_webgpu.engine.record import engine
from torch_webgpu.ir.graph import Extern
from torch_webgpu.kernels import resample
from torch_webgpu.kernels.resample import Axis, Resampling

from .torch_abi import aten, impl, outputs_of
from .variants import out_variant, register_functional

Pair = tuple[torch.Tensor, torch.Tensor]


def record(
    name: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    body: Callable[[Resampling], Extern],
    r: Resampling,
) -> None:
    """Records a resampling; gradients of nothing are zero."""
    if not outputs[0].numel():
        return
    if not inputs[0].numel():
        outputs[0].zero_()
        return
    engine().record(f"aten.{name}", inputs, outputs, lambda specs: body(r), static=r)


def windows(
    dims: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
) -> tuple[Axis, ...]:
    """An axis per dimension from PyTorch's arguments: one value stands for all, no stride for the kernel size."""

    def full(values: int | Sequence[int]) -> Sequence[int]:
        values = [values] if isinstance(values, int) else values
        return list(values) * dims if len(values) == 1 else values

    window = full(kernel_size)
    columns = zip(window, full(stride) or window, full(padding), full(dilation), strict=True)
    return tuple(Axis(window=k, stride=s, pad=p, dilation=d) for k, s, p, d in columns)


def max_pooling(axes: tuple[Axis, ...]) -> Resampling:
    return Resampling("pool", axes, (("COUNT_INCLUDE_PAD", False),))


def adaptive(dims: int, mean: bool) -> Resampling:
    return Resampling("adaptive", (Axis(),) * dims, mean=mean)


def max_pool(dims: int) -> None:
    """Registers ``max_pool<dims>d_with_indices`` and its backward."""
    forward: OpOverload = getattr(aten, f"max_pool{dims}d_with_indices").default
    backward: OpOverload = getattr(aten, f"max_pool{dims}d_with_indices_backward").default

    def pool(
        self: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Pair:
        out, indices = outputs_of(forward, self, kernel_size, stride, padding, dilation, ceil_mode)
        r = max_pooling(windows(dims, kernel_size, stride, padding, dilation))
        record("max_pool", [self], [out, indices], resample.max_pool, r)
        return out, indices

    def pool_backward(
        grad_output: torch.Tensor,
        self: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: torch.Tensor,
    ) -> torch.Tensor:
        (out,) = outputs_of(backward, grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices)
        r = max_pooling(windows(dims, kernel_size, stride, padding, dilation))
        record("max_pool_backward", [grad_output, indices], [out], resample.max_pool_backward, r)
        return out

    register_functional(forward, pool)
    register_functional(backward, pool_backward)


def adaptive_max_pool(dims: int) -> None:
    """Registers ``adaptive_max_pool<dims>d`` and its backward."""
    forward: OpOverload = getattr(aten, f"adaptive_max_pool{dims}d").default
    backward: OpOverload = getattr(aten, f"adaptive_max_pool{dims}d_backward").default
    r = adaptive(dims, mean=False)

    def pool(self: torch.Tensor, output_size: Sequence[int]) -> Pair:
        out, indices = outputs_of(forward, self, output_size)
        record("adaptive_max_pool", [self], [out, indices], resample.max_pool, r)
        return out, indices

    def pool_backward(grad_output: torch.Tensor, self: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        (out,) = outputs_of(backward, grad_output, self, indices)
        record("adaptive_max_pool_backward", [grad_output, indices], [out], resample.max_pool_backward, r)
        return out

    register_functional(forward, pool)
    register_functional(backward, pool_backward)


def fractional_max_pool(dims: int) -> None:
    """Registers ``fractional_max_pool<dims>d`` and its backward."""
    forward: OpOverload = getattr(aten, f"fractional_max_pool{dims}d").default
    backward: OpOverload = getattr(aten, f"fractional_max_pool{dims}d_backward").default

    def axes(kernel_size: Sequence[int]) -> Resampling:
        # In two dimensions the samples' order is that of (W, H), in three that of (D, H, W).
        places = (1, 0) if dims == 2 else (0, 1, 2)
        return Resampling("fractional", tuple(Axis(window=k, pad=p) for k, p in zip(kernel_size, places, strict=True)))

    def pool(
        self: torch.Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: torch.Tensor
    ) -> Pair:
        out, indices = outputs_of(forward, self, kernel_size, output_size, random_samples)
        record("fractional_max_pool", [self, random_samples], [out, indices], resample.max_pool, axes(kernel_size))
        return out, indices

    def pool_backward(
        grad_output: torch.Tensor,
        self: torch.Tensor,
        kernel_size: Sequence[int],
        output_size: Sequence[int],
        indices: torch.Tensor,
    ) -> torch.Tensor:
        out = torch.empty_like(self, memory_format=torch.contiguous_format)
        r = axes(kernel_size)
        record("fractional_max_pool_backward", [grad_output, indices], [out], resample.max_pool_backward, r)
        return out

    register_functional(forward, pool)
    register_functional(backward, pool_backward)


def averaging(
    dims: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    count_include_pad: bool,
    divisor_override: int | None,
) -> Resampling:
    axes = windows(dims, kernel_size, stride, padding)
    return Resampling("pool", axes, (("COUNT_INCLUDE_PAD", bool(count_include_pad)),), True, divisor_override)


def avg_pool(dims: int) -> None:
    """Registers ``avg_pool<dims>d`` and its backward."""
    forward: OpOverload = getattr(aten, f"avg_pool{dims}d").default
    backward: OpOverload = getattr(aten, f"avg_pool{dims}d_backward").default

    def pool(
        self: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> torch.Tensor:
        rest = (count_include_pad, divisor_override)
        (out,) = outputs_of(forward, self, kernel_size, stride, padding, ceil_mode, *rest)
        record("avg_pool", [self], [out], resample.forward, averaging(dims, kernel_size, stride, padding, *rest))
        return out

    def pool_backward(
        grad_output: torch.Tensor,
        self: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> torch.Tensor:
        rest = (count_include_pad, divisor_override)
        (out,) = outputs_of(backward, grad_output, self, kernel_size, stride, padding, ceil_mode, *rest)
        r = averaging(dims, kernel_size, stride, padding, *rest)
        record("avg_pool_backward", [grad_output], [out], resample.adjoint, r)
        return out

    register_functional(forward, pool)
    register_functional(backward, pool_backward)


def adaptive_avg_pool(dims: int) -> None:
    """Registers ``_adaptive_avg_pool<dims>d``, its backward and the ``out=`` form of the public operator."""
    forward: OpOverload = getattr(aten, f"_adaptive_avg_pool{dims}d").default
    backward: OpOverload = getattr(aten, f"_adaptive_avg_pool{dims}d_backward").default
    public: OpOverload = getattr(aten, f"adaptive_avg_pool{dims}d").out
    r = adaptive(dims, mean=True)

    def pool(self: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
        (out,) = outputs_of(forward, self, output_size)
        record("adaptive_avg_pool", [self], [out], resample.forward, r)
        return out

    def pool_backward(grad_output: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
        (out,) = outputs_of(backward, grad_output, self)
        record("adaptive_avg_pool_backward", [grad_output], [out], resample.adjoint, r)
        return out

    register_functional(forward, pool)
    register_functional(backward, pool_backward)
    impl(public, out_variant(public, pool))


def register() -> None:
    for dims in (2, 3):
        max_pool(dims)
        adaptive_max_pool(dims)
        fractional_max_pool(dims)
        avg_pool(dims)
        adaptive_avg_pool(dims)
