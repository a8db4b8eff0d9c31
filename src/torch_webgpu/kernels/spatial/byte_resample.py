"""Interpolation of bytes as CPU PyTorch does it: a dimension at a time, with weights of 16 bits computed in float64.

After HelperInterpBase in aten/src/ATen/native/cpu/UpSampleKernel.cpp, which Pillow's resampling is the model of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, floor
from typing import NamedTuple

from torch_webgpu.ir.operation import Extern, Operation
from torch_webgpu.kernels.points import SPATIAL, PointKernel, absent, constant, spatial, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered, Source

MAX_BITS = 22


class WeightedWindow(NamedTuple):
    """The first input of an output, the weights from there on, and the largest number met in adding these up."""

    first: int
    weights: list[float]
    peak: float


class Weights(NamedTuple):
    """``rows``: for each output the first input, how many inputs, and their weights times 2 ** ``bits``."""

    rows: list[list[int]]
    bits: int


def weights(size: int, extent: int, scale: float, taps: int, antialias: bool, align_corners: bool) -> Weights:
    """How ``extent`` outputs follow from ``size`` inputs, ``scale`` inputs apart; ``taps``: 2 linear, 4 cubic."""
    keys = -0.5 if antialias else -0.75
    kernel = triangle if taps == 2 else partial(cubic, keys)
    if antialias:
        windows = [averaged(o, size, scale, taps, kernel) for o in range(extent)]
    else:
        windows = [between(o, size, scale, taps, kernel, align_corners) for o in range(extent)]
    largest = max((w.peak for w in windows), default=0.0)
    bits = next((b for b in range(MAX_BITS) if int(0.5 + largest * 2 ** (b + 1)) >= 2**15), MAX_BITS)
    width = max((len(w.weights) for w in windows), default=0)
    rows = [
        [w.first, len(w.weights), *(whole(v * 2**bits) for v in w.weights), *[0] * (width - len(w.weights))]
        for w in windows
    ]
    return Weights(rows, bits)


def whole(value: float) -> int:
    """The nearest integer, halves away from zero."""
    return int(value - 0.5) if value < 0 else int(value + 0.5)


def triangle(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def cubic(a: float, x: float) -> float:
    """Keys' kernel."""
    x = abs(x)
    if x < 1.0:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2.0 else 0.0


def averaged(o: int, size: int, scale: float, taps: int, kernel: Callable[[float], float]) -> WeightedWindow:
    """Over as many inputs as the output covers."""
    stretch = max(scale, 1.0)
    support = taps * 0.5 * stretch
    centre = scale * (o + 0.5)
    first = max(int(centre - support + 0.5), 0)
    count = min(max(min(int(centre + support + 0.5), size) - first, 0), ceil(support) * 2 + 1)
    inverse = 1.0 / scale if scale >= 1.0 else 1.0
    weights = [kernel((j + first - centre + 0.5) * inverse) for j in range(count)]
    total = 0.0
    for weight in weights:
        total += weight
    weights = [w / total for w in weights] if total else weights
    return WeightedWindow(first, weights, max(weights, default=0.0))


def between(
    o: int, size: int, scale: float, taps: int, kernel: Callable[[float], float], align_corners: bool
) -> WeightedWindow:
    """Between neighbours; the first and the last input stand for those outside the image, too."""
    position = scale * o if align_corners else scale * (o + 0.5) - 0.5
    if taps == 2 and not align_corners:
        position = max(position, 0.0)
    index = min(floor(position), size - 1)
    rest = min(max(position - index, 0.0), 1.0)
    support = taps // 2
    before = index - support + 1
    first = max(before, 0)
    count = min(max(min(index + support + 1, size) - first, 0), taps)
    weights, at, peak = [0.0] * taps, 0, 0.0
    for j in range(taps):
        if before + j <= 0:
            at = 0
        elif before + j >= size - 1:
            at = count - 1
        weights[at] += kernel(j + 1 - support - rest)
        peak = max(peak, weights[at])
        at += 1
    return WeightedWindow(first, weights[:count], peak)


def forward(along_rows: bool, bits: int, width: int) -> Extern:
    """Arguments: x (N, C, H, W), table (outputs, ``width``) of :class:`Weights` → y; along rows, or along columns."""
    return Extern(lower_bytes, (along_rows, bits, width))


def lower_bytes(
    op: Operation, alias: tuple[int, ...], target: Target, along_rows: bool, bits: int, width: int
) -> Lowered:
    x, y = (spatial(op.args[k], 2) for k in (0, 2))
    kernel = PointKernel("byte_resample", target, SPATIAL, absent(2))
    kernel.add(constant("ALONG_ROWS", along_rows), constant("BITS", bits), constant("WIDTH", width))
    kernel.input("x", 0, x)
    kernel.binding(Binding("table", "i32"), 1)
    kernel.param("table_offset", Source("offset", 1))
    kernel.output("y", 2, y)
    return Lowered((kernel.launch(wgsl_source("spatial/byte_resample")),))
