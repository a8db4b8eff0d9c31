"""Gradients of the weights of convolutions whose groups have few channels, such as depthwise ones."""

from __future__ import annotations

from torch_webgpu.kernels.matmul.blocked import add_sums, with_sum
from torch_webgpu.kernels.matmul.problem import Problem
from torch_webgpu.kernels.template import render
from torch_webgpu.wgsl.launch import Lowered, grid_of

from .conv_problem import Conv

THREADS = 128
CHANNELS = 32
"""Pairs of channels that are computed side by side where they are neighbours in memory."""
MOST_TAPS = 8
"""Of a window's row that a thread sums."""
BUSY_GROUPS = 2048
"""Workgroups that occupy a large GPU."""
LEAST_POSITIONS = 16
"""A thread's, of a sum that is split: with fewer, partial sums take longer to add up than it is worth."""


def weight_direct(problem: Problem, c: Conv) -> Lowered:
    """Reads y and x once for each row of a window, from caches but for the first time."""
    slices, m, n, positions = problem.sizes
    width = c.specs["w"].shape[4]
    taps = min(width, MOST_TAPS)
    pairs = slices * m * c.depth
    lanes = CHANNELS if c.channels_last("y") and pairs >= CHANNELS else 1
    groups = -(-pairs // lanes) * (c.taps // width) * -(-width // taps)
    most = 1 if problem.target.software else positions // (THREADS // lanes * LEAST_POSITIONS)
    splits = max(1, min(most, -(-BUSY_GROUPS // groups)))
    kernel = problem.kernel()
    add_sums(kernel, problem, splits)
    params = {
        "m": m,
        "n": n,
        "k": positions,
        "pairs": pairs,
        "groups": groups * splits,
        "splits": splits,
        "positions": -(-positions // splits),
    }
    for name, value in params.items():
        kernel.param(name, value)
    body = [f"const THREADS = {THREADS}u;", render("conv/conv_weight_direct", taps=taps, lanes=lanes, threads=THREADS)]
    return with_sum(problem, splits, kernel.build("conv_weight", body, THREADS, grid_of(groups * splits)))
