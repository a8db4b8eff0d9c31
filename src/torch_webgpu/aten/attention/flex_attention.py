"""``torch.nn.attention.flex_attention`` on webgpu: PyTorch's own code, which lists the devices that it allows.

What runs without ``torch.compile`` is made of plain operators, vmap and autograd, forward and backward, on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention

from torch_webgpu.aten.dispatch.autocast import cast
from torch_webgpu.aten.dispatch.torch_abi import AUTOCAST_KEY, DEVICE_TYPE, exclude_autocast


def allow_webgpu(plain: Callable[..., None]) -> Callable[..., None]:
    """``_validate_device`` takes webgpu as it takes CUDA, with gradients; it knows devices by name.

    https://github.com/pytorch/pytorch/blob/main/torch/nn/attention/flex_attention.py
    """

    @wraps(plain)
    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != DEVICE_TYPE:
            plain(query, key, value)

    return validate


def autocast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
    """The operator under ``torch.autocast("webgpu")``: PyTorch registers the same one for the CPU and for CUDA."""
    dtype = torch.get_autocast_dtype(DEVICE_TYPE)
    with exclude_autocast():
        return flex_attention(*[cast(t, dtype) for t in (query, key, value)], *rest)


def register() -> None:
    flex_attention.py_impl(AUTOCAST_KEY)(autocast)
