"""The negative log likelihood loss, over vectors and over images, and its gradient: what cross-entropy is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.operations import Fold, record_kernel, record_pointwise, record_reduction
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import Maybe, not_implemented
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.aten.pointwise.losses import MEAN, NONE
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.operation import Extern
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.losses.nll import lower_nll

from .reduce import own


def as_images(t: torch.Tensor, classes: bool) -> torch.Tensor:
    """(N, C, H, W), or (N, H, W) without classes, of a tensor that may lack the batch and the image dimensions."""
    rank = 4 if classes else 3
    if t.dim() < rank - 2:
        t = t.unsqueeze(0)
    return t if t.dim() == rank else t.unsqueeze(-1).unsqueeze(-1)


def forward(overload: OpOverload) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The kernel of ``nll_loss_forward`` or ``nll_loss2d_forward``: the loss and the weight it was divided by."""

    def kernel(
        self: torch.Tensor, target: torch.Tensor, weight: Maybe, reduction: int, ignore_index: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if target.dtype != torch.int64:
            check_as_cpu(overload, self, target, weight, reduction, ignore_index)
        if not self.is_floating_point():
            raise not_implemented("nll_loss_out_frame", self.dtype)
        target = target.to(torch.int64)  # PyTorch takes uint8, too
        output, total = outputs_of(overload, self, target, weight, reduction, ignore_index)
        x, t = as_images(self, classes=True), as_images(target, classes=False)
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        each = as_images(output, classes=False) if reduction == NONE else self.new_empty(t.shape, dtype=wide)
        share = self.new_empty(t.shape, dtype=wide)
        inputs = [x, t] if weight is None else [x, t, weight]
        if each.numel():
            record_kernel(overload.name(), inputs, [each, share], Extern(lower_nll), [("l", ignore_index)])
        if reduction == NONE:
            return output, total.zero_()

        name = f"{overload.name()}.reduced"
        record_reduction(name, [each, share], [output, total], t.shape, (0, 1, 2), weighted_sum, (reduction,))
        return output, total

    return kernel


def weighted_sum(reduction: int, loss: Expr, share: Expr) -> Fold:
    """Of all losses, or their mean, and of the weights."""

    def epilogue(loss: Expr, weight: Expr) -> tuple[Expr, ...]:
        return (loss / weight if reduction == MEAN else loss), weight

    return Fold((loss, share), ("sum", "sum"), epilogue)


def backward(overload: OpOverload) -> Callable[..., torch.Tensor]:
    """The kernel of the gradient: minus the target's weight at the target's class, 0 elsewhere."""

    def kernel(
        grad_output: torch.Tensor,
        self: torch.Tensor,
        target: torch.Tensor,
        weight: Maybe,
        reduction: int,
        ignore_index: int,
        total_weight: torch.Tensor,
    ) -> torch.Tensor:
        target = target.to(torch.int64)
        (grad_input,) = outputs_of(overload, grad_output, self, target, weight, reduction, ignore_index, total_weight)
        out, t = as_images(grad_input, classes=True), as_images(target, classes=False).unsqueeze(1)
        grad = as_images(grad_output, classes=False).unsqueeze(1) if reduction == NONE else grad_output
        inputs = [grad, t, total_weight, *([] if weight is None else [weight.view(1, -1, 1, 1)])]
        record_pointwise(overload.name(), inputs, [out], gradient, (reduction,), [("l", ignore_index)])
        return grad_input

    return kernel


def gradient(reduction: int, grad: Expr, t: Expr, total: Expr, *share: Expr) -> Expr:
    """Scalar 0 is the label that is ignored."""
    value = own(grad) / own(total) if reduction == MEAN else own(grad)
    value = value * own(share[0]) if share else value
    here = ops.eq(ops.to_dtype(ops.index(1), "i64"), t) & ops.ne(t, ops.param(0, "i64"))
    return ops.where(here, -value, ops.like(value, 0))


def register() -> None:
    table: dict[Any, Any] = {
        aten.nll_loss_forward.default: forward,
        aten.nll_loss2d_forward.default: forward,
        aten.nll_loss_backward.default: backward,
        aten.nll_loss2d_backward.default: backward,
    }
    for overload, kernel in table.items():
        register_operator(overload, kernel(overload))
