"""A mask of blocks of queries and keys, from lists of which blocks of keys each block of queries sees."""

from __future__ import annotations

from torch_webgpu.ir.operation import Extern, Operation
from torch_webgpu.kernels.points import PointKernel, constant, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

from .score_function import BLOCKS, PARTLY, SEEN

COORDINATES = ("b", "h", "line", "word")
LISTS = (("listed", "counts", "numbers"), ("full_listed", "full_counts", "full_numbers"))


def extern(is_transposed: bool) -> Extern:
    """Arguments: how many blocks of keys each block of queries sees in part (B, H, rows), and which (B, H, rows, most),
    int32; perhaps the same of those that all its queries see → int32 (B, H, lines, words): what
    :mod:`.score_function` says of a line of 16 blocks. A line is of a block of queries, or if it ``is_transposed`` of
    one of keys.
    """
    return Extern(lower, (is_transposed,))


def lower(op: Operation, alias: tuple[int, ...], target: Target, is_transposed: bool) -> Lowered:
    kernel = PointKernel("block_mask", target, COORDINATES)
    kernel.add(constant("BLOCKS", BLOCKS))
    kernel.add(constant("PARTLY", PARTLY), constant("SEEN", SEEN), constant("IS_TRANSPOSED", is_transposed))
    kernel.param("rows", op.inputs[0].shape[2])
    for n, (listed, counts, numbers) in enumerate(LISTS):
        count = "0u"
        if 2 * n < len(op.inputs):
            many, which = op.inputs[2 * n : 2 * n + 2]
            kernel.input(counts, 2 * n, many._replace(shape=(*many.shape, 1), strides=(*many.strides, 0)))
            kernel.input(numbers, 2 * n + 1, which)
            most = kernel.params.add(f"most_{listed}", which.shape[3])
            count = f"min(u32({counts}_load({counts}_at(b, h, row, 0u))), {most})"
        else:
            kernel.add(f"fn {numbers}_at(b: u32, h: u32, row: u32, i: u32) -> u32 {{ return 0u; }}")
            kernel.add(f"fn {numbers}_load(i: u32) -> i32 {{ return 0i; }}")
        kernel.add(f"fn {listed}(b: u32, h: u32, row: u32) -> u32 {{ return {count}; }}")
    kernel.output("mask", len(op.inputs), op.outputs[0])
    return Lowered((kernel.launch(wgsl_source("attention/block_mask")),))
