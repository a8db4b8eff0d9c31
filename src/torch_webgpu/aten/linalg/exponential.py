"""The exponential of matrices: Taylor's polynomial of a scaled matrix, squared as often as it was halved."""

from __future__ import annotations

from math import factorial

import torch

from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of

from .batches import add_product, matrices, natively, product

GROUP, GROUPS = 3, 6
"""The polynomial, of degree 17, is one of degree 5 in the cube of the matrix, with polynomials of degree 2 for
coefficients (Paterson and Stockmeyer).
"""
LARGEST = {torch.float32: 2.0, torch.complex64: 2.0, torch.float64: 1.0}
"""The norm up to which its rest, norm¹⁸ / 18!, is below a rounding."""


def halvings(a: torch.Tensor) -> torch.Tensor:
    """How often each of (batch, n, n) is halved until its norm is small enough; 0 where that is not finite."""
    norm = a.abs().sum(-2).amax(-1).float() / LARGEST[a.dtype]
    count = norm.log2().ceil().clamp(min=0)
    return torch.where(norm.isfinite(), count, 0)


def polynomial(a: torch.Tensor) -> torch.Tensor:
    square = product(a, a)
    cube = product(square, a)
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    result = coefficient(GROUPS - 1, eye, a, square)
    for group in reversed(range(GROUPS - 1)):
        following = coefficient(group, eye, a, square)
        add_product(following, result, cube, 1)
        result = following
    return result


def coefficient(group: int, *powers: torch.Tensor) -> torch.Tensor:
    eye, a, square = (p / factorial(GROUP * group + k) for k, p in enumerate(powers))
    return square + a + eye


def linalg_matrix_exp(self: torch.Tensor) -> torch.Tensor:
    """Reads one number back: how often the matrix with the largest norm is squared."""
    (out,) = outputs_of(aten.linalg_matrix_exp.default, self)
    if not self.numel():
        return out
    a = matrices(self)
    if a.shape[-1] == 1:
        return out.copy_(self.exp())
    counts = halvings(a)
    most = int(counts.max().item())
    scale = torch.ones_like(counts)
    for k in range(most):
        scale = torch.where(counts > k, 0.5 * scale, scale)
    result = polynomial(a * scale.to(a.dtype)[:, None, None])
    for k in range(most):
        result = torch.where((counts > k)[:, None, None], product(result, result), result)
    return out.copy_(result.reshape(self.shape))


def register() -> None:
    computed = natively(aten.linalg_matrix_exp.default, linalg_matrix_exp)

    def widened(self: torch.Tensor) -> torch.Tensor:
        """Floats of 16 bits are computed in 32, and rounded once."""
        if self.dtype in (torch.float16, torch.bfloat16):
            return computed(self.float()).to(self.dtype)
        return computed(self)

    register_operator(aten.linalg_matrix_exp.default, widened)
