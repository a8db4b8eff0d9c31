"""A mask of blocks of queries and keys, from lists of which blocks of keys each block of queries sees."""

from __future__ import annotations

from torch_webgpu.ir.operation import Extern, Operation
from torch_webgpu.kernels.points import PointKernel, constant, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

from .score_function import HIDDEN, PARTLY, SEEN

COORDINATES = ("b", "h", "row", "column")


def extern() -> Extern:
    """Arguments: how many blocks of keys each block of queries sees in part (B, H, rows), and which (B, H, rows, most),
    int32; perhaps the same of those that all its queries see → int32 (B, H, rows, columns), of :data:`HIDDEN`,
    :data:`PARTLY` and :data:`SEEN`.
    """
    return Extern(lower)


def lower(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    kernel = PointKernel("block_mask", target, COORDINATES)
    names = ("counts", "numbers", "full_counts", "full_numbers")
    for arg, (name, spec) in enumerate(zip(names, op.inputs)):
        if name.endswith("counts"):
            spec = spec._replace(shape=(*spec.shape, 1), strides=(*spec.strides, 0))
        else:
            kernel.param(f"{name.removesuffix('numbers')}listed", spec.shape[3])
        kernel.input(name, arg, spec)
    for name, value in (("HIDDEN", HIDDEN), ("PARTLY", PARTLY), ("SEEN", SEEN)):
        kernel.add(f"const {name} = {value}i;")
    is_full_listed = len(op.inputs) > 2
    kernel.add(constant("IS_FULL_LISTED", is_full_listed))
    if not is_full_listed:
        for name in names[2:]:
            kernel.add(f"fn {name}_at(b: u32, h: u32, row: u32, i: u32) -> u32 {{ return 0u; }}")
            kernel.add(f"fn {name}_load(i: u32) -> i32 {{ return 0i; }}")
        kernel.param("full_listed", 0)
    kernel.output("mask", len(op.inputs), op.outputs[0])
    return Lowered((kernel.launch(wgsl_source("attention/block_mask")),))
