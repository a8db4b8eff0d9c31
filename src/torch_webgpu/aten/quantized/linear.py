"""Linear layers whose weights are integers of 8 or 4 bits, made of those of a trained model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .weight_only import GROUP_SIZES, int4_product

DTYPES = ("int8", "int4")
PER_WORD = 8


class QuantizedLinear(nn.Module):
    """A linear layer (``in_features`` k, ``out_features`` n) with a packed ``weight``.

    int8: ``weight`` (n, k) of int8 and ``scales`` (n,); a number is ``weight * scale``. int4: ``weight`` (n, k / 8) of
    int32, eight numbers q each, the first in the lowest bits; ``scales`` and ``zeros`` (n, k / group_size); a number
    is ``(q - 8) * scale + zero``. Products are those of ``_weight_int8pack_mm`` and ``_weight_int4pack_mm``: without a
    derivative.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None

    def __init__(self, linear: nn.Linear, dtype: str, group_size: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype, self.group_size = dtype, group_size
        with torch.no_grad():
            weight = linear.weight.detach().float()
            codes, scales, zeros = int8_of(weight) if dtype == "int8" else int4_of(weight, group_size)
        self.register_buffer("weight", codes)
        self.register_buffer("scales", scales.to(linear.weight.dtype))
        self.register_buffer("zeros", None if zeros is None else zeros.to(linear.weight.dtype))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        if self.zeros is None:
            y = torch.ops.aten._weight_int8pack_mm(rows, self.weight, self.scales)
        else:
            y = torch.ops.torch_webgpu.int4_mm(rows, self.weight, self.scales, self.zeros)
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        groups = f", group_size={self.group_size}" if self.zeros is not None else ""
        return f"in_features={self.in_features}, out_features={self.out_features}, dtype={self.dtype}{groups}"


def int8_of(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Codes (n, k), and a scale for each row: its largest magnitude is 127."""
    scales = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.round(weight / scales[:, None]).clamp(-127, 127).to(torch.int8), scales, None


def int4_of(weight: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes (n, k / 8), and for each group what brings its smallest number to 0 and its largest to 15."""
    groups = weight.unflatten(1, (-1, group_size))
    low, high = groups.aminmax(dim=2)
    scales = ((high - low) / 15).clamp(min=1e-6)
    codes = torch.round((groups - low[..., None]) / scales[..., None]).clamp(0, 15).to(torch.int32)
    words = codes.view(weight.shape[0], -1, PER_WORD)
    packed = words[..., 0]
    for place in range(1, PER_WORD):
        packed = packed | (words[..., place] << 4 * place)
    return packed.contiguous(), scales, low + 8 * scales


def quantize_(
    model: nn.Module,
    dtype: str = "int8",
    *,
    group_size: int = 32,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
) -> nn.Module:
    """Replaces linear layers of ``model`` by layers with weights of ``dtype``, "int8" or "int4"; returns the model.

    ``group_size``: how many numbers of a row share a scale, of int4: 32, 64, 128 or 256. A layer whose rows are no
    multiple of it stays as it is. ``filter_fn(module, name)``: which linear layers; all if None. A weight that is
    shared with another module, as of an embedding, stays there as it is. ValueError for another dtype or group size.
    """
    if dtype not in DTYPES:
        raise ValueError(f"weights are quantized to 'int8' or 'int4', not to {dtype!r}")
    if group_size not in GROUP_SIZES:
        raise ValueError(f"group_size is one of {', '.join(map(str, GROUP_SIZES))}, not {group_size}")
    for name, module in list(model.named_modules()):
        for key, child in list(module.named_children()):
            path = f"{name}.{key}" if name else key
            if type(child) is not nn.Linear or (filter_fn is not None and not filter_fn(child, path)):
                continue
            if dtype == "int8" or child.in_features % group_size == 0:
                setattr(module, key, QuantizedLinear(child, dtype, group_size).train(child.training))
    return model


def int4_mm(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """``x`` (m, k) times the transpose of the numbers that :class:`QuantizedLinear` packs, on the device."""
    return int4_product("int4_mm", x, codes, scales, zeros, x.shape[1] // scales.shape[1], points=False)


def composed(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)
    numbers = ((codes[..., None] >> shifts) & 15).view(*scales.shape, -1).float() - 8
    weight = (numbers * scales[..., None].float() + zeros[..., None].float()).view(codes.shape[0], -1)
    return torch.mm(x.float(), weight.t()).to(x.dtype)


def shape(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], codes.shape[0])


library = torch.library.Library("torch_webgpu", "FRAGMENT")
library.define(
    "int4_mm(Tensor x, Tensor codes, Tensor scales, Tensor zeros) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)
library.impl("int4_mm", composed, "CPU")
library.impl("int4_mm", int4_mm, "PrivateUse1")
library.impl("int4_mm", shape, "Meta")
