"""Linear layers whose weights are integers of 8 or 4 bits, made of those of a trained model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_webgpu.aten.quantized.int4_mm import int4_mm
from torch_webgpu.aten.quantized.packed_matrix import PER_WORD
from torch_webgpu.aten.quantized.weight_only import GROUP_SIZES

DTYPES = ("int8", "int4")


class QuantizedLinear(nn.Module):
    """A linear layer (``in_features`` k, ``out_features`` n) with a packed ``weight``.

    int8: ``weight`` (n, k) of int8 and ``scales`` (n,); a number is ``weight * scale``. int4: ``weight`` (n, k / 8) of
    int32, eight numbers q each, the first in the lowest bits; ``scales`` (n, k / group_size, 2) are pairs of a scale
    and a zero; a number is ``(q - 8) * scale + zero``. Products are those of ``_weight_int8pack_mm`` and
    ``_weight_int4pack_mm``: without a derivative.
    """

    weight: torch.Tensor
    scales: torch.Tensor

    def __init__(self, weight: torch.Tensor, bias: nn.Parameter | None, dtype: str, group_size: int) -> None:
        """Of a floating ``weight`` (n, k)."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype, self.group_size = dtype, group_size
        with torch.no_grad():
            numbers = weight.detach().float().contiguous()
            codes, scales = int8_of(numbers) if dtype == "int8" else int4_of(numbers, group_size)
        self.register_buffer("weight", codes)
        self.register_buffer("scales", scales.to(weight.dtype))
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        multiply = torch.ops.aten._weight_int8pack_mm if self.dtype == "int8" else int4_mm
        y = multiply(rows, self.weight, self.scales)
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        groups = f", group_size={self.group_size}" if self.dtype == "int4" else ""
        return f"in_features={self.in_features}, out_features={self.out_features}, dtype={self.dtype}{groups}"


def int8_of(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (n, k), and a scale for each row: its largest magnitude is 127."""
    scales = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.round(weight / scales[:, None]).clamp(-127, 127).to(torch.int8), scales


def int4_of(weight: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (n, k / 8), and pairs (n, k / group_size, 2): the scale and the zero that make 0 of a group's smallest
    number and 15 of its largest.
    """
    groups = weight.unflatten(1, (-1, group_size))
    low, high = groups.aminmax(dim=2)
    scales = ((high - low) / 15).clamp(min=1e-6)
    codes = torch.round((groups - low[..., None]) / scales[..., None]).clamp(0, 15).to(torch.int32)
    words = codes.view(weight.shape[0], -1, PER_WORD)
    packed = words[..., 0]
    for place in range(1, PER_WORD):
        packed = packed | (words[..., place] << 4 * place)
    return packed.contiguous(), torch.stack((scales, low + 8 * scales), 2)


def linear_of(module: Any) -> tuple[torch.Tensor, nn.Parameter | None] | None:
    """The weight (n, k) and the bias of a linear layer; None of another module.

    Transformers' ``Conv1D``, of which GPT-2 is made, is a linear layer whose weight lies transposed.
    """
    if type(module) is nn.Linear:
        return module.weight, module.bias
    transformers = sys.modules.get("transformers.pytorch_utils")  # who has a module of it, has imported it
    if transformers is not None and type(module) is transformers.Conv1D:
        return module.weight.t(), module.bias
    return None


def quantize_(
    model: nn.Module,
    dtype: str = "int8",
    *,
    group_size: int = 32,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
) -> nn.Module:
    """Replaces linear layers of ``model`` by layers with weights of ``dtype``, "int8" or "int4"; returns the model, or
    the new layer where the model is a linear layer itself. Transformers' ``Conv1D`` is a linear layer, too.

    ``group_size``: how many numbers of a row share a scale, of int4: 32, 64, 128 or 256. A layer whose rows are no
    multiple of it stays as it is. ``filter_fn(module, name)``: which linear layers; all if None. A weight that is
    shared with another module, as of an embedding, stays there as it is. ValueError for another dtype or group size.
    """
    if dtype not in DTYPES:
        raise ValueError(f"weights are quantized to 'int8' or 'int4', not to {dtype!r}")
    if group_size not in GROUP_SIZES:
        raise ValueError(f"group_size is one of {', '.join(map(str, GROUP_SIZES))}, not {group_size}")
    layers: dict[nn.Module, nn.Module] = {}  # a layer that two modules share stays one
    for path, module in list(model.named_modules(remove_duplicate=False)):
        linear = linear_of(module)
        if linear is None or (filter_fn is not None and not filter_fn(module, path)):
            continue
        weight, bias = linear
        if dtype == "int4" and weight.shape[1] % group_size:
            continue
        if module not in layers:
            layers[module] = QuantizedLinear(weight, bias, dtype, group_size).train(module.training)
        if not path:
            return layers[module]
        parent, _, key = path.rpartition(".")
        setattr(model.get_submodule(parent), key, layers[module])
    return model
