"""``torch.webgpu.quantize_``: packed weights without another library."""

from __future__ import annotations

from collections.abc import Callable

import torch


def quantize_(
    model: torch.nn.Module,
    dtype: str = "int8",
    *,
    group_size: int = 32,
    filter_fn: Callable[[torch.nn.Module, str], bool] | None = None,
) -> torch.nn.Module:
    """Replaces linear layers of ``model`` by layers with weights of ``dtype``, "int8" or "int4"; returns the model, or
    the new layer where the model is a linear layer itself. Transformers' ``Conv1D`` is a linear layer, too.

    ``group_size``: how many numbers of a row share a scale, of int4: 32, 64, 128 or 256. A layer whose rows are no
    multiple of it stays as it is. ``filter_fn(module, name)``: which linear layers; all if None. A weight that is
    shared with another module, as of an embedding, stays there as it is. The layers have no derivative. ValueError for
    another dtype or group size.
    """
    from torch_webgpu.quantized_linear import quantize_ as quantize

    return quantize(model, dtype, group_size=group_size, filter_fn=filter_fn)
