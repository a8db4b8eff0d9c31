"""``torch.optim``'s ``fused=True``: the steps of Adam, AdamW, SGD and Adagrad, with gradient scaling inside.

Lists that :mod:`.foreach_optimizers` does not take are stepped tensor by tensor, with per-element operators. Half types
compute in float32 and are rounded once.
Formulas: aten/src/ATen/native/cpu/Fused{Adam,SGD,Adagrad}Kernel.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch

from . import foreach_optimizers
from .torch_abi import aten, impl

Tensors = Sequence[torch.Tensor]
Rate = float | torch.Tensor

HALF_TYPES = (torch.float16, torch.bfloat16)


def wide(t: torch.Tensor) -> torch.Tensor:
    """``t`` in the type its arithmetic is done in."""
    return t.float() if t.dtype in HALF_TYPES else t


class Gradients:
    """What gradient scaling and ``maximize`` make of gradients, and of results after an overflow."""

    def __init__(self, maximize: bool, grad_scale: torch.Tensor | None, found_inf: torch.Tensor | None) -> None:
        self.maximize, self.grad_scale, self.found_inf = maximize, grad_scale, found_inf

    def read(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient to step along; ``grad`` itself becomes the unscaled one."""
        value = wide(grad)
        if self.grad_scale is not None:
            value = value / self.grad_scale
            self.write((grad, value))
        return -value if self.maximize else value

    def write(self, *updates: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Stores each (target, value), unless the gradients overflowed."""
        for target, value in updates:
            target.copy_(value if self.found_inf is None else torch.where(self.found_inf != 0, wide(target), value))


def adam(
    self: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    lr: Rate,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
    decoupled: bool = False,
) -> None:
    """Adam, or AdamW with ``decoupled`` weight decay. The steps have been counted already."""
    gradients = Gradients(maximize, grad_scale, found_inf)
    largest = max_exp_avg_sqs if amsgrad else repeat(None)
    for param, grad, first, second, most, step in zip(self, grads, exp_avgs, exp_avg_sqs, largest, state_steps):
        value, g = wide(param), gradients.read(grad)
        if weight_decay and decoupled:
            value = value - lr * weight_decay * value
        elif weight_decay:
            g = g + weight_decay * value
        mean = wide(first).lerp(g, 1 - beta1)
        square = wide(second) * beta2 + (1 - beta2) * g * g
        updates = [(first, mean), (second, square)]
        if most is not None:
            square = torch.maximum(wide(most), square)
            updates.append((most, square))
        denominator = (square / (1 - beta2**step)).sqrt() + eps
        updates.append((param, value - lr / (1 - beta1**step) * mean / denominator))
        gradients.write(*updates)


def sgd(
    self: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Rate,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """Stochastic gradient descent."""
    gradients = Gradients(maximize, grad_scale, found_inf)
    buffers = momentum_buffer_list if momentum else repeat(None)
    for param, grad, buffer in zip(self, grads, buffers):
        value, g = wide(param), gradients.read(grad)
        g = g + weight_decay * value if weight_decay else g
        updates = []
        if buffer is not None:
            velocity = g if is_first_step else wide(buffer) * momentum + (1 - dampening) * g
            updates.append((buffer, velocity))
            g = g + momentum * velocity if nesterov else velocity
        gradients.write(*updates, (param, value - lr * g))


def adagrad(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: Rate,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """Adagrad. The steps have been counted already."""
    gradients = Gradients(maximize, grad_scale, found_inf)
    for param, grad, total, step in zip(self, grads, state_sums, state_steps):
        value, g = wide(param), gradients.read(grad)
        g = g + weight_decay * value if weight_decay else g
        square = wide(total) + g * g
        rate = lr / (1 + (step - 1) * lr_decay)
        gradients.write((total, square), (param, value - rate * g / (square.sqrt() + eps)))


def over_lists(whole: Callable[..., bool], per_tensor: Callable[..., None]) -> Callable[..., None]:
    """A kernel that takes all tensors at once where it can, else one after the other."""

    def kernel(*args: Any, **kwargs: Any) -> None:
        if not whole(*args, **kwargs):
            per_tensor(*args, **kwargs)

    return kernel


def register() -> None:
    kernels: dict[Any, Callable[..., None]] = {
        aten._fused_adam_: over_lists(foreach_optimizers.adam, adam),
        aten._fused_adamw_: over_lists(partial(foreach_optimizers.adam, decoupled=True), partial(adam, decoupled=True)),
        aten._fused_sgd_: over_lists(foreach_optimizers.sgd, sgd),
        aten._fused_adagrad_: over_lists(foreach_optimizers.adagrad, adagrad),
    }
    for packet, kernel in kernels.items():
        for overload in packet.overloads():
            impl(getattr(packet, overload), kernel)
