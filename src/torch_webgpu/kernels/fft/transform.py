"""What a Fourier transform along one dimension is: its lines, its length, what the tensors have of each line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from torch_webgpu.ir.operation import Operation
from torch_webgpu.target import Target

from .lines import Lines
from .planner import Pass, Room, convolution_length, is_direct, passes

Form = Literal["complex", "real", "half"]
X, OUT, FILTER = 0, 1, 2
"""Bindings: the arguments, and the first temporary if there is a filter."""


@dataclass(frozen=True)
class Transform:
    """What is transformed: lines of ``n`` elements along ``dim`` of ``dims``, by ``exp(-2 pi i jk / n)`` or back.

    ``source``, ``sink``: what the tensors have of a line: complex numbers, their real parts, or the half of the
    complex numbers that says the other one. ``real``: the type of a part; pairs of float64 are complex numbers.
    """

    n: int
    dim: int
    dims: int
    inverse: bool = False
    source: Form = "complex"
    sink: Form = "complex"
    scale: float = 1.0
    real: Literal["f32", "f64"] = "f32"

    @property
    def itemsize(self) -> int:
        """Bytes of a complex number."""
        return 8 if self.real == "f32" else 16


class Geometry:
    """What the passes of a transform share: its lines, the length that passes compute, the room of a workgroup."""

    def __init__(self, op: Operation, target: Target, transform: Transform) -> None:
        self.transform = transform
        self.lines = Lines.of(op.args, transform.dim, transform.dims)
        self.count = prod(self.lines.sizes)
        wide = transform.real == "f32" and not target.software
        threads = target.workgroup_threads
        room = Room.of(target.workgroup_bytes, threads, transform.itemsize, wide)
        self.adjacent = self.count > 1 and (self.lines.adjacent(X) or self.lines.adjacent(OUT))
        self.length = transform.n if is_direct(transform.n) else convolution_length(transform.n, room)
        self.room = room.for_length(self.length, self.count, threads)
        self.halved = self.can_halve()
        """Whether lines are real ones, of whose elements two are one complex number."""
        if self.halved:
            self.length //= 2
        self.apart = self.lines.adjacent(X) and self.lines.adjacent(OUT)
        """Whether temporaries have neighbouring lines, rather than neighbouring elements, together."""

    def can_halve(self) -> bool:
        t, half = self.transform, self.transform.n // 2
        real = self.room.wide and (t.source, t.sink, t.inverse) == ("real", "half", False)
        return real and t.n % 2 == 0 and self.length == t.n and len(passes(half, self.room, self.adjacent)) == 1

    @property
    def steps(self) -> Sequence[Pass]:
        return passes(self.length, self.room, self.adjacent)
