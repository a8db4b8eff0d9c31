"""Interpolation: every ``upsample_*`` operator behind ``torch.nn.functional.interpolate``, with its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.aten.dispatch.refusals import refusal
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import not_implemented
from torch_webgpu.aten.dispatch.torch_abi import Meta, aten, infer
from torch_webgpu.caches import memoized
from torch_webgpu.kernels.spatial import byte_resample, resample
from torch_webgpu.kernels.spatial.resample import Axis, Resampling
from torch_webgpu.layout import contiguous_strides

from .pool import resampled

Scales = Sequence[float | None]


@dataclass(frozen=True)
class Method:
    """How one operator interpolates; ``aligns``: it takes ``align_corners``."""

    name: str
    dims: int
    mode: str
    constants: tuple[tuple[str, int | bool | float], ...] = ()

    @property
    def aligns(self) -> bool:
        return self.mode != "nearest"

    @property
    def taps(self) -> int:
        """How many inputs make an output, where it covers no more than one."""
        given = dict(self.constants)
        return int(given.get("TAPS", 2 * given.get("RADIUS", 1)))

    def resampling(
        self, sizes: Sequence[int], output_sizes: Sequence[int], align_corners: bool, scales: Scales
    ) -> Resampling:
        axes = tuple(
            Axis(scale=self.scale(size, out, align_corners, given))
            for size, out, given in zip(sizes, output_sizes, scales, strict=True)
        )
        constants = self.constants
        if self.mode == "interpolate":
            constants = (*constants, ("ALIGN_CORNERS", align_corners))
        return Resampling(self.mode, axes, constants)

    def scale(self, size: int, out: int, align_corners: bool, scale_factor: float | None) -> float:
        """Inputs per output, as PyTorch's CPU kernels compute it."""
        if align_corners:
            return (size - 1) / (out - 1) if out > 1 else 0.0
        exact = dict(self.constants).get("EXACT", False)
        if self.mode != "antialias" and not exact and out == size:
            return 1.0
        if self.mode == "nearest" and not exact and out == 2 * size:
            return 0.5
        return 1.0 / scale_factor if scale_factor is not None and scale_factor > 0 else size / out


METHODS = (
    *(Method(f"upsample_nearest{d}d", d, "nearest", (("EXACT", False),)) for d in (1, 2, 3)),
    *(Method(f"_upsample_nearest_exact{d}d", d, "nearest", (("EXACT", True),)) for d in (1, 2, 3)),
    Method("upsample_linear1d", 1, "interpolate", (("TAPS", 2),)),
    Method("upsample_bilinear2d", 2, "interpolate", (("TAPS", 2),)),
    Method("upsample_trilinear3d", 3, "interpolate", (("TAPS", 2),)),
    Method("upsample_bicubic2d", 2, "interpolate", (("TAPS", 4),)),
    Method("_upsample_bilinear2d_aa", 2, "antialias", (("RADIUS", 1.0),)),
    Method("_upsample_bicubic2d_aa", 2, "antialias", (("RADIUS", 2.0),)),
)


FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def unsupported(m: Method, overload: OpOverload, values: Sequence[Any]) -> str | None:
    """Why what comes first among the arguments cannot be interpolated here; raises where the CPU cannot either."""
    dtype = values[0].dtype
    is_image = overload._schema.name.endswith(m.name) and (m.dims == 2 or not m.aligns)
    if dtype not in FLOATS and not (dtype == torch.uint8 and is_image):
        raise refusal(overload, values, {}, of_dtypes=True) or not_implemented(cpu_name(m, overload), dtype)
    return "interpolation weights are computed in float32" if dtype == torch.float64 and m.aligns else None


def cpu_name(m: Method, overload: OpOverload) -> str:
    """What the CPU's errors call the kernel of an operator or of its gradient, which is never asked."""
    name = overload._schema.name.split("::")[1]
    return f"{name.removeprefix('_')}_cpu" if m.mode == "antialias" else name


def layouts(forward: OpOverload, self: torch.Tensor, *rest: Any) -> list[Meta]:
    """What ``forward`` returns. PyTorch's meta kernels of volumes fail on an empty batch: they are asked about one."""
    if not self.dim() or self.shape[0]:
        return infer(forward, self, *rest)
    one = torch.empty((1, *self.shape[1:]), dtype=self.dtype, device="meta")
    return [((0, *shape[1:]), strides, dtype) for shape, strides, dtype in infer(forward, one, *rest)]


def resampled_bytes(
    m: Method, forward: OpOverload, values: Sequence[Any], align_corners: bool, scales: Scales
) -> torch.Tensor:
    """Images of bytes as CPU PyTorch interpolates them: along the rows, rounded to bytes, then along the columns."""
    self, output_size = values[:2]
    axes = m.resampling(self.shape[2:], output_size, align_corners, scales).axes

    def along(k: int, x: torch.Tensor, metas: list[Meta]) -> torch.Tensor:
        size, extent, scale = self.shape[2 + k], output_size[k], axes[k].scale
        known = (size, extent, scale, m.taps, m.mode == "antialias", align_corners)
        table, bits = table_of(*known)
        body = byte_resample.forward(k == 1, bits, table.shape[1])
        return kernel_outputs(forward._schema.name, [x, table.to(x.device)], metas, body)[0]

    if not self.numel():
        ((shape, strides, dtype),) = layouts(forward, *values)
        return torch.empty_strided(shape, strides, dtype=dtype, device=self.device)
    between = (*self.shape[:3], output_size[1])
    rows = along(1, self, [(between, contiguous_strides(between), self.dtype)])
    return along(0, rows, layouts(forward, *values))


@memoized("tables of resizing", 256)
def table_of(*known: Any) -> tuple[torch.Tensor, int]:
    """The :class:`byte_resample.Weights` of these, on the host, and how many bits they have after the point."""
    rows, bits = byte_resample.weights(*known)
    return torch.tensor(rows, dtype=torch.int32, device="cpu"), bits


def method_kernels(
    m: Method, forward: OpOverload, backward: OpOverload
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The functional kernels of one operator and of its gradient."""

    def split(rest: Sequence[Any]) -> tuple[bool, Scales]:
        align_corners = bool(rest[0]) if m.aligns else False
        scales = list(rest[1:] if m.aligns else rest)
        return align_corners, scales + [None] * (m.dims - len(scales))

    def arguments(overload: OpOverload, given: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """All arguments of the schema in order."""
        schema = overload._schema.arguments
        return [*given, *(kwargs.get(a.name, a.default_value) for a in schema[len(given) :])]

    def upsample(*args: Any, **kwargs: Any) -> Any:
        values = self, output_size, *rest = arguments(forward, args, kwargs)
        if reason := unsupported(m, forward, values):
            return run_on_cpu(forward, args, kwargs, reason)
        if m.dims == 2 and m.aligns and self.dtype == torch.uint8:
            return resampled_bytes(m, forward, values, *split(rest))
        return resampled(
            forward,
            values,
            [self],
            resample.forward,
            lambda: m.resampling(self.shape[2:], output_size, *split(rest)),
            layouts(forward, *values),
        )[0]

    def upsample_backward(*args: Any, **kwargs: Any) -> Any:
        values = grad, output_size, input_size, *rest = arguments(backward, args, kwargs)
        if reason := unsupported(m, backward, values):
            return run_on_cpu(backward, args, kwargs, reason)
        return resampled(
            backward,
            values,
            [grad],
            resample.adjoint,
            lambda: m.resampling(input_size[2:], output_size, *split(rest)),
        )[0]

    return upsample, upsample_backward


def register() -> None:
    for m in METHODS:
        forward, backward = getattr(aten, m.name).default, getattr(aten, f"{m.name}_backward").default
        upsample, upsample_backward = method_kernels(m, forward, backward)
        register_operator(forward, upsample)
        register_operator(backward, upsample_backward)
