"""Recurrent cells: PyTorch's operators for one step, of which it composes LSTM and GRU layers and cells.

Most layers do without these: see :mod:`.rnn_layers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import Maybe, name_of
from torch_webgpu.aten.dispatch.torch_abi import aten
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.recurrent import rnn


def record(
    name: str,
    lower: Callable[..., Any],
    inputs: dict[str, Maybe],
    outputs: dict[str, torch.Tensor],
    *arguments: str,
) -> None:
    """Records a cell kernel over named tensors; absent inputs are left out. ``arguments``: what it is told before the
    names.
    """
    given = {key: t for key, t in inputs.items() if t is not None}
    if next(iter(outputs.values())).numel():
        body = Extern(lower, (*arguments, *given, *outputs))
        record_kernel(f"aten.{name}", list(given.values()), list(outputs.values()), body)


def new(like: torch.Tensor, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return engine().empty(shape, dtype or like.dtype, like.device.index)


def check_dtype(name: str, t: torch.Tensor) -> None:
    if t.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise NotImplementedError(f"\"{name}\" not implemented for '{name_of(t.dtype)}'")


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(hy, cy, workspace) from gates (B, 4H) and the old cell (B, H)."""
    check_dtype("_thnn_fused_lstm_cell", input_gates)
    rows, units = cx.shape
    hy, cy = new(cx, rows, units), new(cx, rows, units)
    workspace = new(cx, rows, 4 * units, dtype=torch.float32)
    gates = {"input_gates": input_gates, "hidden_gates": hidden_gates, "cx": cx}
    inputs = {**gates, "input_bias": input_bias, "hidden_bias": hidden_bias}
    record("lstm_cell", rnn.lstm_cell, inputs, {"hy": hy, "cy": cy, "workspace": workspace})
    return hy, cy, workspace


def lstm_cell_backward(
    grad_hy: Maybe, grad_cy: Maybe, cx: torch.Tensor, cy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[Maybe, Maybe, Maybe]:
    """Gradients of gates, old cell and bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    rows, units = cx.shape
    grad_gates, grad_cx = new(cx, rows, 4 * units), new(cx, rows, units)
    inputs = {"grad_hy": grad_hy, "grad_cy": grad_cy, "cx": cx, "cy": cy, "workspace": workspace}
    record("lstm_cell_backward", rnn.lstm_cell_backward, inputs, {"grad_cx": grad_cx, "grad_gates": grad_gates})
    return grad_gates, grad_cx, grad_gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(hy, workspace) from gates (B, 3H) and the old state (B, H)."""
    check_dtype("_thnn_fused_gru_cell", input_gates)
    rows, units = hx.shape
    hy, workspace = new(hx, rows, units), new(hx, rows, 5 * units, dtype=torch.float32)
    gates = {"input_gates": input_gates, "hidden_gates": hidden_gates, "hx": hx}
    inputs = {**gates, "b_input": input_bias, "b_hidden": hidden_bias}
    record("gru_cell", rnn.gru_cell, inputs, {"hy": hy, "workspace": workspace})
    return hy, workspace


def gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Maybe, Maybe]:
    """Gradients of input gates, hidden gates, old state and both biases."""
    rows, units = grad_hy.shape
    grad_input, grad_hidden = new(grad_hy, rows, 3 * units), new(grad_hy, rows, 3 * units)
    grad_hx = new(grad_hy, rows, units)
    outputs = {"grad_hx": grad_hx, "grad_input_gates": grad_input, "grad_hidden_gates": grad_hidden}
    record("gru_cell_backward", rnn.gru_cell_backward, {"grad_hy": grad_hy, "workspace": workspace}, outputs)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hx, *biases


def register() -> None:
    register_operator(aten._thnn_fused_lstm_cell.default, lstm_cell)
    register_operator(aten._thnn_fused_lstm_cell_backward_impl.default, lstm_cell_backward)
    register_operator(aten._thnn_fused_gru_cell.default, gru_cell)
    register_operator(aten._thnn_fused_gru_cell_backward.default, gru_cell_backward)
