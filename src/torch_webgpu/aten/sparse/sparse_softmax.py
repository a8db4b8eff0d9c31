"""Softmax of COO tensors: over a dimension, of the elements that there are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.torch_abi import aten

from .sparse_kernels import accumulated, coo, row_major, sparse_mask


def lines(self: torch.Tensor, dim: int) -> tuple[torch.Tensor, int]:
    """For each element the number of its line along the sparse dimension ``dim``, and how many lines have some."""
    kept = [d for d in range(self.sparse_dim()) if d != dim]
    numbers = row_major(self._indices()[kept], [self.shape[d] for d in kept])
    found, which = torch.unique(numbers, return_inverse=True)
    return which, found.shape[0]


def softmax_kernel(fn: Callable[..., torch.Tensor], dense: OpOverload) -> Callable[..., torch.Tensor]:
    def forward(self: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        self, dim = self.coalesce(), dim % max(self.dim(), 1)
        indices, values = self._indices(), self._values()
        if dim >= self.sparse_dim():
            values = dense(values, dim - self.sparse_dim() + 1, half_to_float)
        elif values.shape[0]:
            which, count = lines(self, dim)
            spread = which.view(-1, *[1] * (values.dim() - 1)).expand(values.shape)
            largest = values.new_full((count, *values.shape[1:]), -torch.inf)
            largest = largest.scatter_reduce_(0, spread, values, "amax")
            values = fn(values - largest[which], which, count)
        return coo(self, indices.clone(), values, coalesced=True)

    return forward


def probabilities(values: torch.Tensor, which: torch.Tensor, count: int) -> torch.Tensor:
    powers = values.exp()
    return powers / accumulated(powers, which, count)[which]


def log_probabilities(values: torch.Tensor, which: torch.Tensor, count: int) -> torch.Tensor:
    return values - accumulated(values.exp(), which, count).log()[which]


def softmax_backward_kernel(fn: Callable[..., torch.Tensor], dense: OpOverload) -> Callable[..., torch.Tensor]:
    def backward(grad: torch.Tensor, output: torch.Tensor, dim: int, self: torch.Tensor) -> torch.Tensor:
        output, dim = output.coalesce(), dim % max(output.dim(), 1)
        grads, values = sparse_mask(grad, output)._values(), output._values()
        if dim >= output.sparse_dim():
            values = dense(grads, values, dim - output.sparse_dim() + 1, values.dtype)
        elif values.shape[0]:
            values = fn(grads, values, *lines(output, dim))
        return coo(output, output._indices().clone(), values, coalesced=True)

    return backward


def probabilities_gradient(grads: torch.Tensor, values: torch.Tensor, which: torch.Tensor, count: int) -> torch.Tensor:
    return values * (grads - accumulated(grads * values, which, count)[which])


def log_probabilities_gradient(
    grads: torch.Tensor, values: torch.Tensor, which: torch.Tensor, count: int
) -> torch.Tensor:
    return grads - values.exp() * accumulated(grads, which, count)[which]


KERNELS = {
    aten._sparse_softmax.default: softmax_kernel(probabilities, aten._softmax.default),
    aten._sparse_log_softmax.default: softmax_kernel(log_probabilities, aten._log_softmax.default),
    aten._sparse_softmax_backward_data.default: softmax_backward_kernel(
        probabilities_gradient, aten._softmax_backward_data.default
    ),
    aten._sparse_log_softmax_backward_data.default: softmax_backward_kernel(
        log_probabilities_gradient, aten._log_softmax_backward_data.default
    ),
}
