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

    def root_of(self, n: int, k: str, twice: bool = False) -> str:
        """WGSL of the root ``exp(-2 pi i k / n)`` for a length that the kernel is made for. ``twice``: and, in float32,
        of what rounding lost of it.
        """
        angle, rest = self.split(n)
        values = f"{rounded(4 / n)!r}f, {self.constant(angle)}, {self.constant(rest)}"
        return f"root_of_unity_{'twice_' * twice}{self.real_letter}({k}, {n}u, {values})"

    def root_param(self, name: str, n: int, k: str, twice: bool = False) -> str:
        """The same for a length that is a parameter."""
        angle, rest = self.split(n)
        self.draft.param(f"{name}_n", n)
        self.draft.param(f"{name}_quarters", rounded(4 / n), "f32")
        values = f"{self.param(f'{name}_angle', angle)}, {self.param(f'{name}_rest', rest)}"
        function = f"root_of_unity_{'twice_' * twice}{self.real_letter}"
        return f"{function}({k}, P.{name}_n, P.{name}_quarters, {values})"

    def root_less_one(self, n: int, k: str) -> str:
        """WGSL of a root of a length that the kernel is made for, less 1, in float32: ``8 k <= n``."""
        angle, rest = self.split(n / 4)
        return f"root_of_unity_less_one_f({k}, {self.constant(angle)}, {self.constant(rest)})"

    def root_less_one_param(self, name: str, n: int, k: str) -> str:
        """The same for a length that is a parameter."""
        angle, rest = self.split(n)
        angles = f"4 * {self.param(f'{name}_angle', angle)}, 4 * {self.param(f'{name}_rest', rest)}"
        return f"root_of_unity_less_one_f({k}, {angles})"

    def turned(self, v: str, n: int, k: int) -> str:
        """WGSL of the complex number ``v`` times ``exp(-2 pi i k / n)``."""
        k %= n
        if 8 * k % n == 0:
            turns = v, "", f"C({v}.y, -{v}.x)", "", f"-{v}", "", f"C(-{v}.y, {v}.x)", ""
            sums = (f"{v}.x + {v}.y", f"{v}.y - {v}.x"), (f"{v}.y - {v}.x", f"-{v}.x - {v}.y")
            eighth = 8 * k // n
            if eighth % 2 == 0:
                return turns[eighth]
            sign = "-" if eighth > 4 else ""
            return f"{sign}{self.constant(0.5**0.5)} * C({', '.join(sums[eighth // 2 % 2])})"
        angle = -2 * pi * k / n
        return f"times({v}, C({self.constant(cos(angle))}, {self.constant(sin(angle))}))"

    @property
    def real_letter(self) -> str:
        return "d" if self.real == "f64" else "f"

    def split(self, n: float) -> tuple[float, float]:
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
