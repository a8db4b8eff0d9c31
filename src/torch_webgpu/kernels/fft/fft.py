"""Fourier transforms along one dimension: the passes of :mod:`.planner` as dispatches of one template.

Lengths with large primes are Bluestein's: the product with a chirp, convolved with another one, which is a filter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch_webgpu.ir.operation import Operation
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Launch, Lowered

from .pass_kernel import End, PassKernel
from .planner import is_direct
from .transform import OUT, Form, Geometry, Transform, X


def lower_fft(op: Operation, alias: tuple[int, ...], target: Target, transform: Transform) -> Lowered:
    """For a tensor and a new one, which have the same shape but for ``dim``."""
    return Lowering(op, target, transform).lowered()


class Lowering:
    """The launches of a transform, and what they share."""

    def __init__(self, op: Operation, target: Target, transform: Transform) -> None:
        self.transform = transform
        self.geometry = Geometry(op, target, transform)
        self.launches: list[Launch] = []
        self.temporaries: list[int] = []
        self.between: dict[tuple[int, int], int] = {}
        """The temporaries between passes, by their lines: two, in turn."""

    def lowered(self) -> Lowered:
        t, count = self.transform, self.geometry.count
        x = self.end("source", "tensor", X, t.source)
        out = self.end("sink", "tensor", OUT, t.sink)
        if is_direct(t.n):
            self.chain(x, out, count)
        else:
            filter_ = self.temporary(1)
            self.chain(self.end("source", "chirp", X), self.end("sink", "temporary", filter_), 1)
            spectrum = self.temporary(count)
            self.chain(replace(x, chirped=True), self.end("sink", "temporary", spectrum), count)
            self.chain(self.end("source", "product", spectrum), replace(out, chirped=True), count)
        return Lowered(tuple(self.launches), tuple(self.temporaries))

    def temporary(self, lines: int) -> int:
        """The binding of a new temporary for so many lines."""
        self.temporaries.append(lines * self.geometry.length * self.transform.itemsize)
        return 1 + len(self.temporaries)

    def scratch(self, lines: int, turn: int) -> int:
        """The binding of a temporary between passes."""
        if (lines, turn) not in self.between:
            self.between[lines, turn] = self.temporary(lines)
        return self.between[lines, turn]

    def end(self, function: Literal["source", "sink"], kind: str, binding: int, form: Form = "complex") -> End:
        pairs = self.transform.real == "f64" and form != "real"
        halved = self.geometry.halved and function == "source"
        return End(function, kind, binding, form, pairs=pairs, halved=halved)  # type: ignore[arg-type]

    def chain(self, source: End, sink: End, lines: int) -> None:
        """The passes of one transform of each of so many lines, from ``source`` to ``sink``."""
        steps = self.geometry.steps
        for k, fft in enumerate(steps):
            last = k == len(steps) - 1
            to = sink if last else self.end("sink", "temporary", self.scratch(lines, k % 2))
            self.launches.append(PassKernel(self.geometry, fft, source, to, lines).launch())
            source = self.end("source", "temporary", to.binding)
