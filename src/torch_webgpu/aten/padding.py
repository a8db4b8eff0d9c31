"""Padding by reflection and replication. The other modes are copies into a larger tensor, which PyTorch composes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from torch_webgpu.kernels import resample
from torch_webgpu.kernels.resample import Axis, Resampling

from .pool import record
from .torch_abi import aten, outputs_of
from .variants import register_functional

MODES = {"reflection": "reflect", "replication": "replicate"}


def pad(name: str, dims: int) -> None:
    """Registers ``<name>_pad<dims>d`` and its backward."""
    forward: OpOverload = getattr(aten, f"{name}_pad{dims}d").default
    backward: OpOverload = getattr(aten, f"{name}_pad{dims}d_backward").default

    def resampling(padding: Sequence[int]) -> Resampling:
        # PyTorch gives (before, after) for the last dimension first.
        return Resampling(MODES[name], tuple(Axis(pad=before) for before in reversed(padding[0::2])))

    def padded(self: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
        (out,) = outputs_of(forward, self, padding)
        record(f"{name}_pad", [self], [out], resample.forward, resampling(padding))
        return out

    def padded_backward(grad_output: torch.Tensor, self: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
        (out,) = outputs_of(backward, grad_output, self, padding)
        record(f"{name}_pad_backward", [grad_output], [out], resample.adjoint, resampling(padding))
        return out

    register_functional(forward, padded)
    register_functional(backward, padded_backward)


def register() -> None:
    for name in MODES:
        for dims in (1, 2, 3):
            pad(name, dims)
