"""The operands of the product that a convolution is: elements that are linear in rows and positions, and windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.matmul.operand import Run, Side, Strided, in_groups, reader
from torch_webgpu.kernels.points import Draft, wgsl_source
from torch_webgpu.layout import is_dense

from .conv_problem import Conv

POSITIONS = (2, 3, 4)
"""The dimensions of a tensor that are positions, or taps."""


@dataclass(frozen=True)
class ConvOperand(ABC):
    """One of a convolution's two tensors as :class:`..matmul.operand.Operand`."""

    c: Conv

    @property
    @abstractmethod
    def x(self) -> str: ...

    @property
    @abstractmethod
    def name(self) -> str:
        """The tensor's."""

    @abstractmethod
    def side(self, run: int) -> Side: ...

    @abstractmethod
    def reader(self, side: Side, run: Run) -> str:
        """``<x>_run`` or ``<x>_value``."""

    @property
    def spec(self) -> Spec:
        return self.c.specs[self.name]

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def element_bytes(self) -> float:
        return BY_NAME[self.dtype].itemsize

    @property
    def scale(self) -> None:
        return None

    @property
    def tensor(self) -> Strided | None:
        """A dense tensor as one line of numbers."""
        spec = self.spec
        if not is_dense(spec.shape, spec.strides):
            return None
        numel = prod(spec.shape)
        shape, strides = {"a": ((1, 1, numel), (0, 0, 1)), "b": ((1, numel, 1), (0, 1, 0))}[self.x]
        return Strided(self.x, self.c.args[self.name], Spec(spec.dtype, shape, strides, spec.aligned))

    def bind(self, kernel: Draft) -> None:
        kernel.input(self.name, self.c.args[self.name], self.spec)

    def load(self, side: Side, run: Run) -> list[str]:
        return [wgsl_source(f"conv/conv_{self.c.mode}"), *roles(self.c), self.reader(side, run)]


class Linear(ConvOperand):
    """The operand whose elements are linear in rows and positions."""

    @property
    def x(self) -> str:
        return "b" if self.c.flipped else "a"

    @property
    def name(self) -> str:
        return self.c.linear

    def side(self, run: int) -> Side:
        c, spec = self.c, self.spec
        if c.mode == "forward":
            order = (*POSITIONS, 1) if c.taps_outside else (1, *POSITIONS)
            return Side(self.x, True, in_groups(merged(spec, order), 1, run))
        if c.mode == "adjoint":
            rows = in_groups(spec, 1, run)
            return Side(self.x, not rows, rows)
        if c.channels_last("y"):
            return Side(self.x, False, in_groups(spec, 1, run) and c.rows % run == 0)
        return Side(self.x, True, in_groups(merged(spec, POSITIONS), 2, run))

    def reader(self, side: Side, run: Run) -> str:
        return reader(side, self.name, run)


class Window(ConvOperand):
    """The operand that is read through windows: what is outside is zero."""

    @property
    def x(self) -> str:
        return "a" if self.c.flipped else "b"

    @property
    def name(self) -> str:
        return self.c.window

    def side(self, run: int) -> Side:
        c, spec = self.c, self.spec
        if c.taps_outside:  # neighbours are channels that meet the same tap
            runs = in_groups(spec, 1, run) and c.depth % run == 0
        else:  # neighbours are positions of an image
            runs = c.pointwise and in_groups(merged(spec, POSITIONS), 2, run)
        return Side(self.x, c.taps_outside != (c.mode == "weight"), runs)

    def reader(self, side: Side, run: Run) -> str:
        x, name = self.x, self.name
        if not side.runs:
            return f"fn {x}_value(row: Window, step: Window) -> T {{ return {name}_value(row, step); }}"
        return f"""fn {x}_run(row: Window, step: Window) -> {run.type} {{
  let found = {name}_element(row, step);
  if (!found.inside) {{ return {run.type}(); }}
  return {run.loaded(name, "found.number")};
}}"""


def roles(c: Conv) -> list[str]:
    """What is fixed for a row and for a position of a and b, by what they are."""
    text = []
    for role, x in (("linear", "b" if c.flipped else "a"), ("window", "a" if c.flipped else "b")):
        type_, name = {"linear": "u32", "window": "Window"}[role], x.upper()
        text += [f"alias {name}Row = {type_};", f"alias {name}Step = {type_};"]
        text.append(f"fn {x}_row(slice: u32, at: u32) -> {name}Row {{ return {role}_row(slice, at); }}")
        text.append(f"fn {x}_step(slice: u32, k: u32) -> {name}Step {{ return {role}_step(slice, k); }}")
    return text


def merged(spec: Spec, dims: Sequence[int]) -> Spec:
    """``spec`` with the dimensions ``dims``, in this order, as one at its end, which is still (stride 0) if there is no
    stride for it.
    """
    others = [d for d in range(len(spec.shape)) if d not in dims]
    stride = expected = 1
    for d in reversed(dims):
        if spec.shape[d] != 1 and spec.strides[d] != expected:
            stride = 0
        expected *= spec.shape[d]
    shape = (*(spec.shape[d] for d in others), expected)
    return spec._replace(shape=shape, strides=(*(spec.strides[d] for d in others), stride))
