"""Pooling: maxima and means over windows, fixed or adaptive, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from torch_webgpu.aten.dispatch.deterministic import alert_not_deterministic
from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import not_implemented
from torch_webgpu.aten.dispatch.torch_abi import Meta, aten, impl, infer
from torch_webgpu.aten.dispatch.variants import out_variant
from torch_webgpu.aten.indexing.scatter import scatter_
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.spatial import resample
from torch_webgpu.kernels.spatial.resample import Axis, Resampling
from torch_webgpu.layout import contiguous_strides

Pair = tuple[torch.Tensor, torch.Tensor]
PADDINGS = frozenset({"replicate", "reflect"})
"""Modes that move elements and compute nothing: those of complex numbers, too."""


def resampled(
    overload: OpOverload,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    body: Callable[[Resampling], Extern],
    resampling: Callable[[], Resampling],
    outputs: list[Meta] | None = None,
) -> list[torch.Tensor]:
    """What ``overload(*args)`` returns, computed from ``inputs`` by a resampling kernel.

    ``outputs`` are the results' layouts where PyTorch has no meta kernel to ask.
    """
    if outputs is None:
        outputs = infer(overload, *args)  # first, for its errors
    r, dtype = resampling(), inputs[0].dtype
    if dtype == torch.bool or (dtype.is_complex and r.mode not in PADDINGS):
        raise not_implemented(overload._schema.name.removeprefix("aten::"), dtype)
    return kernel_outputs(overload._schema.name, inputs, outputs, body(r))


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
        args = (self, kernel_size, stride, padding, dilation, ceil_mode)
        out, indices = resampled(
            forward,
            args,
            [self],
            resample.max_pool,
            lambda: max_pooling(windows(dims, kernel_size, stride, padding, dilation)),
        )
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
        args = (grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices)
        (out,) = resampled(
            backward,
            args,
            [grad_output, indices],
            resample.max_pool_backward,
            lambda: max_pooling(windows(dims, kernel_size, stride, padding, dilation)),
        )
        return out

    register_operator(forward, pool)
    register_operator(backward, pool_backward)


def adaptive_max_pool(dims: int) -> None:
    """Registers ``adaptive_max_pool<dims>d`` and its backward."""
    forward: OpOverload = getattr(aten, f"adaptive_max_pool{dims}d").default
    backward: OpOverload = getattr(aten, f"adaptive_max_pool{dims}d_backward").default
    r = adaptive(dims, mean=False)

    def pool(self: torch.Tensor, output_size: Sequence[int]) -> Pair:
        out, indices = resampled(forward, (self, output_size), [self], resample.max_pool, lambda: r)
        return out, indices

    def pool_backward(grad_output: torch.Tensor, self: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        args, inputs = (grad_output, self, indices), [grad_output, indices]
        return resampled(backward, args, inputs, resample.max_pool_backward, lambda: r)[0]

    register_operator(forward, pool)
    register_operator(backward, pool_backward)


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
        args, inputs = (self, kernel_size, output_size, random_samples), [self, random_samples]
        check_as_cpu(forward, *args)  # the meta kernel in three dimensions does not look at the samples
        out, indices = resampled(forward, args, inputs, resample.max_pool, lambda: axes(kernel_size))
        return out, indices

    def pool_backward(
        grad_output: torch.Tensor,
        self: torch.Tensor,
        kernel_size: Sequence[int],
        output_size: Sequence[int],
        indices: torch.Tensor,
    ) -> torch.Tensor:
        outputs = [(tuple(self.shape), contiguous_strides(self.shape), self.dtype)]
        args, inputs = (grad_output, self, kernel_size, output_size, indices), [grad_output, indices]
        return resampled(backward, args, inputs, resample.max_pool_backward, lambda: axes(kernel_size), outputs)[0]

    register_operator(forward, pool)
    register_operator(backward, pool_backward)


def averaging(
    dims: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    count_include_pad: bool,
    divisor_override: int | None,
) -> Resampling:
    if divisor_override == 0:  # not every release's meta kernels say so
        raise RuntimeError("divisor must be not zero")
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
        args = (self, kernel_size, stride, padding, ceil_mode, *rest)
        mean = partial(averaging, dims, kernel_size, stride, padding, *rest)
        return resampled(forward, args, [self], resample.forward, mean)[0]

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
        args = (grad_output, self, kernel_size, stride, padding, ceil_mode, *rest)
        mean = partial(averaging, dims, kernel_size, stride, padding, *rest)
        return resampled(backward, args, [grad_output], resample.adjoint, mean)[0]

    register_operator(forward, pool)
    register_operator(backward, pool_backward)


def adaptive_avg_pool(dims: int) -> None:
    """Registers ``_adaptive_avg_pool<dims>d``, its backward and the ``out=`` form of the public operator."""
    forward: OpOverload = getattr(aten, f"_adaptive_avg_pool{dims}d").default
    backward: OpOverload = getattr(aten, f"_adaptive_avg_pool{dims}d_backward").default
    public: OpOverload = getattr(aten, f"adaptive_avg_pool{dims}d").out
    r = adaptive(dims, mean=True)

    def pool(self: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
        return resampled(forward, (self, output_size), [self], resample.forward, lambda: r)[0]

    def pool_backward(grad_output: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
        return resampled(backward, (grad_output, self), [grad_output], resample.adjoint, lambda: r)[0]

    register_operator(forward, pool)
    register_operator(backward, pool_backward)
    impl(public, out_variant(public, pool))


def max_unpool(overload: OpOverload, dims: int) -> None:
    """Registers ``max_unpool<dims>d``: elements go to where they were in each plane.

    PyTorch's decomposition numbers the elements of all planes, so that an index beyond a plane is one in the next.
    """
    name = f"max_unpool{dims}d"

    def unpool(
        self: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int], *options: Sequence[int]
    ) -> torch.Tensor:
        if indices.shape != self.shape:
            check_as_cpu(overload, self, indices, output_size, *options)
        alert_not_deterministic(f"max_unpooling{dims}d_forward_out")
        ((shape, _, dtype),) = infer(overload, self, indices, output_size, *options)
        out = torch.zeros(shape, dtype=dtype, device=self.device)
        if out.numel() and self.numel():
            planes = prod(self.shape[:-dims])
            points = [t.reshape(planes, -1) for t in (indices, self)]
            scatter_(out.view(planes, -1), 1, *points, name=name)
        return out.contiguous(memory_format=suggest_memory_format(self)) if dims == 2 else out

    register_operator(overload, unpool, by_mode=True)


def register() -> None:
    max_unpool(aten.max_unpool2d.default, 2)
    max_unpool(aten.max_unpool3d.default, 3)
    for dims in (2, 3):
        max_pool(dims)
        adaptive_max_pool(dims)
        fractional_max_pool(dims)
        avg_pool(dims)
        adaptive_avg_pool(dims)
