"""Recurrent cells: what follows an LSTM's or GRU's two matrix products in each step, and its gradient.

Gates are (B, G * H), states (B, H); the workspace (B, W * H) is float32 and keeps what the gradient needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import PointKernel, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered, Source

COORDINATES = ("row", "unit")


class _Cell:
    """A point kernel over (row, unit) whose arguments go by name, in the order of the operation."""

    def __init__(self, name: str, op: Operation, target: Target, names: Sequence[str]) -> None:
        self.name, self.op = name, op
        self.places = {n: k for k, n in enumerate(names)}
        self.kernel = PointKernel(name, target, COORDINATES)

    def read(self, *names: str) -> None:
        for name in names:
            self.kernel.input(name, self.places[name], self.op.args[self.places[name]])

    def write(self, *names: str) -> None:
        """Contiguous outputs wider than the state, which the body stores itself."""
        for name in names:
            spec = self.op.args[self.places[name]]
            self.kernel.binding(Binding(name, spec.dtype, "read_write"), self.places[name])
            self.kernel.locate(name, self.places[name], spec)

    def bias(self, function: str, *names: str) -> None:
        """``fn function(column) -> f32``: the sum of those of the named vectors that are there."""
        terms = []
        for name in (n for n in names if n in self.places):
            spec = self.op.args[self.places[name]]
            self.kernel.binding(Binding(name, spec.dtype), self.places[name])
            offset = self.kernel.params.add(f"{name}_offset", Source("offset", self.places[name]))
            stride = self.kernel.params.add(f"{name}_stride", spec.strides[0])
            terms.append(f"{name}_load({offset} + column * {stride})")
        self.kernel.add(f"fn {function}(column: u32) -> f32 {{ return {' + '.join(terms) or '0.0'}; }}")

    def gradient(self, name: str) -> None:
        """``fn name(row, unit) -> f32``: a gradient, zero if it is not given."""
        text = "0.0"
        if name in self.places:
            given = f"given_{name}"
            self.kernel.input(given, self.places[name], self.op.args[self.places[name]])
            text = f"{given}_load({given}_at(row, unit))"
        self.kernel.add(f"fn {name}(row: u32, unit: u32) -> f32 {{ return {text}; }}")

    def lowered(self, *outputs: str) -> Lowered:
        for name in outputs:
            self.kernel.output(name, self.places[name], self.op.args[self.places[name]])
        self.kernel.param("units", self.op.args[self.places[outputs[0]]].shape[1])
        return Lowered((self.kernel.launch(wgsl_source(f"recurrent/{self.name}")),))


def lstm_cell(op: Operation, alias: tuple[int, ...], target: Target, *names: str) -> Lowered:
    """``names``: input_gates, hidden_gates, cx, biases input_bias and hidden_bias if any, hy, cy, workspace."""
    cell = _Cell("lstm_cell", op, target, names)
    cell.read("input_gates", "hidden_gates", "cx")
    cell.bias("bias", "input_bias", "hidden_bias")
    cell.write("workspace")
    return cell.lowered("hy", "cy")


def lstm_cell_backward(op: Operation, alias: tuple[int, ...], target: Target, *names: str) -> Lowered:
    """``names``: those of grad_hy and grad_cy that are given, cx, cy, workspace, grad_cx, grad_gates."""
    cell = _Cell("lstm_cell_backward", op, target, names)
    cell.gradient("grad_hy")
    cell.gradient("grad_cy")
    cell.read("cx", "cy", "workspace")
    cell.write("grad_gates")
    return cell.lowered("grad_cx")


def gru_cell(op: Operation, alias: tuple[int, ...], target: Target, *names: str) -> Lowered:
    """``names``: input_gates, hidden_gates, hx, biases input_bias and hidden_bias if any, hy, workspace."""
    cell = _Cell("gru_cell", op, target, names)
    cell.read("input_gates", "hidden_gates", "hx")
    cell.bias("input_bias", "b_input")
    cell.bias("hidden_bias", "b_hidden")
    cell.write("workspace")
    return cell.lowered("hy")


def gru_cell_backward(op: Operation, alias: tuple[int, ...], target: Target, *names: str) -> Lowered:
    """``names``: grad_hy, workspace, grad_hx, grad_input_gates, grad_hidden_gates."""
    cell = _Cell("gru_cell_backward", op, target, names)
    cell.read("grad_hy", "workspace")
    cell.write("grad_input_gates", "grad_hidden_gates")
    return cell.lowered("grad_hx")
