"""How tensors of registered dtypes are printed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from . import compute
from .tensor import DTypeTensor

THRESHOLD, EDGE_ITEMS = 1000, 3
"""PyTorch's: the elements above which a tensor is summarised, and how many of each end are left."""


PLAIN = (torch.Tensor, torch.nn.Parameter)
"""What has contents, as a compiler's tensors have not."""


def text_of(tensor: DTypeTensor) -> str:
    """``tensor([…], dtype=name)``, with the numbers that it holds, or as ``display`` says."""
    config, display = tensor.config, tensor.config.display
    if tensor.device.type == "meta" or any(type(one) not in PLAIN for one in tensor.components.values()):
        return f"tensor(..., {_suffix(tensor)}, size={tuple(tensor.shape)})"
    if display.element is not None:
        body = _formatted(tensor, display.element)
    elif config.has_numbers:
        printed = repr(compute.loaded(tensor.detach()).cpu())  # type: ignore[arg-type]
        body = printed[len("tensor(") :].rsplit("]", 1)[0] + "]" if tensor.dim() else printed[len("tensor(") : -1]
    else:
        body = ", ".join(f"{name}={component!r}" for name, component in tensor.components.items())
    return f"tensor({body}, {_suffix(tensor)})"


def _suffix(tensor: DTypeTensor) -> str:
    parts = [f"dtype={tensor.config.name}"]
    if tensor.device.type != "cpu":
        parts.append(f"device='{tensor.device}'")
    if tensor.config.display.components:
        parts += [f"{name}={one.dtype}{list(one.shape)}" for name, one in tensor.components.items()]
    if tensor.grad_fn is not None:
        parts.append(f"grad_fn=<{type(tensor.grad_fn).__name__}>")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    return ", ".join(parts)


def _formatted(tensor: DTypeTensor, element: str) -> str:
    """Each element as the format string has it."""
    names = list(tensor.components)
    columns = [one.detach().cpu().reshape(-1).tolist() for one in tensor.components.values()]
    texts = np.empty(tensor.numel(), dtype=object)
    texts[:] = [element.format(**dict(zip(names, row))) for row in zip(*columns)]
    formatter: Any = {"object": str}
    if not tensor.dim():
        return str(texts[0])
    return np.array2string(
        texts.reshape(tuple(tensor.shape)), separator=", ", prefix="tensor(", formatter=formatter, max_line_width=100,
        threshold=THRESHOLD, edgeitems=EDGE_ITEMS,
    )  # fmt: skip


DTypeTensor.text_of = staticmethod(text_of)
