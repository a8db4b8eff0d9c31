"""Softmaxes and their gradients: one reduction each, which stores every point once the row's sums are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.operations import Fold, record_reduction
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.ir.combine import finite_or_zero
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

from .reduce import own, reduced_dims

Along = Callable[..., tuple[Expr, Callable[..., Expr]]]
"""``(*elements)``: what a point contributes, and from the accumulators to the point's result."""


def along(
    name: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    dim: int,
    combine: str,
    write: Along,
) -> torch.Tensor:
    """Records what is computed at every point of ``inputs[0]``'s shape from a reduction along ``dim``."""
    shape = inputs[0].shape
    dims = reduced_dims(dim, len(shape))
    record_reduction(name, inputs, outputs, shape, dims, fold_along, (combine, write), maps=1)
    return outputs[0]


def fold_along(combine: str, write: Along, *elements: Expr) -> Fold:
    value, result = write(*map(own, elements))
    return Fold((value,), (combine,), lambda *accumulators: (result(*accumulators),))


def checked(top: Expr, total: Expr) -> Expr:
    """``total``, but NaN where a row's largest element is infinite: there PyTorch has a difference of infinities."""
    return ops.where(ops.isinf(top), ops.like(total, float("nan")), total)


def share_of(x: Expr, top: Expr, total: Expr) -> Expr:
    """``exp(x - top) / total``; the exponential is the one in the sum, and a row has one reciprocal."""
    return ops.exp(x - finite_or_zero(top)) * ops.reciprocal(total)


def softmax_along(x: Expr) -> tuple[Expr, Callable[..., Expr]]:
    return x, lambda top, total: share_of(x, top, checked(top, total))


def softmax(self: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    outputs = outputs_of(aten._softmax.default, self, dim, half_to_float)
    return along("aten::_softmax", [self], outputs, dim, "logsumexp", softmax_along)


def log_softmax_along(x: Expr) -> tuple[Expr, Callable[..., Expr]]:
    return x, lambda top, total: x - top - ops.log(checked(top, total))


def log_softmax(self: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    outputs = outputs_of(aten._log_softmax.default, self, dim, half_to_float)
    return along("aten::_log_softmax", [self], outputs, dim, "logsumexp", log_softmax_along)


def log_sum_exp_fold(x: Expr) -> Fold:
    return Fold((own(x),), ("logsumexp",), lambda top, total: (top, ops.log(checked(top, total))))


def log_sum_exp_shapes(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (self.shape[0], 1)
    return self.new_empty(shape, dtype=torch.float32), self.new_empty(shape, dtype=torch.float32)


def log_sum_exp(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row of a matrix the largest number, and the logarithm of the sum of ``exp(x - largest)``, in float32."""
    outputs = log_sum_exp_shapes(self)
    record_reduction("torch_webgpu::log_sum_exp", [self], outputs, self.shape, (1,), log_sum_exp_fold)
    return outputs


def safe_softmax_along(x: Expr) -> tuple[Expr, Callable[..., Expr]]:
    def result(top: Expr, total: Expr) -> Expr:
        masked = ops.eq(top, float("-inf")) & ~ops.isnan(total)
        return ops.where(masked, ops.like(x, 0), share_of(x, top, checked(top, total)))

    return x, result


def safe_softmax(self: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Softmax that is 0 where a whole row is masked out with -inf."""
    self = self if dtype is None else self.to(dtype)
    outputs = outputs_of(aten._softmax.default, self, dim, False)
    return along("aten::_safe_softmax", [self], outputs, dim, "logsumexp", safe_softmax_along)


def gradient(overload: OpOverload, write: Along) -> Callable[..., torch.Tensor]:
    """The kernel of a ``backward_data`` overload; ``write(grad, y)``."""

    def kernel(grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
        outputs = outputs_of(overload, grad_output, output, dim, input_dtype)
        return along(overload._schema.name, [grad_output, output], outputs, dim, "sum", write)

    return kernel


def softmax_slope(grad: Expr, y: Expr) -> tuple[Expr, Callable[..., Expr]]:
    return grad * y, lambda total: (grad - total) * y


def log_softmax_slope(grad: Expr, y: Expr) -> tuple[Expr, Callable[..., Expr]]:
    return grad, lambda total: grad - ops.exp(y) * total


softmax_backward = gradient(aten._softmax_backward_data.default, softmax_slope)
log_softmax_backward = gradient(aten._log_softmax_backward_data.default, log_softmax_slope)


# Masked softmax -------------------------------------------------------------------------------------------------------

SOURCE_MASK, KEY_PADDING_MASK = 0, 1
"""Mask types of nn.MultiheadAttention: (L, L) for all batches and heads, (B, L) for all heads and queries."""


def broadcast_mask(mask: torch.Tensor, shape: torch.Size, mask_type: int | None) -> torch.Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError("Mask should be a boolean tensor")
    if mask.shape != shape:
        if mask_type == SOURCE_MASK:
            mask = mask.view(1, 1, shape[2], shape[2])
        elif mask_type == KEY_PADDING_MASK:
            mask = mask.view(shape[0], 1, 1, shape[2])
    return mask.expand(shape)


def masked_softmax_along(x: Expr, masked: Expr) -> tuple[Expr, Callable[..., Expr]]:
    kept = ops.where(masked, ops.like(x, float("-inf")), x)
    return kept, lambda top, total: ops.exp(kept - top) / checked(top, total)


def masked_softmax(
    self: torch.Tensor, mask: torch.Tensor, dim: int | None = None, mask_type: int | None = None
) -> torch.Tensor:
    """Softmax over the elements where ``mask`` is False; 0 elsewhere, NaN where there is no such element."""
    if mask_type not in (None, 0, 1, 2):
        raise RuntimeError("Mask Type should be 0 (src_mask), 1 (src_key_padding_mask), or 2 (default_mask)")
    mask = broadcast_mask(mask, self.shape, mask_type)
    outputs = outputs_of(aten._softmax.default, self, 0, False)
    dim = self.dim() - 1 if dim is None else dim
    return along("aten::_masked_softmax", [self, mask], outputs, dim, "logsumexp", masked_softmax_along)


def masked_softmax_slope(grad: Expr, y: Expr, masked: Expr) -> tuple[Expr, Callable[..., Expr]]:
    value = ops.where(masked, ops.like(y, 0), grad * y)
    return value, lambda total: ops.where(masked, ops.like(y, 0), (grad - total) * y)


def masked_softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, mask: torch.Tensor, dim: int | None = None
) -> torch.Tensor:
    outputs = outputs_of(aten._softmax_backward_data.default, grad_output, output, 0, output.dtype)
    dim = output.dim() - 1 if dim is None else dim
    inputs = [grad_output, output, mask]
    return along("aten::_masked_softmax_backward", inputs, outputs, dim, "sum", masked_softmax_slope)


def register() -> None:
    table: dict[OpOverload, Callable[..., Any]] = {
        aten._softmax.default: softmax,
        aten._safe_softmax.default: safe_softmax,
        aten._log_softmax.default: log_softmax,
        aten._softmax_backward_data.default: softmax_backward,
        aten._log_softmax_backward_data.default: log_softmax_backward,
        aten._masked_softmax.default: masked_softmax,
        aten._masked_softmax_backward.default: masked_softmax_backward,
    }
    for overload, kernel in table.items():
        register_operator(overload, kernel)
