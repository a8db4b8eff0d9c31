"""The loss of connectionist temporal classification and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.losses import ctc

NO_FLOAT64 = "its kernel computes in float32"


def forward(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses (N,), and what the paths to each step and state come to, (N, T, 2 S + 1), which the gradient needs."""
    overload = aten._ctc_loss.default
    if log_probs.dtype == torch.float64:
        arguments = (log_probs, targets, list(input_lengths), list(target_lengths), blank, zero_infinity)
        return run_on_cpu(overload, arguments, {}, NO_FLOAT64)
    loss, log_alpha = outputs_of(overload, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    if loss.numel():
        lengths = _lengths(targets, input_lengths, target_lengths)
        body = Extern(ctc.lower_paths, (blank, targets.stride(-1), False))
        record_kernel("aten::_ctc_loss", [log_probs, targets, lengths], [log_alpha, loss], body)
    return loss, log_alpha


def backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """The gradient (T, N, C) of the log-probabilities."""
    if log_probs.dtype == torch.float64:
        lists = (list(input_lengths), list(target_lengths))
        arguments = (grad, log_probs, targets, *lists, neg_log_likelihood, log_alpha, blank, zero_infinity)
        return run_on_cpu(aten._ctc_loss_backward.default, arguments, {}, NO_FLOAT64)
    out = log_probs.new_empty(log_probs.shape)
    if out.numel():
        inputs = [log_probs, targets, _lengths(targets, input_lengths, target_lengths)]
        target = (blank, targets.stride(-1))
        log_beta = torch.empty_like(log_alpha)
        record_kernel("aten::_ctc_loss.reverse", inputs, [log_beta], Extern(ctc.lower_paths, (*target, True)))
        inputs += [grad, neg_log_likelihood, log_alpha, log_beta]
        body = Extern(ctc.lower_gradient, (*target, zero_infinity))
        record_kernel("aten::_ctc_loss_backward", inputs, [out], body)
    return out


def _lengths(targets: torch.Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int]) -> torch.Tensor:
    """Steps, labels, and where the labels begin, of each sequence: int32 (N, 3)."""
    if targets.dim() == 1:  # one after the other
        places = [place * targets.stride(0) for place in accumulate(target_lengths, initial=0)]
    else:
        places = [n * targets.stride(0) for n in range(len(target_lengths))]
    rows = list(zip(input_lengths, target_lengths, places))
    return torch.tensor(rows, dtype=torch.int32).to(targets.device)


def register() -> None:
    register_operator(aten._ctc_loss.default, forward)
    register_operator(aten._ctc_loss_backward.default, backward)
