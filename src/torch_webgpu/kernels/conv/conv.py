"""Convolutions in one to three dimensions: forward, adjoint and weight gradient, as blocked products or one by one.

With x (N, C, *size), y (N, O, *size) and w (O, C / groups, *kernel), all of any strides:

* ``forward``: y = conv(x, w)
* ``adjoint``: x = convᵀ(y, w), which is a transposed convolution, and the gradient of the other's input
* ``weight``: the gradient of w from x and the gradient at y

each with an epilogue. Arguments of the operation: the operands, what the epilogue reads, its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import gcd, prod

from torch_webgpu.caches import memoized
from torch_webgpu.ir.operation import Extern, Operation
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.matmul.blocked import lower_product
from torch_webgpu.kernels.matmul.epilogue import Epilogue
from torch_webgpu.kernels.matmul.matmul import lower_matmul
from torch_webgpu.kernels.matmul.matrix_tile import HALF, LOW, QUARTER, MatrixTile
from torch_webgpu.kernels.matmul.problem import Problem
from torch_webgpu.kernels.matmul.store_sums import accumulator, add_partials
from torch_webgpu.kernels.matmul.tile import LARGE, LIGHT, SMALL, Tile
from torch_webgpu.kernels.points import SPATIAL, Draft, PointKernel, absent, spatial, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Launch, Lowered

from .conv_operands import Linear, Window
from .conv_pointwise import as_product
from .conv_problem import Conv, Geometry, conv_of
from .conv_weight_direct import weight_direct

# Rows and columns take more registers here than in a matrix product: what HUGE and MEDIUM leave does not hold them.
TILES = (LARGE, LIGHT, SMALL)
# The same on matrices, where an operand is gathered from its numbers.
GATHERING = (HALF, QUARTER, LOW)
FEW_ROWS = 4
"""Up to so many channels in a group a blocked product is mostly padding, and slower unless sums are longer than …"""
SHORT_SUM = 128
READ_THROUGH = {
    "forward": ("conv/conv_x",),
    "adjoint": ("conv/conv_phases", "conv/conv_y"),
    "weight": ("conv/conv_x",),
}


@memoized("convolutions", 1024)
def extern(mode: str, geometry: Geometry, dtype: str, bias: bool) -> Extern:
    """Operands: (x, w) for "forward", (y, w) for "adjoint", (y, x) for "weight", all of ``dtype``.

    ``bias``: a third input, which broadcasts to the output, is added.
    """
    result = ops.acc(0, accumulator(dtype))
    if bias:
        result += ops.to_dtype(ops.load(2, dtype), result.dtype)
    return Extern(lower_conv, (mode, geometry), operands=2, epilogue=(ops.to_dtype(result, dtype),))


def lower_conv(op: Operation, alias: tuple[int, ...], target: Target, mode: str, geometry: Geometry) -> Lowered:
    c = conv_of(op, mode, geometry)
    product = as_product(op, c) if c.kind == "f" else None
    if product is not None:
        return lower_matmul(product, alias, target)
    e = Epilogue(op, alias, SPATIAL, partial(spatial, dims=c.dims), absent(c.dims))
    problem = ConvProblem(c.dtype, c.sizes, (Linear(c), Window(c)), e, target, c)
    few = are_few(c.rows, c.depth * c.taps, mode)
    lowered = lower_product(problem) if c.kind == "f" and not few else None
    if lowered is not None:
        return lowered
    return weight_direct(problem, c) if mode == "weight" else Lowered((direct(c, e, target),))


def are_few(rows: int, products: int, mode: str) -> bool:
    """Whether results of so many channels in a group, sums of so many products, are computed one by one."""
    return rows <= FEW_ROWS and (products <= SHORT_SUM or mode == "weight")


def direct(c: Conv, e: Epilogue, target: Target) -> Launch:
    kernel = point_kernel(f"conv_{c.mode}", c, e, target)
    for name in c.operands:
        kernel.input(name, c.args[name], c.specs[name])
    kernel.param("n" if c.flipped else "m", c.rows)
    e.give_outputs(kernel)
    kernel.add(*map(wgsl_source, READ_THROUGH[c.mode]))
    return kernel.launch(wgsl_source(f"conv/conv_{c.mode}_direct"))


def point_kernel(name: str, c: Conv, e: Epilogue, target: Target, phases: tuple[int, ...] | None = None) -> PointKernel:
    """A kernel whose ``values`` calls the epilogue's ``result``."""
    kernel = PointKernel(name, target, SPATIAL, absent(c.dims))
    kernel.add(*c.prelude(kernel.params, phases), wgsl_source("conv/conv"), *e.text(kernel.params))
    for binding, arg in e.inputs():
        kernel.binding(binding, arg)
    return kernel


@dataclass(frozen=True)
class ConvProblem(Problem):
    """The product that computes a convolution. ``operands``: the linear one, and that of windows."""

    c: Conv

    @property
    def name(self) -> str:
        return f"conv_{self.c.mode}"

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return TILES

    @property
    def gathering(self) -> tuple[MatrixTile, ...]:
        return GATHERING

    @property
    def is_of_matrices(self) -> bool:
        return False

    @property
    def reads_ahead(self) -> bool:
        return False

    def kernel(self) -> Draft:
        c, (linear, window) = self.c, self.operands
        kernel = Draft(SPATIAL, absent(c.dims))
        kernel.add(*c.prelude(kernel.params, c.phases), wgsl_source("conv/conv"))
        for operand in (linear, window) if c.mode == "adjoint" else (window, linear):  # the tensors as x, w, y
            operand.bind(kernel)
        kernel.add(*map(wgsl_source, READ_THROUGH[c.mode]))
        return kernel

    def places(self) -> list[str]:
        c = self.c
        channel, column = ("n", "m") if c.flipped else ("m", "n")
        return [
            wgsl_source(f"conv/conv_{c.mode}_store"),
            f"fn place(slice: u32, m: u32, n: u32) -> Place {{ return element(slice, {channel}, {column}); }}",
            f"fn is_stored(slice: u32, m: u32, n: u32) -> bool {{ return is_element(slice, {column}); }}",
        ]

    def widths(self, most: int) -> dict[int, int]:
        """Columns of the sums are channels of a group or positions of the output, in order, but for those of weights
        and of phases.
        """
        c, e = self.c, self.epilogue
        if c.flipped:
            return e.widths(1, self.target, gcd(c.rows, most))
        return {} if c.mode == "weight" or prod(c.phases) > 1 else e.widths(4, self.target, most)

    def split_sum(self, splits: int) -> tuple[Launch, int]:
        c, e, (slices, m, n, _) = self.c, self.epilogue, self.sizes
        kernel = point_kernel(f"conv_{c.mode}_split_sum", c, e, self.target, c.phases)
        if c.mode == "adjoint":
            kernel.add(wgsl_source("conv/conv_phases"))
        e.give_outputs(kernel)
        size = add_partials(kernel, self.partials, c.kind, slices, splits, m, n)
        place = "column, channel" if c.flipped else "channel, column"
        total = "fn total_of(slice: u32, channel: u32, column: u32) -> T"
        kernel.add(f"{total} {{ return split_total(slice, {place}); }}")
        return kernel.launch(wgsl_source(f"conv/conv_{c.mode}_sum")), size
