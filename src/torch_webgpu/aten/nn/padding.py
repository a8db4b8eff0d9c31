"""Padding by reflection and replication. The other modes are copies into a larger tensor, which PyTorch composes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten
from torch_webgpu.kernels.spatial import resample
from torch_webgpu.kernels.spatial.resample import Axis, Resampling

from .pool import resampled

MODES = {"reflection": "reflect", "replication": "replicate"}


def pad(name: str, dims: int) -> None:
    """Registers ``<name>_pad<dims>d`` and its backward."""
    forward: OpOverload = getattr(aten, f"{name}_pad{dims}d").default
    backward: OpOverload = getattr(aten, f"{name}_pad{dims}d_backward").default

    def resampling(padding: Sequence[int]) -> Resampling:
        # PyTorch gives (before, after) for the last dimension first.
        return Resampling(MODES[name], tuple(Axis(pad=before) for before in reversed(padding[0::2])))

    def padded(self: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
        return resampled(forward, (self, padding), [self], resample.forward, lambda: resampling(padding))[0]

    def padded_backward(grad_output: torch.Tensor, self: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
        args = (grad_output, self, padding)
        return resampled(backward, args, [grad_output], resample.adjoint, lambda: resampling(padding))[0]

    register_operator(forward, padded)
    register_operator(backward, padded_backward)


def register() -> None:
    for name in MODES:
        for dims in (1, 2, 3):
            pad(name, dims)
