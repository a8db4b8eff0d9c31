"""Sampling images at points given by a grid (spatial transformers): forward, and both gradients.

Images are (N, C, *size), grids (N, *output size, dims) with coordinates in [-1, 1], the last dimension's first.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.kernels.points import SPATIAL, PointKernel, absent, locator, spatial, wgsl_source
from torch_webgpu.layout import contiguous_strides
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered

GRID = ("n", "d", "h", "w", "k")


@dataclass(frozen=True)
class Sampling:
    """PyTorch's numbers: ``mode`` 0 linear, 1 nearest, 2 cubic; ``padding`` 0 zeros, 1 border, 2 reflection."""

    dims: int
    mode: int
    padding: int
    align_corners: bool


def forward(s: Sampling) -> Extern:
    """Arguments: image, grid → samples (N, C, *output size)."""
    return Extern(lower_forward, (s,))


def image_gradient(s: Sampling) -> Extern:
    """Arguments: the gradient at the samples, grid → the gradient at the image."""
    return Extern(lower_image_gradient, (s,))


def grid_gradient(s: Sampling) -> Extern:
    """Arguments: the gradient at the samples, grid, image → the gradient at the grid."""
    return Extern(lower_grid_gradient, (s,))


def _grid(spec: Spec, dims: int) -> Spec:
    """A grid's layout as (N, D, H, W, dims)."""
    if dims == 3:
        return spec
    shape, strides = spec.shape, spec.strides
    return spec._replace(shape=(shape[0], 1, *shape[1:]), strides=(strides[0], 0, *strides[1:]))


def _begin(kernel: PointKernel, s: Sampling, grid: Spec, image: Spec) -> None:
    """What all three kernels share: the constants, the grid (argument 1), the image's sizes."""
    flag = str(s.align_corners).lower()
    kernel.add(f"const MODE = {s.mode};", f"const PADDING = {s.padding};", f"const ALIGN_CORNERS = {flag};")
    kernel.binding(Binding("grid", grid.dtype), 1)
    kernel.add(locator(kernel.params, "grid", 1, GRID, _grid(grid, s.dims).strides))
    sizes = spatial(image, s.dims).shape
    for name, size in zip("dhw", sizes[2:], strict=True):
        kernel.param(f"image_{name}", size, "i32")
    kernel.param("channels", sizes[1])
    depth = "side_of(n, d, h, w, 2u, P.image_d)" if s.dims == 3 else "Side(0.0, 0.0, 1, 0)"
    kernel.add(wgsl_source("spatial/grid_sample"))
    kernel.add(f"fn side_d(n: u32, d: u32, h: u32, w: u32) -> Side {{ return {depth}; }}")


def lower_forward(op: Operation, alias: tuple[int, ...], target: Target, sampling: Sampling) -> Lowered:
    image, grid, out = op.args
    kernel = PointKernel("grid_sample", target, SPATIAL, absent(sampling.dims))
    _begin(kernel, sampling, grid, image)
    kernel.input("image", 0, spatial(image, sampling.dims))
    kernel.output("y", 2, spatial(out, sampling.dims))
    return Lowered((kernel.launch(wgsl_source("spatial/grid_sample_forward")),))


def lower_image_gradient(op: Operation, alias: tuple[int, ...], target: Target, sampling: Sampling) -> Lowered:
    grad, grid, image = op.args
    dims = sampling.dims
    scatter = PointKernel("grid_sample_scatter", target, SPATIAL, absent(dims))
    _begin(scatter, sampling, grid, image)
    scatter.input("grad", 0, spatial(grad, dims))
    scatter.binding(Binding("sums", "f32", "read_write", "atomic"), 3)
    first = scatter.visit(spatial(grad, dims), wgsl_source("spatial/grid_sample_scatter"))
    # Atomic sums are float32 whatever the image is; a second pass converts them, in the image's own layout.
    gather = PointKernel("grid_sample_sums", target, SPATIAL, absent(dims))
    gather.binding(Binding("sums", "f32"), 3)
    full = spatial(image, dims)
    for name, stride in zip(SPATIAL, contiguous_strides(full.shape), strict=True):
        gather.param(f"stride_{name}", stride)
    gather.output("y", 2, full)
    arguments = ", ".join(f"{c}: u32" for c in SPATIAL)
    at = " + ".join(f"{c} * P.stride_{c}" for c in SPATIAL)
    second = gather.launch(f"fn values({arguments}) -> Values {{ return Values(sums_load({at})); }}")
    return Lowered((first, second), (4 * prod(image.shape),), cleared=(0,))


def lower_grid_gradient(op: Operation, alias: tuple[int, ...], target: Target, sampling: Sampling) -> Lowered:
    grad, grid, image, out = op.args
    kernel = PointKernel("grid_sample_grid", target, GRID, frozenset("d" if sampling.dims == 2 else ""))
    _begin(kernel, sampling, grid, image)
    for name, arg, spec in (("grad", 0, grad), ("image", 2, image)):
        layout = spatial(spec, sampling.dims)
        kernel.binding(Binding(name, spec.dtype), arg)
        kernel.add(locator(kernel.params, name, arg, SPATIAL, layout.strides, absent(sampling.dims)))
    kernel.output("y", 3, _grid(out, sampling.dims))
    return Lowered((kernel.launch(wgsl_source("spatial/grid_sample_grid")),))
