"""QR factorization and products with its orthogonal factor: panels by reflections, what is beside them by products."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, infer, outputs_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.householder import lower_householder, lower_reflections
from torch_webgpu.kernels.linalg.lu import PANEL, fits

from .batches import (
    by_columns,
    copied_by_columns,
    matrices,
    natively,
    product,
    subtract_product,
    vectors,
)


class Block:
    """Some reflections at once, from number ``first`` on: their product is ``1 - v t vᴴ`` on rows from ``first`` on.

    ``a`` (batch, m, n) has their vectors, ``tau`` (batch, k) their factors.
    """

    def __init__(self, a: torch.Tensor, tau: torch.Tensor, first: int, count: int) -> None:
        self.first = first
        self.v = a[:, first:, first : first + count].tril(-1)
        self.v.diagonal(dim1=-2, dim2=-1).fill_(1)
        products = product(self.v.mH, self.v)
        self.t = torch.empty_like(products)
        record_kernel("aten::ormqr", (products, tau), (self.t,), Extern(lower_reflections, (first,)))

    def apply(self, c: torch.Tensor, *, left: bool, adjoint: bool) -> None:
        """Multiplies (batch, m, n) by the product, or its adjoint, from the left or the right, in place."""
        if not c.numel():
            return
        t = self.t.mH if adjoint else self.t
        if left:
            rows = c[:, self.first :]
            subtract_product(rows, self.v, product(t, product(self.v.mH, rows)))
        else:
            columns = c[:, :, self.first :]
            subtract_product(columns, product(product(columns, self.v), t), self.v.mH)


def blocks(a: torch.Tensor, tau: torch.Tensor, *, backwards: bool) -> Iterator[Block]:
    """All reflections, in blocks."""
    count = tau.shape[-1]
    starts = range(0, count, PANEL)
    for first in reversed(starts) if backwards else starts:
        yield Block(a, tau, first, min(PANEL, count - first))


def factor_in_place(a: torch.Tensor, tau: torch.Tensor) -> None:
    """(batch, m, n) becomes its triangle and, below that, the vectors of its reflections; tau is (batch, k)."""
    _, m, n = a.shape
    count = tau.shape[-1]
    step = PANEL
    if fits(m, n, a.element_size()):
        step = n
    for first in range(0, count, step):
        width = min(step, n - first) if step == n else min(step, count - first)
        panel = a[:, first:, first : first + width]
        record_kernel("aten::geqrf", (panel, tau), (panel, tau), Extern(lower_householder, (first,)))
        if first + width < n:
            block = Block(a, tau, first, width)
            block.apply(a[:, :, first + width :], left=True, adjoint=True)


def factor(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The triangle and the vectors of ``a``, by columns, and tau."""
    factors = copied_by_columns(a)
    *batch, m, n = a.shape
    tau = engine().empty((*batch, min(m, n)), a.dtype, a.get_device())
    if tau.numel():
        factor_in_place(matrices(factors), vectors(tau))
    return factors, tau


def multiply(c: torch.Tensor, a: torch.Tensor, tau: torch.Tensor, *, left: bool = True, adjoint: bool = False) -> None:
    """Multiplies ``c``, a new tensor (…, m, n), by the orthogonal factor, or its adjoint, in place."""
    if c.numel() and tau.numel():
        for block in blocks(matrices(a), vectors(tau), backwards=left != adjoint):
            block.apply(matrices(c), left=left, adjoint=adjoint)


def orthogonal(a: torch.Tensor, tau: torch.Tensor, columns: int) -> torch.Tensor:
    """The first ``columns`` columns of the orthogonal factor, by columns."""
    *batch, m, _ = a.shape
    q = by_columns((*batch, m, columns), a.dtype, a)
    q.copy_(torch.eye(m, columns, dtype=a.dtype, device=a.device))
    if q.numel() and tau.numel():
        for block in blocks(matrices(a), vectors(tau), backwards=True):
            block.apply(matrices(q)[:, :, block.first :], left=True, adjoint=False)
    return q


def geqrf(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if self.dim() < 2:
        check_as_cpu(aten.geqrf.default, self)
    return factor(self)


def householder_product(input: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    infer(aten.linalg_householder_product.default, input, tau)
    return orthogonal(input, tau, input.shape[-1])


def ormqr(
    self: torch.Tensor, input2: torch.Tensor, input3: torch.Tensor, left: bool = True, transpose: bool = False
) -> torch.Tensor:
    (out,) = outputs_of(aten.ormqr.default, self, input2, input3, left, transpose)
    multiply(out.copy_(input3), self, input2, left=left, adjoint=transpose)
    return out


def qr(A: torch.Tensor, mode: str = "reduced") -> tuple[torch.Tensor, torch.Tensor]:
    q, r = outputs_of(aten.linalg_qr.default, A, mode)
    factors, tau = factor(A)
    r.copy_(factors[..., : r.shape[-2], :].triu())
    return q if mode == "r" else orthogonal(factors, tau, q.shape[-1]), r


def register() -> None:
    for target, kernel in (
        (aten.geqrf.default, geqrf),
        (aten.linalg_householder_product.default, householder_product),
        (aten.ormqr.default, ormqr),
    ):
        register_operator(target, natively(target, kernel), strided="empty")
    register_operator(aten.linalg_qr.default, natively(aten.linalg_qr.default, qr), strided="resized")
