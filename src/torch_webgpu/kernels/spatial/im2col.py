"""Patches of an image as columns (``unfold``, im2col), and their sum back in place (``fold``, col2im)."""

from __future__ import annotations

from dataclasses import dataclass

from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.kernels.points import PointKernel, arithmetic, locator, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered

IMAGE = ("n", "c", "h", "w")
COLUMNS = ("n", "row", "at")


@dataclass(frozen=True)
class PatchGeometry:
    """Sizes along (height, width)."""

    kernel: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    stride: tuple[int, int]

    def count(self, sizes: tuple[int, ...]) -> list[int]:
        """How many patches fit along each dimension of an image."""
        terms = zip(sizes, self.kernel, self.dilation, self.padding, self.stride, strict=True)
        return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, d, p, s in terms]

    def params(self, kernel: PointKernel, sizes: tuple[int, ...]) -> None:
        count = self.count(sizes)
        for i, d in enumerate("hw"):
            kernel.param(f"kernel_{d}", self.kernel[i])
            kernel.param(f"dilation_{d}", self.dilation[i])
            kernel.param(f"pad_{d}", self.padding[i], "i32")
            kernel.param(f"stride_{d}", self.stride[i])
            kernel.param(f"columns_{d}", count[i])


def unfold(p: PatchGeometry) -> Extern:
    """Arguments: an image (N, C, H, W) or (C, H, W) → columns (N, C * taps, positions)."""
    return Extern(lower_unfold, (p,))


def fold(p: PatchGeometry) -> Extern:
    """Arguments: columns → an image."""
    return Extern(lower_fold, (p,))


def batched(spec: Spec, rank: int) -> Spec:
    if len(spec.shape) == rank:
        return spec
    return spec._replace(shape=(1, *spec.shape), strides=(0, *spec.strides))


def lower_unfold(op: Operation, alias: tuple[int, ...], target: Target, patches: PatchGeometry) -> Lowered:
    image, columns = batched(op.args[0], 4), batched(op.args[1], 3)
    kernel = PointKernel("unfold", target, COLUMNS)
    kernel.add(arithmetic(image.dtype))
    patches.params(kernel, image.shape[2:])
    for d, size in zip("hw", image.shape[2:], strict=True):
        kernel.param(f"size_{d}", size, "i32")
    kernel.binding(Binding("image", image.dtype), 0)
    kernel.add(locator(kernel.params, "image", 0, IMAGE, image.strides))
    kernel.output("columns", 1, columns)
    return Lowered((kernel.launch(wgsl_source("spatial/im2col")),))


def lower_fold(op: Operation, alias: tuple[int, ...], target: Target, patches: PatchGeometry) -> Lowered:
    columns, image = batched(op.args[0], 3), batched(op.args[1], 4)
    kernel = PointKernel("fold", target, IMAGE)
    kernel.add(arithmetic(image.dtype, "add"))
    patches.params(kernel, image.shape[2:])
    kernel.binding(Binding("columns", columns.dtype), 0)
    kernel.add(locator(kernel.params, "columns", 0, COLUMNS, columns.strides))
    kernel.output("image", 1, image)
    return Lowered((kernel.launch(wgsl_source("spatial/col2im")),))
