"""``torch.optim``'s fused steps over whole lists: one pass over all parameters.

Formulas: aten/src/ATen/native/cpu/Fused{Adam,SGD,Adagrad}Kernel.cpp. Half types compute in float32 and are rounded
once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import log
from typing import Any

import torch

from torch_webgpu import dtypes
from torch_webgpu.engine.bundles import Bundle
from torch_webgpu.ir.graph import Expr, Number
from torch_webgpu.ir.ops import ops
from torch_webgpu.wgsl.expr import split_scalar

from .expressions import where
from .foreach_lists import Column, ListExpression, find, layout_in

Tensors = Sequence[torch.Tensor]
Rate = float | torch.Tensor
Updates = dict[str, Expr]
Formula = Callable[[dict[str, Expr]], Updates]
"""From the operands by name (tensors in float32, numbers) to what each named list becomes."""

_expressions: dict[Any, ListExpression] = {}

SMALLEST_LOG = -1e30
"""Stands for log(0): its product with any step is enough for exp to vanish."""


def record_step(
    name: str,
    lists: Mapping[str, Tensors | None],
    singles: Mapping[str, Rate | None],
    numbers: Mapping[str, float],
    static: Hashable,
    step: Formula,
) -> bool:
    """Records ``step`` over the tuples of ``lists``; False, and nothing is recorded, for lists it does not take.

    ``singles`` are tensors of one element that all tuples share, or numbers. ``static`` holds what else decides the
    expressions.
    """
    bundles: dict[str, Bundle] = {}
    numbers = dict(numbers)
    for key, tensors in lists.items():
        if tensors is not None:
            bundle = find(tensors)
            if bundle is None:
                return False
            bundles[key] = bundle
    for key, value in singles.items():
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            bundle = find([value.reshape(()) if value.numel() == 1 else value])
            if bundle is None:
                return False
            bundles[key] = bundle
        elif value is not None:
            numbers[key] = float(value)
    first = next(iter(bundles.values()))
    layouts = [layout_in(first.geometry, bundle.geometry) for bundle in bundles.values()]
    if None in layouts or any(b.device != first.device or not b.dtype.is_floating_point for b in bundles.values()):
        return False
    columns = tuple([Column(dtypes.of(b.dtype).name, x) for b, x in zip(bundles.values(), layouts)])  # type: ignore[arg-type]
    signature = (name, static, tuple(bundles), columns, tuple(numbers))
    expression = _expressions.get(signature)
    if expression is None:
        expression = _expressions[signature] = _expression(name, list(bundles), columns, list(numbers), step)
    params = tuple([part for number in numbers.values() for part in split_scalar(number, "f")])
    return expression.record(first.geometry, list(bundles.values()), params)


def _expression(
    name: str, lists: list[str], columns: tuple[Column, ...], numbers: list[str], step: Formula
) -> ListExpression:
    operands = {key: ops.to_dtype(ops.load(k, columns[k].dtype), "f32") for k, key in enumerate(lists)}
    old = dict(operands)
    operands |= {key: ops.param(k, "f32") for k, key in enumerate(numbers)}
    updates = step(operands)
    if "found_inf" in operands:
        skip = ops.ne(operands["found_inf"], 0)
        updates = {key: where(skip, old[key], value) for key, value in updates.items()}
    targets = tuple(lists.index(key) for key in updates)
    roots = tuple([ops.to_dtype(value, columns[k].dtype) for value, k in zip(updates.values(), targets)])
    return ListExpression(name, roots, targets, columns, (Number("f", False),) * len(numbers))


def gradient(x: dict[str, Expr], maximize: bool, decays: bool, updates: Updates) -> Expr:
    """The gradient to step along, with weight decay if it ``decays``; ``updates`` gets the unscaled one."""
    g = x["grad"]
    if "grad_scale" in x:
        g = updates["grad"] = g / x["grad_scale"]
    g = -g if maximize else g
    return g + x["weight_decay"] * x["param"] if decays else g


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
) -> bool:
    """Adam, or AdamW with ``decoupled`` weight decay. The steps have been counted already."""
    near_start = 1 - beta1 < 0.5

    def step(x: dict[str, Expr]) -> Updates:
        updates: Updates = {}
        param, g = x["param"], gradient(x, maximize, bool(weight_decay) and not decoupled, updates)
        if weight_decay and decoupled:
            param = param - x["lr"] * x["weight_decay"] * param
        weight, mean = x["weight1"], x["exp_avg"]
        mean = mean + weight * (g - mean) if near_start else g - (g - mean) * (1 - weight)
        square = x["beta2"] * x["exp_avg_sq"] + x["weight2"] * g * g
        updates |= {"exp_avg": mean, "exp_avg_sq": square}
        if amsgrad:
            square = updates["max_exp_avg_sq"] = ops.maximum(x["max_exp_avg_sq"], square)
        # 1 - beta ** step, without the cancellation that subtracting from 1 in float32 has.
        correction1 = -ops.expm1(x["step"] * x["log_beta1"])
        correction2 = -ops.expm1(x["step"] * x["log_beta2"])
        denominator = ops.sqrt(square) / ops.sqrt(correction2) + x["eps"]
        updates["param"] = param - x["lr"] / correction1 * mean / denominator
        return updates

    lists = {
        "param": self, "grad": grads, "exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs,
        "max_exp_avg_sq": max_exp_avg_sqs if amsgrad else None, "step": state_steps,
    }  # fmt: skip
    numbers = {
        "weight1": 1 - beta1, "beta2": beta2, "weight2": 1 - beta2, "eps": eps, "weight_decay": weight_decay,
        "log_beta1": log(beta1) if beta1 > 0 else SMALLEST_LOG, "log_beta2": log(beta2) if beta2 > 0 else SMALLEST_LOG,
    }  # fmt: skip
    if not 0 <= beta1 <= 1 or not 0 <= beta2 <= 1:
        return False
    singles = {"lr": lr, "grad_scale": grad_scale, "found_inf": found_inf}
    static = (near_start, bool(weight_decay), decoupled, amsgrad, maximize)
    return record_step("_fused_adamw_" if decoupled else "_fused_adam_", lists, singles, numbers, static, step)


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
) -> bool:
    """Stochastic gradient descent."""

    def step(x: dict[str, Expr]) -> Updates:
        updates: Updates = {}
        param, g = x["param"], gradient(x, maximize, bool(weight_decay), updates)
        if momentum:
            velocity = g if is_first_step else x["momentum"] * x["buffer"] + x["weight"] * g
            updates["buffer"] = velocity
            g = g + x["momentum"] * velocity if nesterov else velocity
        updates["param"] = param - x["lr"] * g
        return updates

    lists = {"param": self, "grad": grads, "buffer": momentum_buffer_list if momentum else None}
    numbers = {"weight_decay": weight_decay, "momentum": momentum, "weight": 1 - dampening}
    singles = {"lr": lr, "grad_scale": grad_scale, "found_inf": found_inf}
    static = (bool(weight_decay), bool(momentum), nesterov, maximize, is_first_step)
    return record_step("_fused_sgd_", lists, singles, numbers, static, step)


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
) -> bool:
    """Adagrad. The steps have been counted already."""

    def step(x: dict[str, Expr]) -> Updates:
        updates: Updates = {}
        param, g = x["param"], gradient(x, maximize, bool(weight_decay), updates)
        total = updates["sum"] = x["sum"] + g * g
        rate = x["lr"] / (1 + (x["step"] - 1) * x["lr_decay"])
        updates["param"] = param - rate * g / (ops.sqrt(total) + x["eps"])
        return updates

    lists = {"param": self, "grad": grads, "sum": state_sums, "step": state_steps}
    numbers = {"weight_decay": weight_decay, "eps": eps, "lr_decay": lr_decay}
    singles = {"lr": lr, "grad_scale": grad_scale, "found_inf": found_inf}
    return record_step("_fused_adagrad_", lists, singles, numbers, (bool(weight_decay), maximize), step)
