"""Recurrent cells: what follows an LSTM's, GRU's or RNN's two matrix products in each step, and its gradient.

Gates are (B, G * H), states (B, H); the workspace (B, W * H) is float32 and keeps what the gradient needs. Tensors may
be of any strides, and of other dtypes than each other: a layer's steps keep in float32 what only they read
(:mod:`torch_webgpu.aten.nn.rnn_steps`). Without a workspace nothing is kept, for calls without gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import PointKernel, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered, Source

COORDINATES = ("row", "unit")
DENSE = ("unit",)
"""Along these contiguous tensors need no stride as a parameter."""
ACTIVATIONS = {
    "tanh": ("tanh_f(x)", "1.0 - y * y"),
    "relu": ("select(x, 0.0, x < 0.0)", "select(1.0, 0.0, y <= 0.0)"),
}
"""Of an RNN: the activation of ``x``, and its derivative where its result is ``y``."""


class _Cell:
    """A point kernel over (row, unit) whose arguments go by name, in the order of the operation."""

    def __init__(self, name: str, op: Operation, target: Target, names: Sequence[str]) -> None:
        self.name, self.op = name, op
        self.places = {n: k for k, n in enumerate(names)}
        self.kernel = PointKernel(name, target, COORDINATES)

    def read(self, *names: str) -> None:
        for name in names:
            self.kernel.input(name, self.places[name], self.op.args[self.places[name]], DENSE)

    def write(self, *names: str) -> None:
        """Outputs wider than the state, whose rows are contiguous and which the body stores itself."""
        for name in names:
            spec = self.op.args[self.places[name]]
            self.kernel.binding(Binding(name, spec.dtype, "read_write"), self.places[name])
            self.kernel.locate(name, self.places[name], spec, DENSE)

    def keep(self, function: str, is_kept: bool) -> None:
        """``fn function(row, column, value)`` stores into the workspace, or does nothing."""
        store = "workspace_store(workspace_at(row, column), value);" if is_kept else ""
        self.kernel.add(f"fn {function}(row: u32, column: u32, value: f32) {{ {store} }}")

    def bias(self, function: str, *names: str) -> None:
        """``fn function(column) -> f32``: the sum of those of the named vectors that are there."""
        terms = []
        for name in (n for n in names if n in self.places):
            spec = self.op.args[self.places[name]]
            self.kernel.binding(Binding(name, spec.dtype), self.places[name])
            offset = self.kernel.params.add(f"{name}_offset", Source("offset", self.places[name]))
            step = "" if spec.strides[0] == 1 else f" * {self.kernel.params.add(f'{name}_stride', spec.strides[0])}"
            terms.append(f"{name}_load({offset} + column{step})")
        self.kernel.add(f"fn {function}(column: u32) -> f32 {{ return {' + '.join(terms) or '0.0'}; }}")

    def gradient(self, name: str) -> None:
        """``fn name(row, unit) -> f32``: a gradient, zero if it is not given."""
        text = "0.0"
        if name in self.places:
            given = f"given_{name}"
            self.kernel.input(given, self.places[name], self.op.args[self.places[name]], DENSE)
            text = f"{given}_load({given}_at(row, unit))"
        self.kernel.add(f"fn {name}(row: u32, unit: u32) -> f32 {{ return {text}; }}")

    def width(self, name: str) -> int:
        """How many columns an argument has."""
        return self.op.args[self.places[name]].shape[1]

    def lowered(self, *outputs: str) -> Lowered:
        for name in outputs:
            self.kernel.output(name, self.places[name], self.op.args[self.places[name]])
        # Which the kernel has already: with few parameters they fit into the immediates of any adapter.
        self.kernel.add("fn units() -> u32 { return P.walk_unit; }")
        return Lowered((self.kernel.launch(wgsl_source(f"recurrent/{self.name}")),))


def lstm_cell(op: Operation, alias: tuple[int, ...], target: Target, *names: str) -> Lowered:
    """``names``: input_gates, hidden_gates, cx, biases input_bias and hidden_bias if any, hy, cy, workspace if any.

    A workspace of 5 * H columns keeps the new cell, too.
    """
    cell = _Cell("lstm_cell", op, target, names)
    cell.read("input_gates", "hidden_gates", "cx")
    cell.bias("bias", "input_bias", "hidden_bias")
    is_kept = "workspace" in names
    if is_kept:
        cell.write("workspace")
    cell.keep("keep", is_kept)
    cell.keep("keep_cell", is_kept and cell.width("workspace") == 5 * cell.width("hy"))
    return cell.lowered("hy", "cy")


def lstm_cell_backward(op: Operation, alias: tuple[int, ...], target: Target, *names: str) -> Lowered:
    """``names``: those of grad_hy, grad_out (gradients of the same) and grad_cy that are given, cx, cy unless the
    workspace has it, workspace, grad_cx, grad_gates.
    """
    cell = _Cell("lstm_cell_backward", op, target, names)
    for name in ("grad_hy", "grad_out", "grad_cy"):
        cell.gradient(name)
    cell.read("cx", "workspace")
    place = "workspace_load(workspace_at(row, 4u * units() + unit))"
    if "cy" in names:
        cell.read("cy")
        place = "cy_load(cy_at(row, unit))"
    cell.kernel.add(f"fn new_cell(row: u32, unit: u32) -> f32 {{ return {place}; }}")
    cell.write("grad_gates")
    return cell.lowered("grad_cx")


def gru_cell(op: Operation, alias: tuple[int, ...], target: Target, *names: str) -> Lowered:
    """``names``: input_gates, hidden_gates, hx, biases input_bias and hidden_bias if any, hy, next if there are to be
    two of these, workspace if any.
    """
    cell = _Cell("gru_cell", op, target, names)
    cell.read("input_gates", "hidden_gates", "hx")
    cell.bias("input_bias", "b_input")
    cell.bias("hidden_bias", "b_hidden")
    if "workspace" in names:
        cell.write("workspace")
    cell.keep("keep", "workspace" in names)
    outputs = [name for name in ("hy", "next") if name in names]
    cell.kernel.add(f"fn state(h: f32) -> Values {{ return Values({', '.join('h' for _ in outputs)}); }}")
    return cell.lowered(*outputs)


def gru_cell_backward(op: Operation, alias: tuple[int, ...], target: Target, *names: str) -> Lowered:
    """``names``: those of grad_hy, grad_out and grad_next (gradients of the same) that are given, workspace, grad_hx,
    grad_input_gates, grad_hidden_gates.
    """
    cell = _Cell("gru_cell_backward", op, target, names)
    for name in ("grad_hy", "grad_out", "grad_next"):
        cell.gradient(name)
    cell.read("workspace")
    cell.write("grad_input_gates", "grad_hidden_gates")
    return cell.lowered("grad_hx")


def rnn_cell(op: Operation, alias: tuple[int, ...], target: Target, activation: str, *names: str) -> Lowered:
    """``names``: input_gates, hidden_gates, biases input_bias and hidden_bias if any, hy."""
    cell = _Cell("rnn_cell", op, target, names)
    cell.read("input_gates", "hidden_gates")
    cell.bias("bias", "input_bias", "hidden_bias")
    cell.kernel.add(f"fn activation(x: f32) -> f32 {{ return {ACTIVATIONS[activation][0]}; }}")
    return cell.lowered("hy")


def rnn_cell_backward(op: Operation, alias: tuple[int, ...], target: Target, activation: str, *names: str) -> Lowered:
    """``names``: those of grad_hy and grad_out (gradients of the same) that are given, hy, grad_gates."""
    cell = _Cell("rnn_cell_backward", op, target, names)
    for name in ("grad_hy", "grad_out"):
        cell.gradient(name)
    cell.read("hy")
    cell.kernel.add(f"fn slope(y: f32) -> f32 {{ return {ACTIVATIONS[activation][1]}; }}")
    return cell.lowered("grad_gates")
