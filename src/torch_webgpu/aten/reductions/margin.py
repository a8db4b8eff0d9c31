"""Margin losses over class scores: the forward and backward passes that PyTorch has no (right) decomposition for.

PyTorch's decomposition of ``multilabel_margin_loss_forward`` counts the labels after the terminating −1 as label 0.
Formulas: aten/src/ATen/native/LossMultiLabelMargin.cpp and LossMultiMargin.cpp.
"""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.aten.indexing.indexing import gather

MEAN, SUM = 1, 2


def reduced(losses: torch.Tensor, reduction: int) -> torch.Tensor:
    """Per-sample losses, their mean or their sum."""
    if reduction == MEAN:
        return losses.mean()
    return losses.sum() if reduction == SUM else losses


def share(grad_output: torch.Tensor, self: torch.Tensor, reduction: int) -> torch.Tensor:
    """What a loss of one sample is multiplied by in the result, as a column; divided by the number of classes."""
    samples = self.shape[0] if reduction == MEAN else 1
    return grad_output.reshape(-1, 1) / (samples * self.shape[1])


def labels_of(self: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(labels (N, C), 0 where there is none; whether there is one (N, C); whether a class is a label (N, C))."""
    given = (target == -1).cumsum(-1) == 0
    labels = torch.where(given, target, 0)
    classes = torch.arange(self.shape[1], device=self.device)
    is_label = ((labels.unsqueeze(-1) == classes) & given.unsqueeze(-1)).any(1)
    return labels, given, is_label


def label_margins(self: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(margins (N, labels, classes), 0 where not violated; labels (N, C); whether a class is a label (N, C))."""
    labels, given, is_label = labels_of(self, target)
    margins = 1 - gather(self, 1, labels, name="multilabel_margin_loss").unsqueeze(-1) + self.unsqueeze(1)
    counted = given.unsqueeze(-1) & ~is_label.unsqueeze(1)
    return torch.where(counted, margins.clamp_min(0), 0), labels, is_label


def check_labels(self: torch.Tensor, target: torch.Tensor) -> None:
    if self.dim() > 2 or not self.shape[-1:].numel():
        raise RuntimeError(
            "Expected non-empty vector or matrix with optional 0-dim batch size, but got: " + str(list(self.shape))
        )
    if target.shape != self.shape:
        raise RuntimeError(f"inconsistent target size: {list(target.shape)} for input of size: {list(self.shape)}")


def multilabel_forward(self: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    check_labels(self, target)
    scores = torch.atleast_2d(self)
    margins, _, is_label = label_margins(scores, torch.atleast_2d(target))
    losses = margins.sum((1, 2)) / scores.shape[1]
    losses = losses[0] if self.dim() < 2 else losses
    return reduced(losses, reduction), is_label.to(self.dtype).reshape(target.shape)


def multilabel_backward(
    grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int, is_target: torch.Tensor
) -> torch.Tensor:
    scores = torch.atleast_2d(self)
    margins, labels, _ = label_margins(scores, torch.atleast_2d(target))
    violated = (margins > 0).to(self.dtype)
    grad = violated.sum(1).scatter_add(1, labels, -violated.sum(2))
    return (grad * share(grad_output, scores, reduction)).reshape(self.shape)


def multi_forward(
    self: torch.Tensor,
    target: torch.Tensor,
    p: float = 1,
    margin: float = 1,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    (out,) = outputs_of(aten.multi_margin_loss.default, self, target, p, margin, weight, reduction)
    scores, label = torch.atleast_2d(self), target.reshape(-1, 1)
    losses = (margin - gather(scores, 1, label, name="multi_margin_loss") + scores).clamp_min(0)
    losses = losses if p == 1 else losses * losses
    losses = losses if weight is None else losses * weight[label]
    is_other = torch.arange(scores.shape[1], device=self.device) != label
    losses = torch.where(is_other, losses, 0).sum(1) / scores.shape[1]
    return reduced(losses, reduction).view(out.shape)


def multi_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    p: float,
    margin: float,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    scores, label = torch.atleast_2d(self), target.reshape(-1, 1)
    margins = (margin - scores.gather(1, label) + scores).clamp_min(0)
    slope = (margins > 0).to(self.dtype) if p == 1 else 2 * margins
    slope = slope if weight is None else slope * weight[label]
    slope = slope.scatter(1, label, 0.0)
    grad = slope.scatter(1, label, -slope.sum(1, keepdim=True))
    return (grad * share(grad_output, scores, reduction)).reshape(self.shape)


def register() -> None:
    register_operator(aten.multilabel_margin_loss_forward.default, multilabel_forward)
    register_operator(aten.multilabel_margin_loss_backward.default, multilabel_backward)
    register_operator(aten.multi_margin_loss.default, multi_forward)
    register_operator(aten.multi_margin_loss_backward.default, multi_backward)
