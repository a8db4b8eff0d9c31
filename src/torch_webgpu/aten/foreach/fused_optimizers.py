"""``torch.optim``'s ``fused=True``: the steps of Adam, AdamW, SGD and Adagrad, with gradient scaling inside.

Each optimizer is one formula. Over expressions it is one pass over all parameters; over tensors it steps, one after the
other, those of lists that :mod:`.foreach_arguments` does not take. Half types compute in float32 and are rounded once.
Formulas: aten/src/ATen/native/cpu/Fused{Adam,SGD,Adagrad}Kernel.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Any

import torch

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.torch_abi import aten, impl
from torch_webgpu.engine.recorded_lists import RecordedList
from torch_webgpu.ir.operation import Number
from torch_webgpu.ir.ops import ops
from torch_webgpu.ir.values import check_function, check_values
from torch_webgpu.wgsl.expr import split_scalar

from .foreach_arguments import ListColumn, ListExpression, find, layout_in

TensorSequence = Sequence[torch.Tensor]
Rate = float | torch.Tensor
NamedValues = dict[str, Any]
"""Expressions or tensors, none of a half type, and numbers, by name."""
Formula = Callable[..., NamedValues]
"""``formula(math, operands, *arguments)``: what each named list becomes. ``math`` has the functions: ``ops`` for
expressions, ``torch`` for tensors.
"""

_expressions: dict[Any, ListExpression] = {}

SMALLEST_LOG = -1e30
"""Stands for log(0): its product with any step is enough for exp to vanish."""


@dataclass(frozen=True)
class OptimizerStep:
    """One optimizer's step: its formula, and what else decides the code."""

    name: str
    formula: Formula
    arguments: tuple[Hashable, ...]

    def run(
        self,
        lists: Mapping[str, TensorSequence | None],
        singles: Mapping[str, Rate | None],
        numbers: Mapping[str, float],
    ) -> None:
        """Steps each tuple of tensors from ``lists``; all share ``singles``: numbers, or tensors of one element."""
        present = {key: tensors for key, tensors in lists.items() if tensors is not None}
        shared = {
            k: v.reshape(()) for k, v in singles.items() if isinstance(v, torch.Tensor) and v.device.type != "cpu"
        }
        floats = {**numbers, **{k: float(v) for k, v in singles.items() if v is not None and k not in shared}}
        if not self.record(present, shared, floats):
            self.step_each(present, shared, floats)

    def record(
        self, lists: Mapping[str, TensorSequence], shared: Mapping[str, torch.Tensor], numbers: Mapping[str, float]
    ) -> bool:
        """Records one operation for all tuples; False, and nothing is recorded, for lists that do not allow it."""
        tensor_lists: dict[str, RecordedList] = {}
        for key, tensors in (*lists.items(), *((key, [t]) for key, t in shared.items())):
            tensor_list = find(tensors)
            if tensor_list is None:
                return False
            tensor_lists[key] = tensor_list
        first = tensor_lists["param"]
        layouts = [layout_in(first.geometry, tensor_list.geometry) for tensor_list in tensor_lists.values()]
        if None in layouts or any(
            b.device != first.device or not b.dtype.is_floating_point for b in tensor_lists.values()
        ):
            return False
        columns = tuple([ListColumn(dtypes.of(b.dtype).name, x) for b, x in zip(tensor_lists.values(), layouts)])  # type: ignore[arg-type]
        signature = (self, tuple(tensor_lists), columns, tuple(numbers))
        expression = _expressions.get(signature)
        if expression is None:
            expression = _expressions[signature] = self.expression(*signature[1:])
        params = tuple([part for number in numbers.values() for part in split_scalar(number, "f")])
        return expression.record(first.geometry, list(tensor_lists.values()), params)

    def expression(
        self, lists: tuple[str, ...], columns: tuple[ListColumn, ...], numbers: tuple[str, ...]
    ) -> ListExpression:
        check_function(self.name, self.formula)
        check_values(self.name, self.arguments)
        tensors = {key: ops.to_dtype(ops.load(k, columns[k].dtype), "f32") for k, key in enumerate(lists)}
        updates = self.updates(ops, tensors, {key: ops.param(k, "f32") for k, key in enumerate(numbers)})
        targets = tuple(lists.index(key) for key in updates)
        roots = tuple([ops.to_dtype(value, columns[k].dtype) for value, k in zip(updates.values(), targets)])
        return ListExpression(self.name, roots, targets, columns, (Number("f", False),) * len(numbers))

    def step_each(
        self, lists: Mapping[str, TensorSequence], shared: Mapping[str, torch.Tensor], numbers: Mapping[str, float]
    ) -> None:
        """Steps one tuple after the other, with per-element operators."""
        for tensors in zip(*lists.values()):
            stored = dict(zip(lists, tensors))
            wide = {k: t.to(torch.promote_types(t.dtype, torch.float32)) for k, t in {**stored, **shared}.items()}
            for key, value in self.updates(torch, wide, numbers).items():
                stored[key].copy_(value)

    def updates(self, math: Any, tensors: NamedValues, numbers: Mapping[str, Any]) -> NamedValues:
        """What each named list becomes: what it was where gradient scaling found that the gradients overflowed."""
        updated = self.formula(math, {**tensors, **numbers}, *self.arguments)
        if "found_inf" not in tensors:
            return updated
        skip = math.ne(tensors["found_inf"], 0)
        return {key: math.where(skip, tensors[key], value) for key, value in updated.items()}


def gradient(x: NamedValues, maximize: bool, decays: bool, updates: NamedValues) -> Any:
    """The gradient to step along, with weight decay if it ``decays``; ``updates`` gets the unscaled one."""
    g = x["grad"]
    if "grad_scale" in x:
        g = updates["grad"] = g / x["grad_scale"]
    g = -g if maximize else g
    return g + x["weight_decay"] * x["param"] if decays else g


def adam_formula(
    math: Any, x: NamedValues, near_start: bool, decays: bool, decoupled: bool, amsgrad: bool, maximize: bool
) -> NamedValues:
    updates: NamedValues = {}
    param, g = x["param"], gradient(x, maximize, decays and not decoupled, updates)
    if decays and decoupled:
        param = param - x["lr"] * x["weight_decay"] * param
    weight, mean = x["weight1"], x["exp_avg"]
    mean = mean + weight * (g - mean) if near_start else g - (g - mean) * (1 - weight)
    square = x["beta2"] * x["exp_avg_sq"] + x["weight2"] * g * g
    updates |= {"exp_avg": mean, "exp_avg_sq": square}
    if amsgrad:
        square = updates["max_exp_avg_sq"] = math.maximum(x["max_exp_avg_sq"], square)
    # 1 - beta ** step, without the cancellation that subtracting from 1 has.
    correction1 = -math.expm1(x["step"] * x["log_beta1"])
    correction2 = -math.expm1(x["step"] * x["log_beta2"])
    denominator = math.sqrt(square) / math.sqrt(correction2) + x["eps"]
    updates["param"] = param - x["lr"] / correction1 * mean / denominator
    return updates


def sgd_formula(
    math: Any, x: NamedValues, decays: bool, momentum: bool, nesterov: bool, maximize: bool, is_first_step: bool
) -> NamedValues:
    updates: NamedValues = {}
    param, g = x["param"], gradient(x, maximize, decays, updates)
    if momentum:
        velocity = g if is_first_step else x["momentum"] * x["buffer"] + x["weight"] * g
        updates["buffer"] = velocity
        g = g + x["momentum"] * velocity if nesterov else velocity
    updates["param"] = param - x["lr"] * g
    return updates


def adagrad_formula(math: Any, x: NamedValues, decays: bool, maximize: bool) -> NamedValues:
    updates: NamedValues = {}
    param, g = x["param"], gradient(x, maximize, decays, updates)
    total = updates["sum"] = x["sum"] + g * g
    rate = x["lr"] / (1 + (x["step"] - 1) * x["lr_decay"])
    updates["param"] = param - rate * g / (math.sqrt(total) + x["eps"])
    return updates


def adam(
    self: TensorSequence,
    grads: TensorSequence,
    exp_avgs: TensorSequence,
    exp_avg_sqs: TensorSequence,
    max_exp_avg_sqs: TensorSequence,
    state_steps: TensorSequence,
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
    lists = {
        "param": self, "grad": grads, "exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs,
        "max_exp_avg_sq": max_exp_avg_sqs if amsgrad else None, "step": state_steps,
    }  # fmt: skip
    numbers = {
        "weight1": 1 - beta1, "beta2": beta2, "weight2": 1 - beta2, "eps": eps, "weight_decay": weight_decay,
        "log_beta1": log(beta1) if beta1 else SMALLEST_LOG, "log_beta2": log(beta2) if beta2 else SMALLEST_LOG,
    }  # fmt: skip
    singles = {"lr": lr, "grad_scale": grad_scale, "found_inf": found_inf}
    arguments = (1 - beta1 < 0.5, bool(weight_decay), decoupled, amsgrad, maximize)
    OptimizerStep("_fused_adamw_" if decoupled else "_fused_adam_", adam_formula, arguments).run(
        lists, singles, numbers
    )


def sgd(
    self: TensorSequence,
    grads: TensorSequence,
    momentum_buffer_list: TensorSequence,
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
    lists = {"param": self, "grad": grads, "buffer": momentum_buffer_list if momentum else None}
    numbers = {"weight_decay": weight_decay, "momentum": momentum, "weight": 1 - dampening}
    singles = {"lr": lr, "grad_scale": grad_scale, "found_inf": found_inf}
    arguments = (bool(weight_decay), bool(momentum), nesterov, maximize, is_first_step)
    OptimizerStep("_fused_sgd_", sgd_formula, arguments).run(lists, singles, numbers)


def adagrad(
    self: TensorSequence,
    grads: TensorSequence,
    state_sums: TensorSequence,
    state_steps: TensorSequence,
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
    lists = {"param": self, "grad": grads, "sum": state_sums, "step": state_steps}
    numbers = {"weight_decay": weight_decay, "eps": eps, "lr_decay": lr_decay}
    singles = {"lr": lr, "grad_scale": grad_scale, "found_inf": found_inf}
    OptimizerStep("_fused_adagrad_", adagrad_formula, (bool(weight_decay), maximize)).run(lists, singles, numbers)


def register() -> None:
    kernels: dict[Any, Callable[..., None]] = {
        aten._fused_adam_: adam,
        aten._fused_adamw_: partial(adam, decoupled=True),
        aten._fused_sgd_: sgd,
        aten._fused_adagrad_: adagrad,
    }
    for packet, kernel in kernels.items():
        for overload in packet.overloads():
            impl(getattr(packet, overload), kernel)
