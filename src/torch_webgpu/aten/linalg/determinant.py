"""Determinants: products of what LU factorization leaves on the diagonal."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of

from .batches import natively
from .lu import factor


def sign_of(pivots: torch.Tensor) -> torch.Tensor:
    """Of the permutation: whether an odd number of rows were interchanged, as 1 or -1."""
    place = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    odd = (pivots != place).sum(-1) % 2
    return 1 - 2 * odd


def transposed(a: torch.Tensor) -> torch.Tensor:
    """The matrix that PyTorch factors, whose formulas of derivatives count on it: it need not be transposed first."""
    return a.mT if a.is_contiguous() and not a.is_complex() else a


def det(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    result, lu, pivots = outputs_of(aten._linalg_det.default, A)
    factor(lu, pivots, transposed(A))
    result.copy_(lu.diagonal(dim1=-2, dim2=-1).prod(-1) * sign_of(pivots))
    return result, lu, pivots


def slogdet(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    sign, logabsdet, lu, pivots = outputs_of(aten._linalg_slogdet.default, A)
    factor(lu, pivots, transposed(A))
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    sign.copy_(diagonal.sgn().prod(-1) * sign_of(pivots))
    logabsdet.copy_(diagonal.abs().log().sum(-1))
    return sign, logabsdet, lu, pivots


def register() -> None:
    for target, kernel in ((aten._linalg_det.default, det), (aten._linalg_slogdet.default, slogdet)):
        register_operator(target, natively(target, kernel), strided="resized")
