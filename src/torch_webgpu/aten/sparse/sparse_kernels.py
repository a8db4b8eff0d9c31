"""Kernels of sparse tensors where PyTorch's read memory: sums of equal places, arithmetic, products.

A COO tensor has ``indices`` (sparse dimensions, nnz) and ``values`` (nnz, *dense dimensions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.torch_abi import (
    aten,
    check_devices,
    functional_of,
    is_inplace,
    overloads,
    shared_kernel,
)

from .sparse_indices import rows_of

# Places of elements


def row_major(indices: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The row-major numbers (nnz) of the places ``indices`` in a tensor of these sizes."""
    number = indices.new_zeros(indices.shape[1])
    for row, size in zip(indices, sizes, strict=True):
        number = number * size + row
    return number


def places(number: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The inverse of :func:`row_major`."""
    rows = []
    for size in reversed(sizes):
        rows.append(number % size)
        number = number // size
    return torch.stack(rows[::-1]) if rows else number.new_empty((0, number.shape[0]))


def coo(like: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, coalesced: bool = False) -> torch.Tensor:
    """A COO tensor of ``like``'s shape."""
    return of_shape(like.shape, indices, values, coalesced)


def of_shape(
    shape: Sequence[int], indices: torch.Tensor, values: torch.Tensor, coalesced: bool = False
) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, tuple(shape), is_coalesced=coalesced, check_invariants=False)


def accumulated(values: torch.Tensor, numbers: torch.Tensor, count: int) -> torch.Tensor:
    """The sums (count, …) of the values of each number."""
    if values.dtype == torch.bool:
        return accumulated(values.to(torch.int32), numbers, count) != 0
    return values.new_zeros((count, *values.shape[1:])).index_add_(0, numbers, values)


def coalesce(self: torch.Tensor) -> torch.Tensor:
    indices, values = self._indices(), self._values()
    if values.shape[0] < 2:
        return coo(self, indices.clone(), values.clone(), coalesced=True)
    sizes = self.shape[: self.sparse_dim()]
    numbers, inverse = torch.unique(row_major(indices, sizes), return_inverse=True)
    return coo(self, places(numbers, sizes), accumulated(values, inverse, numbers.shape[0]), coalesced=True)


# Sums and element-wise products


def with_sparse_added(dense: torch.Tensor, sparse: torch.Tensor, alpha: Any) -> torch.Tensor:
    """``dense + alpha * sparse`` as a new tensor, of ``dense``'s dtype."""
    if dense.shape != sparse.shape:
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same size, but self has size {list(dense.shape)} while other "
            f"has size {list(sparse.shape)} (FYI: dense-sparse addition does not currently support broadcasting)"
        )
    split = sparse.sparse_dim()
    sizes = dense.shape[:split]
    values = sparse._values().to(dense.dtype)
    values = values if alpha == 1 else values * alpha
    flat = dense.reshape(prod(sizes), *dense.shape[split:])
    return flat.index_add(0, row_major(sparse._indices(), sizes), values).view(dense.shape)


def check_same_shape(self: torch.Tensor, other: torch.Tensor) -> None:
    if self.shape != other.shape:
        raise RuntimeError(
            f"add: expected sizes of 'self' and 'other' to match, but {list(self.shape)} != {list(other.shape)}"
        )


def add(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    check_devices([self, other])
    dtype = torch.result_type(self, other)
    if not self.is_sparse:
        return with_sparse_added(self.to(dtype), other, alpha)
    if not isinstance(other, torch.Tensor) or not other.is_sparse:
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    check_same_shape(self, other)
    if not other._nnz():
        return coo(self, self._indices().clone(), self._values().to(dtype, copy=True), self.is_coalesced())
    added = other._values().to(dtype) if alpha == 1 else other._values().to(dtype) * alpha
    if not self._nnz():
        return coo(other, other._indices().clone(), added.clone(), other.is_coalesced())
    if self.sparse_dim() != other.sparse_dim():
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same density, but 'self' has {self.sparse_dim()} sparse "
            f"dimensions while 'other' has {other.sparse_dim()} sparse dimensions"
        )
    values = torch.cat([self._values().to(dtype), added])
    result = coo(self, torch.cat([self._indices(), other._indices()], 1), values)
    return coalesce(result) if self.is_coalesced() and other.is_coalesced() else result


def write(result: torch.Tensor, out: torch.Tensor, name: str) -> torch.Tensor:
    """Puts the result of the operator ``name`` in the place of ``out``'s elements."""
    if not torch.can_cast(result.dtype, out.dtype):
        types = f"{name_of(result.dtype)} to output {name_of(out.dtype)}"
        raise RuntimeError(f"Can't convert result type {types} in {name} operation")
    if out.is_sparse:
        return aten.copy_sparse_to_sparse_(out, result.to(out.dtype))
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def sub(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return add(self, other, alpha=-alpha)


def mul(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    sparse, factor = (self, other) if isinstance(self, torch.Tensor) and self.is_sparse else (other, self)
    if isinstance(factor, torch.Tensor) and factor.is_sparse and factor.dim() != sparse.dim():
        sparse, factor = (sparse, factor) if sparse.dim() else (factor, sparse)
        factor = factor if factor.dim() else factor.to_dense()
    if not isinstance(factor, torch.Tensor) or (factor.dim() == 0 and not factor.is_sparse):
        return coo(sparse, sparse._indices().clone(), sparse._values() * factor, sparse.is_coalesced())
    check_devices([self, other])
    if factor.is_sparse:
        return common_products(self, other)
    return at_places_of_sparse(sparse, factor)


def at_places_of_sparse(sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """A sparse tensor times a dense one that broadcasts against it."""
    shape = (torch.empty(dense.shape, device="meta") * torch.empty(sparse.shape, device="meta")).shape
    if shape != sparse.shape:
        sparse = aten._sparse_broadcast_to(sparse, shape)
    indices = sparse._indices()
    factors = dense.expand(shape)[tuple(indices)]
    return coo(sparse, indices.clone(), sparse._values() * factors, sparse.is_coalesced())


def located(self: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each element of ``other``: which one of ``self``, coalesced, has its place, and whether one has."""
    sizes = self.shape[: self.sparse_dim()]
    mine, theirs = (row_major(t._indices(), sizes) for t in (self, other))
    if not mine.shape[0]:
        return torch.zeros_like(theirs), torch.zeros_like(theirs, dtype=torch.bool)
    at = torch.searchsorted(mine, theirs).clamp_(max=mine.shape[0] - 1)
    return at, mine[at] == theirs


def common_products(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The products of two COO tensors where both have an element."""
    if self.shape == other.shape and not (self._nnz() and other._nnz()):
        nothing = self._values()[:0].to(torch.result_type(self, other), copy=True)
        return coo(self, self._indices()[:, :0].clone(), nothing, coalesced=True)
    if self.shape != other.shape or self.sparse_dim() != other.sparse_dim():
        raise RuntimeError(
            "sparse_binary_op_intersection_cpu(): expects sparse inputs with equal dimensionality, number of sparse "
            "dimensions, and shape of sparse dimensions"
        )
    self, other = self.coalesce(), other.coalesce()
    at, common = located(other, self)
    chosen = common.nonzero()[:, 0]
    values = self._values()[chosen] * other._values()[at[chosen]]
    return coo(self, self._indices()[:, chosen], values, coalesced=True)


def mul_(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    result = mul(self, other)
    return write(result if self.is_sparse else result.to_dense(), self, "mul")


# Matrix products


def entries(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows, columns and values (nnz each) of a sparse matrix of any layout."""
    if matrix.layout == torch.sparse_csr:
        columns = matrix.col_indices()
        return rows_of(matrix.crow_indices(), columns), columns, matrix.values()
    if matrix.layout == torch.sparse_csc:
        rows = matrix.row_indices()
        return rows, rows_of(matrix.ccol_indices(), rows), matrix.values()
    matrix = matrix if matrix.is_sparse else matrix.to_sparse()
    rows, columns = matrix._indices()
    return rows, columns, matrix._values()


def product(sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """(m, k) times (k, n), of one dtype."""
    rows, columns, values = entries(sparse)
    if values.dim() != 1:
        raise RuntimeError(f"addmm: expected a matrix of scalars, but values are {values.dim()}D")
    if values.dtype != dense.dtype:
        raise RuntimeError(f"expected scalar type {name_of(values.dtype)} but found {name_of(dense.dtype)}")
    if values.dtype == torch.bool:
        raise NotImplementedError("\"addmm_sparse_dense\" not implemented for 'Bool'")
    return accumulated(dense[columns] * values[:, None], rows.long(), sparse.shape[0])


def is_sparse(t: torch.Tensor) -> bool:
    return t.layout != torch.strided


def check_product(mat1: torch.Tensor, mat2: torch.Tensor) -> None:
    if mat1.dim() != 2 or mat2.dim() != 2:
        raise RuntimeError(f"addmm: matrices expected, got {mat1.dim()}D and {mat2.dim()}D tensors")
    if mat1.shape[1] != mat2.shape[0]:
        raise RuntimeError(
            f"addmm: Argument #3 (dense): Expected dim 0 size {mat1.shape[1]}, got {mat2.shape[0]}"
            if mat1.is_sparse
            else f"mat1 and mat2 shapes cannot be multiplied ({mat1.shape[0]}x{mat1.shape[1]} and "
            f"{mat2.shape[0]}x{mat2.shape[1]})"
        )


def mm(mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """A product of two matrices, some sparse: sparse, in the first one's layout, if both are."""
    check_product(mat1, mat2)
    if not is_sparse(mat2):
        return product(mat1, mat2)
    if not is_sparse(mat1):
        return product(mat2.t(), mat1.t()).t().contiguous()
    return in_layout(matmul_of_two(mat1, mat2), mat1.layout)


def addmm(self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    check_devices([self, mat1, mat2])
    if self.dtype != mat1.dtype:
        raise RuntimeError(f"expected scalar type {name_of(mat1.dtype)} but found {name_of(self.dtype)}")
    result = mm(mat1, mat2)
    result = result if alpha == 1 else result * alpha
    if beta == 0:
        return result.to_dense() if is_sparse(result) else result
    added = self if beta == 1 else self * beta
    return added + result


def addmv_out(
    self: torch.Tensor, mat: torch.Tensor, vec: torch.Tensor, *, beta: Any = 1, alpha: Any = 1, out: torch.Tensor
) -> torch.Tensor:
    result = addmm(self.expand(mat.shape[0])[:, None], mat, vec[:, None], beta=beta, alpha=alpha)
    return write(result[:, 0], out, "addmv")


def bmm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """(b, m, k) COO times (b, k, n)."""
    batch, rows, columns = self._indices()
    check_devices([self, mat2])
    b, m, k = self.shape
    if mat2.dim() != 3 or mat2.shape[0] != b:
        raise RuntimeError("bmm_sparse: 'self.size(0)' and 'mat2.size(0)' must match")
    if mat2.shape[1] != k:
        raise RuntimeError("bmm_sparse: 'self.size(2)' and 'mat2.size(1)' must match")
    gathered = mat2.reshape(b * k, -1)[batch * k + columns] * self._values()[:, None]
    return accumulated(gathered, batch * m + rows, b * m).view(b, m, -1)


def matmul_of_two(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Two COO matrices: each element of the first meets the elements of one row of the second."""
    if self.shape[1] != other.shape[0]:
        shapes = f"{self.shape[0]}x{self.shape[1]} and {other.shape[0]}x{other.shape[1]}"
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({shapes})")
    if self.dtype != other.dtype:
        raise RuntimeError(f"mat1 dtype {name_of(self.dtype)} does not match mat2 dtype {name_of(other.dtype)}")
    rows, inner, values = entries(self)
    other_rows, columns, factors = entries(other.coalesce() if other.is_sparse else other.to_sparse_csr())
    starts = torch.searchsorted(other_rows, torch.arange(other.shape[0] + 1, device=self.device))
    counts = (starts[1:] - starts[:-1])[inner]
    which = torch.repeat_interleave(counts)
    before = counts.cumsum(0) - counts
    met = starts[inner[which]] + torch.arange(which.shape[0], device=self.device) - before[which]
    indices = torch.stack([rows[which], columns[met]])
    shape = (self.shape[0], other.shape[1])
    return of_shape(shape, indices, values[which] * factors[met]).coalesce()


# Compressed layouts


def in_layout(t: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    """A COO matrix in any layout without blocks."""
    if layout == torch.sparse_csr:
        return t.to_sparse_csr()
    return t.to_sparse_csc() if layout == torch.sparse_csc else t


COMPRESSED_ROWS = {torch.sparse_csr: torch.sparse_csc, torch.sparse_bsr: torch.sparse_bsc}
"""Layouts whose rows are compressed → the same of columns."""


def flipped(self: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    """Matrices of compressed rows as ones of compressed columns, or the reverse, with the same blocks."""
    by_rows = self.layout in COMPRESSED_ROWS
    starts, plain = (self.crow_indices(), self.col_indices()) if by_rows else (self.ccol_indices(), self.row_indices())
    values, batch = self.values(), starts.dim() - 1
    compressed = rows_of(starts, plain).to(plain.dtype)
    plain, order = plain.sort(stable=True)
    block = values.shape[batch + 1 : batch + 3] if self.layout in (torch.sparse_bsr, torch.sparse_bsc) else (1, 1)
    size = self.shape[batch + 1] // block[1] if by_rows else self.shape[batch] // block[0]
    bounds = torch.arange(size + 1, device=self.device, dtype=plain.dtype)
    starts = torch.searchsorted(plain, bounds.expand(*plain.shape[:-1], -1).contiguous()).to(plain.dtype)
    spread = order.view(*order.shape, *[1] * (values.dim() - order.dim())).expand(values.shape)
    return torch.sparse_compressed_tensor(
        starts, compressed.gather(-1, order), values.gather(batch, spread), self.shape, layout=layout,
        check_invariants=False,
    )  # fmt: skip


def conversion(overload: OpOverload, source: torch.layout, target: torch.layout) -> Callable[..., Any]:
    """The kernel of a conversion to a compressed layout; from that of the other direction PyTorch's reads memory."""
    shared = shared_kernel(overload, "SparseCsrCPU")

    def convert(self: torch.Tensor, *options: Any, **named: Any) -> torch.Tensor:
        if self.layout == source and is_as_it_is(self, *options, **named):
            return flipped(self, target)
        return shared(self, *options, **named)

    return convert


def is_as_it_is(self: torch.Tensor, *options: Any, **named: Any) -> bool:
    """Whether the blocks and dense dimensions asked for are those of a compressed tensor."""
    dense_dim = named.get("dense_dim", next((v for v in options if isinstance(v, int)), None))
    blocks = named.get("blocksize", next((v for v in options if isinstance(v, (list, tuple))), None))
    batch = self.values().dim() - self.dense_dim() - (3 if blocks is not None else 1)
    same_blocks = blocks is None or tuple(blocks) == tuple(self.values().shape[batch + 1 : batch + 3])
    return same_blocks and dense_dim in (None, self.dense_dim())


def conversions() -> dict[OpOverload, Callable[..., Any]]:
    """Those between rows and columns, by the operator that converts."""
    kernels = {}
    for rows, columns in COMPRESSED_ROWS.items():
        to_rows, to_columns = (
            getattr(aten, f"_to_{str(layout).removeprefix('torch.')}").default for layout in (rows, columns)
        )
        kernels[to_rows] = conversion(to_rows, columns, rows)
        kernels[to_columns] = conversion(to_columns, rows, columns)
    return kernels


def add_compressed(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    if not is_sparse(self):
        return add(self, other.to_sparse(), alpha=alpha)
    if not is_sparse(other):
        return add(other, self.to_sparse()) if alpha == 1 else add(other * alpha, self.to_sparse())
    return in_layout(add(self.to_sparse(), other.to_sparse(), alpha=alpha).coalesce(), self.layout)


# Others


def sparse_mask(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements of ``self`` where ``mask`` has some."""
    if not self.is_sparse:
        return shared_kernel(aten.sparse_mask.default, "SparseCPU")(self, mask)
    if self.shape != mask.shape:
        raise RuntimeError(
            f"sparse_mask(): operands have incompatible sizes; self has size {list(self.shape)} but mask has size "
            f"{list(mask.shape)}"
        )
    self = self.coalesce()
    at, is_stored = located(self, mask)
    values = self._values()
    if not values.shape[0]:
        return coo(
            mask, mask._indices().clone(), values.new_zeros((at.shape[0], *values.shape[1:])), mask.is_coalesced()
        )
    kept = is_stored.view(-1, *[1] * (values.dim() - 1))
    return coo(mask, mask._indices().clone(), torch.where(kept, values[at], 0), mask.is_coalesced())


def sampled_addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """``alpha * mat1 @ mat2 + beta * self`` where the CSR matrix ``self`` has elements."""
    if self.layout != torch.sparse_csr or not self.dim() == mat1.dim() == mat2.dim() == 2:
        return run_on_cpu(
            aten.sparse_sampled_addmm.default, (self, mat1, mat2), {"beta": beta, "alpha": alpha}, "not CSR matrices"
        )
    check_product(mat1, mat2)
    rows, columns, values = entries(self)
    sampled = (mat1[rows] * mat2.t()[columns]).sum(1) * alpha
    result = sampled if beta == 0 else values * beta + sampled
    indices = self.crow_indices(), self.col_indices()
    return torch.sparse_csr_tensor(*indices, result, self.shape, check_invariants=False)


def sspaddmm_out(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1, out: torch.Tensor
) -> torch.Tensor:
    """A sparse ``beta * self + alpha * mat1 @ mat2`` of a sparse ``mat1`` and a dense ``mat2``."""
    check_product(mat1, mat2)
    added = (product(mat1, mat2) * alpha).to_sparse()
    return write(added if beta == 0 else self * beta + added, out, "sspaddmm")


def sum_backward(grad: torch.Tensor, self: torch.Tensor, dim: Sequence[int]) -> torch.Tensor:
    """The gradient of a sum over ``dim`` at each element."""
    self = self.coalesce()
    dense = grad.to_dense() if grad.is_sparse else grad
    for d in sorted(d % self.dim() for d in dim):
        dense = dense.unsqueeze(d)
    indices = self._indices()
    values = dense.expand(self.shape)[tuple(indices)].expand(self._values().shape)
    return coo(self, indices.clone(), values.contiguous(), coalesced=True)


# Registration


def with_variants(functional: OpOverload, fn: Callable[..., Any]) -> dict[OpOverload, Callable[..., Any]]:
    """The kernels of an overload and of those that PyTorch derives from it, which write what ``fn`` returns."""
    name = functional._schema.name.removeprefix("aten::")

    def out_variant(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return write(fn(*args, **kwargs), out, name)

    def inplace_variant(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return write(fn(self, *args, **kwargs), self, name)

    every = (*overloads(name).values(), *overloads(f"{name}_").values())
    derived = [overload for overload in every if overload is not functional and functional_of(overload) is functional]
    return {functional: fn} | {o: inplace_variant if is_inplace(o) else out_variant for o in derived}


COO: dict[OpOverload, Callable[..., Any]] = {
    **with_variants(aten.add.Tensor, add),
    **with_variants(aten.sub.Tensor, sub),
    **with_variants(aten.mul.Tensor, mul),
    aten.mul_.Tensor: mul_,
    **with_variants(aten.addmm.default, addmm),
    **with_variants(aten.bmm.default, bmm),
    aten.addmv.out: addmv_out,
    aten.sspaddmm.out: sspaddmm_out,
    aten._coalesce.default: coalesce,
    aten._sparse_sparse_matmul.default: matmul_of_two,
    aten.sparse_mask.default: sparse_mask,
    aten._sparse_sum_backward.default: sum_backward,
}
COMPRESSED: dict[OpOverload, Callable[..., Any]] = {
    **with_variants(aten.add.Tensor, add_compressed),
    **with_variants(aten.addmm.default, addmm),
    **conversions(),
    aten.addmv.out: addmv_out,
    aten.mm.default: mm,
    aten.sparse_sampled_addmm.default: sampled_addmm,
}
"""Those of CSR, CSC, BSR and BSC tensors."""
