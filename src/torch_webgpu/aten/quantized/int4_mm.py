"""``torch_webgpu::int4_mm``: a product with a weight of 4 bits whose groups' scales and zeros are pairs, row by row."""

from __future__ import annotations

import torch

from .packed_matrix import PER_WORD, PackedMatrix, int4_matrix, product


def packed_matrix(codes: torch.Tensor, scales: torch.Tensor) -> PackedMatrix:
    """The numbers of ``int4_mm``: codes (n, k / 8) of int32, scales and zeros (n, k / group, 2)."""
    return int4_matrix(codes, scales, codes.shape[1] * PER_WORD // scales.shape[1])


def on_device(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """``x`` (m, k) times the transpose of :func:`packed_matrix`, on the device."""
    return product("int4_mm", x, packed_matrix(codes, scales))


def composed(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)
    numbers = ((codes[..., None] >> shifts) & 15).view(*scales.shape[:2], -1).float() - 8
    scale, zero = scales.float()[..., None].unbind(2)
    return torch.mm(x.float(), (numbers * scale + zero).view(codes.shape[0], -1).t()).to(x.dtype)


def shape(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], codes.shape[0])


library = torch.library.Library("torch_webgpu", "FRAGMENT")
library.define("int4_mm(Tensor x, Tensor codes, Tensor scales) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
library.impl("int4_mm", composed, "CPU")
library.impl("int4_mm", on_device, "PrivateUse1")
library.impl("int4_mm", shape, "Meta")
int4_mm = torch.ops.torch_webgpu.int4_mm.default
