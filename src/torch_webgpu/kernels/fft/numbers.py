"""How kernels of Fourier transforms get their numbers: scales, roots of unity, the weights of butterflies."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin
from typing import Literal

from torch_webgpu.kernels.points import Draft


@dataclass(frozen=True)
class Numbers:
    """How a kernel gets its numbers: float32 as parameters, so that lengths share it; float64 as constants."""

    real: Literal["f32", "f64"]
    draft: Draft

    def constant(self, value: float) -> str:
        return f"{value!r}lf" if self.real == "f64" else f"{rounded(value)!r}f"

    def param(self, name: str, value: float) -> str:
        if self.real == "f64":
            return f"({self.constant(value)})"
        self.draft.param(name, rounded(value), "f32")
        return f"P.{name}"

    def root_of(self, n: int, k: str) -> str:
        """WGSL of the root ``exp(-2 pi i k / n)`` for a length that the kernel is made for."""
        angle, rest = self.split(n)
        values = f"{rounded(4 / n)!r}f, {self.constant(angle)}, {self.constant(rest)}"
        return f"root_of_unity_{self.real_letter}({k}, {n}u, {values})"

    def root_param(self, name: str, n: int, k: str) -> str:
        """The same for a length that is a parameter."""
        angle, rest = self.split(n)
        self.draft.param(f"{name}_n", n)
        self.draft.param(f"{name}_quarters", rounded(4 / n), "f32")
        values = f"{self.param(f'{name}_angle', angle)}, {self.param(f'{name}_rest', rest)}"
        return f"root_of_unity_{self.real_letter}({k}, P.{name}_n, P.{name}_quarters, {values})"

    @property
    def real_letter(self) -> str:
        return "d" if self.real == "f64" else "f"

    def split(self, n: int) -> tuple[float, float]:
        """``pi / (2 n)`` as a number of the type and what is missing."""
        angle = pi / (2 * n)
        return (angle, 6.123233995736766e-17 / n) if self.real == "f64" else (rounded(angle), angle - rounded(angle))

    def weighted(self, name: str, weights: Sequence[float]) -> str:
        return " + ".join(f"{self.constant(w)} * {name}{k + 1}" for k, w in enumerate(weights))


def rounded(value: float) -> float:
    """To float32."""
    return struct.unpack("f", struct.pack("f", value))[0]


def cosines(n: int, k: int) -> list[float]:
    return [cos(2 * pi * (j * k % n) / n) for j in range(1, (n + 1) // 2)]


def sines(n: int, k: int) -> list[float]:
    return [sin(2 * pi * (j * k % n) / n) for j in range(1, (n + 1) // 2)]
