"""``torch.sparse.mm(a, b, reduce)``: products of a CSR matrix and a dense one whose sums are means, maxima or minima.

Each output element is reduced over the elements of a row of ``a``. For maxima and minima the forward pass keeps which
one was it, as that element's number among all of ``a``, or their count where there is none, and the backward pass reads
it. The CPU's kernels keep nothing for tensors that need no gradient, and then end the process in the backward pass: so
neither pass runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import aten, check_devices
from torch_webgpu.aten.indexing.scatter import HALF

from .sparse_kernels import accumulated, entries

SUMS = frozenset({"sum", "mean"})
EXTREMES = {"max": "amax", "amax": "amax", "min": "amin", "amin": "amin"}
"""Names of reductions → ``scatter_reduce``'s."""
FORWARD = aten._sparse_mm_reduce_impl.default
BACKWARD = aten._sparse_mm_reduce_impl_backward.default


def is_supported(self: torch.Tensor, other: torch.Tensor, reduce: str) -> bool:
    return (
        self.layout == torch.sparse_csr
        and other.layout == torch.strided
        and self.dim() == other.dim() == 2
        and self.shape[1] == other.shape[0]
        and self.dtype == other.dtype
        and self.dtype.is_floating_point
        and (reduce in SUMS or reduce in EXTREMES)
    )


def wide(t: torch.Tensor) -> torch.Tensor:
    """Half types are computed with in float32."""
    return t.float() if t.dtype in HALF else t


def counts(self: torch.Tensor) -> torch.Tensor:
    """How many elements each row has (rows, 1), at least 1."""
    starts = self.crow_indices()
    return (starts[1:] - starts[:-1]).clamp(min=1).unsqueeze(1)


def reduced_product(self: torch.Tensor, other: torch.Tensor, reduce: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(m, k) times (k, n) as (m, n), and what was kept (m, n); that is empty where no gradient is needed."""
    if not is_supported(self, other, reduce):  # the CPU says why
        return run_on_cpu(FORWARD, (self, other, reduce), {}, "it takes a CSR and a dense matrix of one floating dtype")
    check_devices([self, other])
    rows, columns, values = entries(self)
    rows, factors = rows.long(), wide(other)[columns]
    products = factors * wide(values)[:, None]
    shape = (self.shape[0], other.shape[1])
    nothing = self.col_indices().new_empty(0)
    if reduce in SUMS:
        result = accumulated(products, rows, shape[0])
        return (result / counts(self) if reduce == "mean" else result).to(other.dtype), nothing
    spread = rows[:, None].expand(products.shape)
    result = products.new_zeros(shape).scatter_reduce_(0, spread, products, EXTREMES[reduce], include_self=False)
    needed = torch.is_grad_enabled() and (self.requires_grad or other.requires_grad)
    kept = chosen(products, result, spread, EXTREMES[reduce]).to(nothing.dtype) if needed else nothing
    return result.to(other.dtype), kept


def chosen(products: torch.Tensor, result: torch.Tensor, spread: torch.Tensor, reduce: str) -> torch.Tensor:
    """The number of the product that is the result: the first, of NaN the last; the worst of all is chosen never."""
    count = products.shape[0]
    numbers = torch.arange(count, device=products.device)[:, None].expand(products.shape)
    worst = -torch.inf if reduce == "amax" else torch.inf
    equal = (products == result.gather(0, spread)) & (products != worst)
    none = torch.full(result.shape, count, device=result.device)
    first = none.scatter_reduce(0, spread, torch.where(equal, numbers, count), "amin")
    last = torch.full_like(none, -1).scatter_reduce_(0, spread, torch.where(products.isnan(), numbers, -1), "amax")
    return torch.where(last < 0, first, last)


def reduced_product_backward(
    self: torch.Tensor,
    grad_out: torch.Tensor,
    weight: torch.Tensor,
    reduce: str,
    kept: torch.Tensor,
    mask: Sequence[bool],
) -> tuple[Maybe, Maybe]:
    """The gradients of the CSR matrix ``self`` and of the dense one, ``weight``."""
    rows, columns, values = entries(self)
    rows, columns, values, grad, factors = rows.long(), columns.long(), wide(values), wide(grad_out), wide(weight)
    if reduce in SUMS:
        if reduce == "mean":
            grad = grad / counts(self)
        grad = grad[rows]
        of_values = (factors[columns] * grad).sum(1) if mask[0] else None
        of_weight = accumulated(grad * values[:, None], columns, weight.shape[0]) if mask[1] else None
    else:
        of_values, of_weight = extremes_backward(grad, kept, columns, values, factors, mask)
    if of_values is not None:
        indices = self.crow_indices(), self.col_indices()
        of_values = torch.sparse_csr_tensor(*indices, of_values.to(self.dtype), self.shape, check_invariants=False)
    return of_values, None if of_weight is None else of_weight.to(weight.dtype)


def extremes_backward(
    grad: torch.Tensor,
    kept: torch.Tensor,
    columns: torch.Tensor,
    values: torch.Tensor,
    factors: torch.Tensor,
    mask: Sequence[bool],
) -> tuple[Maybe, Maybe]:
    """The gradients of the values (nnz) and of the dense matrix (k, n)."""
    count = values.shape[0]
    if kept.shape != grad.shape:
        raise RuntimeError(
            "torch.sparse.mm with a maximum or minimum kept nothing for its backward pass: its forward pass saw "
            "tensors that need no gradient"
        )
    if not count:
        return torch.zeros_like(values) if mask[0] else None, torch.zeros_like(factors) if mask[1] else None
    number = kept.long()
    is_one = number < count
    number = number.clamp(max=count - 1)
    column = columns[number]
    of_values, of_factors = None, None
    if mask[0]:
        share = torch.where(is_one, factors.gather(0, column) * grad, 0)
        of_values = torch.zeros_like(values).scatter_add_(0, number.flatten(), share.flatten())
    if mask[1]:
        of_factors = torch.zeros_like(factors).scatter_add_(0, column, torch.where(is_one, values[number] * grad, 0))
    return of_values, of_factors


KERNELS: dict[OpOverload, Callable[..., Any]] = {FORWARD: reduced_product, BACKWARD: reduced_product_backward}
