"""QR factorization and products with its orthogonal factor: panels by reflections, what is beside them at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, infer, outputs_of
from torch_webgpu.aten.tensors.copy import plain
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.householder import lower_householder, lower_reflections
from torch_webgpu.kernels.linalg.lu import PANEL, fits
from torch_webgpu.kernels.linalg.qr_steps import (
    lower_qr_apply,
    lower_qr_panel,
    lower_qr_triangles,
    panel_layout,
    panel_runs,
    panels,
)
from torch_webgpu.target import Target

from .batches import (
    by_columns,
    copied_by_columns,
    matrices,
    natively,
    product,
    subtract_product,
    vectors,
)


def is_stepwise(rows: int, dtype: torch.dtype, target: Target) -> bool:
    """Whether matrices are factored by panels in registers, a dispatch each, and another applies their reflections. The
    others are those of software adapters, whose barriers CPUs have to imitate, and those with more rows than there are
    registers for; :class:`Products` applies their reflections.
    """
    return not target.software and panel_layout(dtype_of(dtype).name, rows, target)[1] > 0


class Block:
    """Some reflections at once, from number ``first`` on: their product is ``1 - v t vᴴ`` on rows from ``first`` on.

    ``a`` (batch, m, n) has their vectors, and ``t`` (batch, width, k) the triangles of all blocks side by side.
    """

    def __init__(self, a: torch.Tensor, t: torch.Tensor, first: int, count: int) -> None:
        self.first, self.count = first, count
        self.v, self.t = a[:, first:, first:], t

    def apply(self, c: torch.Tensor, *, left: bool, adjoint: bool) -> None:
        """Multiplies (batch, m, n) by the product, or its adjoint, from the left or the right, in place."""
        if not c.numel():
            return
        # From the right it is the adjoint that is multiplied by the other of the two.
        rows = c[:, self.first :] if left else c[:, :, self.first :].mT
        arguments = (self.first, self.count, adjoint == left, not left and c.is_complex())
        record_kernel("aten::ormqr", (self.v, self.t, rows), (rows,), Extern(lower_qr_apply, arguments))


class Products:
    """The same by products of matrices; ``tau`` (batch, k) has the factors of all reflections."""

    def __init__(self, a: torch.Tensor, tau: torch.Tensor, first: int, count: int) -> None:
        self.first = first
        self.v = a[:, first:, first : first + count].tril(-1)
        self.v.diagonal(dim1=-2, dim2=-1).fill_(1)
        products = product(self.v.mH, self.v)
        self.t = torch.empty_like(products)
        record_kernel("aten::ormqr", (products, tau), (self.t,), Extern(lower_reflections, (first,)))

    def apply(self, c: torch.Tensor, *, left: bool, adjoint: bool) -> None:
        if not c.numel():
            return
        t = self.t.mH if adjoint else self.t
        if left:
            rows = c[:, self.first :]
            subtract_product(rows, self.v, product(t, product(self.v.mH, rows)))
        else:
            columns = c[:, :, self.first :]
            subtract_product(columns, product(product(columns, self.v), t), self.v.mH)


def blocks(
    a: torch.Tensor, tau: torch.Tensor, t: torch.Tensor | None, *, backwards: bool
) -> Iterator[Block | Products]:
    """All reflections, in blocks. The triangles are computed unless they are known."""
    count = tau.shape[-1]
    name, target = kinds_of(a)
    if is_stepwise(a.shape[1], a.dtype, target):
        a, tau = plain(a), plain(tau)
        t = triangles(a, tau) if t is None else t
        found = panels(a.shape[1], count, name, target)
        for first, width in reversed(found) if backwards else found:
            yield Block(a, t, first, width)
        return
    starts = range(0, count, PANEL)
    for first in reversed(starts) if backwards else starts:
        yield Products(a, tau, first, min(PANEL, count - first))


def kinds_of(a: torch.Tensor) -> tuple[str, Target]:
    """The dtype's name, and the target."""
    return dtype_of(a.dtype).name, engine().device(a.get_device()).target


def triangles(a: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """Those of the blocks of reflections."""
    t = empty_triangles(a, tau)
    name, target = kinds_of(a)
    for run in panel_runs(a.shape[1], tau.shape[-1], name, target):
        record_kernel("aten::ormqr", (a, tau, t), (t,), Extern(lower_qr_triangles, run))
    return t


def empty_triangles(a: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """What has room for them."""
    batch, count = tau.shape
    name, target = kinds_of(a)
    width = max(width for _, width in panels(a.shape[1], count, name, target))
    return engine().empty((batch, width, count), a.dtype, a.get_device())


def factor_in_place(a: torch.Tensor, tau: torch.Tensor) -> torch.Tensor | None:
    """(batch, m, n) becomes its triangle and, below that, the vectors of its reflections; tau is (batch, k). Returns
    the triangles of the blocks of reflections, if they are known.
    """
    _, m, n = a.shape
    count = tau.shape[-1]
    name, target = kinds_of(a)
    if is_stepwise(m, a.dtype, target):
        t = empty_triangles(a, tau)
        for first, width in panels(m, count, name, target):
            rest = a[:, first:, first:]
            # The last panel has the columns beside it, too, if there is room for them.
            columns = n - first if n - first <= panel_layout(name, m - first, target)[1] else width
            written = (rest[:, :, :columns], tau, t)
            record_kernel("aten::geqrf", written, written, Extern(lower_qr_panel, (first,)))
            if first + columns < n:
                record_kernel("aten::geqrf", (rest, t), (rest,), Extern(lower_qr_apply, (first, width, True)))
        return t
    step = n if fits(m, n, a.element_size()) else PANEL
    for first in range(0, count, step):
        width = min(step, n - first) if step == n else min(step, count - first)
        panel = a[:, first:, first : first + width]
        record_kernel("aten::geqrf", (panel, tau), (panel, tau), Extern(lower_householder, (first,)))
        if first + width < n:
            Products(a, tau, first, width).apply(a[:, :, first + width :], left=True, adjoint=True)
    return None


def factor(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The triangle and the vectors of ``a``, by columns, and tau; the triangles of the blocks of reflections, if they
    are known.
    """
    factors = copied_by_columns(a)
    *batch, m, n = a.shape
    tau = engine().empty((*batch, min(m, n)), a.dtype, a.get_device())
    return factors, tau, factor_in_place(matrices(factors), vectors(tau)) if tau.numel() else None


def multiply(c: torch.Tensor, a: torch.Tensor, tau: torch.Tensor, *, left: bool = True, adjoint: bool = False) -> None:
    """Multiplies ``c``, a new tensor (…, m, n), by the orthogonal factor, or its adjoint, in place."""
    if c.numel() and tau.numel():
        for block in blocks(matrices(a), vectors(tau), None, backwards=left != adjoint):
            block.apply(matrices(c), left=left, adjoint=adjoint)


def orthogonal(a: torch.Tensor, tau: torch.Tensor, columns: int, t: torch.Tensor | None = None) -> torch.Tensor:
    """The first ``columns`` columns of the orthogonal factor, by columns."""
    *batch, m, _ = a.shape
    q = by_columns((*batch, m, columns), a.dtype, a)
    q.copy_(torch.eye(m, columns, dtype=a.dtype, device=a.device))
    if q.numel() and tau.numel():
        for block in blocks(matrices(a), vectors(tau), t, backwards=True):
            block.apply(matrices(q)[:, :, block.first :], left=True, adjoint=False)
    return q


def geqrf(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if self.dim() < 2:
        check_as_cpu(aten.geqrf.default, self)
    return factor(self)[:2]


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
    factors, tau, t = factor(A)
    r.copy_(factors[..., : r.shape[-2], :].triu())
    return q if mode == "r" else orthogonal(factors, tau, q.shape[-1], t), r


def register() -> None:
    for target, kernel in (
        (aten.geqrf.default, geqrf),
        (aten.linalg_householder_product.default, householder_product),
        (aten.ormqr.default, ormqr),
    ):
        register_operator(target, natively(target, kernel), strided="empty")
    register_operator(aten.linalg_qr.default, natively(aten.linalg_qr.default, qr), strided="resized")
