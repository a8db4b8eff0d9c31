"""Embeddings: look-ups, their gradients, renormalisation, bags."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import check_devices
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.torch_abi import aten, impl
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.indexing.embedding_bag import MAX, MEAN, SUM, lower_embedding_bag

from .indexing import check_index_dtype, index_select, on_dim, read, without

Bags = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def look_up(weight: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """The rows of ``weight`` that ``flat`` (n) numbers, for an operator that the user knows as "embedding"."""
    out = weight.new_empty((flat.shape[0], weight.shape[1]))
    return read("embedding", weight, without(weight.stride(), 0), [on_dim(weight, 0, flat)], out)


def embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    if weight.dim() != 2:
        raise RuntimeError("'weight' must be 2-D")
    check_devices([weight, indices])
    if indices.dtype not in (torch.int64, torch.int32):
        check_as_cpu(aten.embedding.default, weight, indices)
    return look_up(weight, indices.reshape(-1)).view(*indices.shape, weight.shape[1])


def frequency(indices: torch.Tensor, num_weights: int, dtype: torch.dtype) -> torch.Tensor:
    """How often each of ``indices`` (n) occurs among them, as an (n, 1) column."""
    counts = torch.zeros(num_weights, dtype=torch.int32, device=indices.device)
    counts.index_add_(0, indices, counts.new_ones(()).expand(indices.shape))
    return index_select(counts, 0, indices).to(dtype).unsqueeze(1)


def embedding_dense_backward(
    grad_output: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    check_devices([grad_output, indices])
    check_index_dtype("embedding_backward(): Expected dtype int32/int64 for indices", indices)
    flat = indices.reshape(-1)
    grad = grad_output.reshape(flat.numel(), grad_output.shape[-1])
    if scale_grad_by_freq:
        grad = grad / frequency(flat, num_weights, grad.dtype)
    result = grad.new_zeros((num_weights, grad_output.shape[-1])).index_add_(0, flat, grad)
    if padding_idx >= 0:
        result[padding_idx].zero_()
    return result


def embedding_renorm_(self: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    """Rows that ``indices`` name and whose norm exceeds ``max_norm`` are scaled down to it."""
    if self.dim() != 2:
        raise RuntimeError(f"embedding_renorm_: 'self' must be 2-D, got {self.dim()}-D")
    check_devices([self, indices])
    flat = indices.reshape(-1).long()
    if flat.numel() == 0:
        return self
    rows = look_up(self, flat)
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    norms = torch.linalg.vector_norm(rows, norm_type, 1, keepdim=True, dtype=dtype)
    scale = torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)
    return self.index_copy_(0, flat, (rows * scale).to(self.dtype))


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Bags:
    """(output, the bag of each index, the size of each bag without padding, the rows of the maxima)."""
    weighted = per_sample_weights is not None
    check_dimensions(weight, indices, offsets)
    check_devices([weight, indices, offsets] + ([per_sample_weights] if per_sample_weights is not None else []))
    check_index_dtype("embedding_bag: expected int32 or int64 indices and offsets", indices, offsets)
    if weighted and mode != SUM:
        raise RuntimeError("embedding_bag: per_sample_weights was not None. It is only supported for mode='sum'")
    check_weights(weight, per_sample_weights, indices)
    if include_last_offset and not offsets.shape[0]:
        raise RuntimeError("include_last_offset: number of offset should be at least 1")
    indices = indices.reshape(-1)
    bags = offsets.shape[0] - include_last_offset
    output = weight.new_empty((bags, weight.shape[1]))
    bag_size = indices.new_empty(bags, dtype=torch.int64)
    largest = indices.new_empty((bags, weight.shape[1]) if mode == MAX else (1, 1), dtype=torch.int64)
    bag_of = torch.searchsorted(
        offsets[:bags], torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device), right=True
    ).sub_(1)
    if output.numel():
        inputs = [weight, indices.contiguous(), offsets.contiguous()]
        if per_sample_weights is not None:
            inputs.append(per_sample_weights.contiguous())
        body = Extern(lower_embedding_bag, (mode, padding_idx, weighted))
        record_kernel("embedding_bag", inputs, [output, bag_size, largest], body)
    return output, bag_of, bag_size, largest if mode == MAX else bag_size.clone()


def check_dimensions(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> None:
    if indices.dim() not in (1, 2):
        raise RuntimeError(f"input has to be a 1D or 2D Tensor, but got Tensor of dimension {indices.dim()}")
    if indices.dim() == 1 and offsets.dim() != 1:
        raise RuntimeError(f"offsets has to be a 1D Tensor, but got Tensor of dimension {offsets.dim()}")
    if weight.dim() != 2:
        raise RuntimeError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.dim()}")


UNMET = (
    "Expected per_sample_weights.value().{} to be true, but got false.  (Could this error message be improved?  If so, "
    "please report an enhancement request to PyTorch.)"
)


def check_weights(weight: torch.Tensor, per_sample_weights: torch.Tensor | None, indices: torch.Tensor) -> None:
    while_checking = "(while checking arguments for embedding_bag)"
    if not weight.is_floating_point():
        raise RuntimeError(
            "Expected tensor for argument #1 'weight' to have one of the following scalar types: Half, BFloat16, "
            f"Float, Double; but got torch.{name_of(weight.dtype)}Tensor instead {while_checking}"
        )
    if per_sample_weights is None:
        return
    if per_sample_weights.dtype != weight.dtype:
        raise RuntimeError(
            "Expected tensor for argument #1 'weight' to have the same type as tensor for argument #1 "
            f"'per_sample_weights'; but type torch.{name_of(weight.dtype)}Tensor does not equal "
            f"torch.{name_of(per_sample_weights.dtype)}Tensor {while_checking}"
        )
    if per_sample_weights.dim() != 1:
        raise RuntimeError(UNMET.format("dim() == 1"))
    if per_sample_weights.numel() != indices.numel():
        raise RuntimeError(UNMET.format("numel() == indices.numel()"))


def embedding_bag_dense_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    result = grad.new_zeros((num_weights, grad.shape[1]))
    if grad.numel() == 0 or indices.numel() == 0:
        return result
    if mode == MAX:
        return result.scatter_add_(0, maximum_indices, torch.where(bag_size.unsqueeze(1) > 0, grad, 0))
    if mode == MEAN:
        grad = grad / bag_size.clamp(min=1).unsqueeze(1)
    rows = index_select(grad, 0, offset2bag)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if scale_grad_by_freq:
        rows = rows / frequency(indices, num_weights, rows.dtype)
    result.index_add_(0, indices, rows)
    if padding_idx >= 0:
        result[padding_idx].zero_()
    return result


def embedding_bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    if sparse:
        return aten._embedding_bag_sparse_backward(
            grad, indices, offsets, offset2bag, bag_size, num_weights, scale_grad_by_freq, mode, per_sample_weights,
            padding_idx,
        )  # fmt: skip
    return embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


def per_sample_weights_backward(
    grad: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    mode: int,
    padding_idx: int = -1,
) -> torch.Tensor:
    if mode != SUM:
        raise RuntimeError("embedding_bag_backward: per_sample_weights only supported for mode='sum'")
    if indices.numel() == 0:
        return grad.new_zeros(0)
    products = (index_select(grad, 0, offset2bag) * index_select(weight, 0, indices)).sum(1)
    return products.masked_fill_(indices == padding_idx, 0) if padding_idx >= 0 else products


def register() -> None:
    impl(aten.embedding_renorm_.default, embedding_renorm_)
    impl(aten._embedding_bag_backward.default, embedding_bag_backward)
    register_operator(aten.embedding.default, embedding)
    for overload, fn in (
        (aten.embedding_dense_backward.default, embedding_dense_backward),
        (aten._embedding_bag.default, embedding_bag),
        (aten._embedding_bag_forward_only.default, embedding_bag),
        (aten._embedding_bag_dense_backward.default, embedding_bag_dense_backward),
        (aten._embedding_bag_per_sample_weights_backward.default, per_sample_weights_backward),
    ):
        register_operator(overload, fn, by_mode=True)
