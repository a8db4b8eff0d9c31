"""Which convolutions are faster with their channels last: those whose runs of channels tensor cores multiply.

With channels last what a convolution sums over lies side by side for every image size and kernel, and travels in whole
runs; with channels first an operand is gathered number by number, which takes three times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch_webgpu.kernels.matmul.matrix_tile import config_for, tiles_for
from torch_webgpu.kernels.matmul.operand import run_of
from torch_webgpu.kernels.matmul.scaled import operand_for
from torch_webgpu.target import Target


def multiplications(y: Sequence[int], w: Sequence[int]) -> int:
    """Of a convolution with weights (O, C / groups, *kernel) that has results (N, O, *size)."""
    return prod(y) * prod(w[1:])


def multiplies_runs(target: Target, dtype: str, w: Sequence[int], work: int) -> bool:
    """Whether tensor cores multiply whole runs of channels of a convolution of ``dtype`` with weights of shape ``w``
    and so many multiplications.
    """
    run, config = run_of(dtype), config_for(target, operand_for(dtype, work))
    whole = w[0] % run == 0 and w[1] % run == 0
    return whole and config is not None and bool(tiles_for(target, config))
