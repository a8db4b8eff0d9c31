"""Blocked products for software adapters: every invocation loads what it multiplies from storage, without barriers.

A CPU runs a workgroup as SIMD lanes, one vector of invocations after the other: its workgroup memory is memory like any
other, and a barrier splits the kernel into coroutines. So each invocation brings its ``tm`` rows of a and ``tn``
columns of b to registers by itself. A load is one for each lane, and costs more than many multiplications.

The eight invocations of a workgroup have the same rows of a. Where there are subgroups, four lanes load a position of
the sum each, and broadcast it. Subgroups have four threads at least, and all that a workgroup has are of the same rows:
it does not matter which are together.

What is asked of operands and of ``finish`` is as in :mod:`.register_tile`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_webgpu.kernels.template import render

from .operand import Side
from .register_tile import BlockOperand, Turns
from .tile import Tile, lanes_of

FEW_TURNS = 4
"""Vectors of sums up to which each is stored by a text of its own: longer ones take long to compile."""


@dataclass(frozen=True)
class _Direct(BlockOperand):
    """What an invocation multiplies, from where it lies."""

    @property
    def along(self) -> bool:
        """Whether four positions of a row are loaded at once."""
        return self.side.runs and self.side.k_major

    @property
    def across(self) -> bool:
        """Whether four rows are loaded at once, at one position."""
        return self.side.runs and not self.side.k_major

    @property
    def parts(self) -> int:
        return self.share // 4

    @property
    def at_once(self) -> int:
        """Rows that are loaded at once."""
        return 4 if self.across else 1

    def first_row(self, part: int, e: int) -> str:
        """Row ``e`` of a thread's quad ``part``, or the last from which as many can be loaded."""
        return f"min({self.row(self.quad(part), e)}, P.{self.extent} - {self.at_once}u)"

    def loaded(self, part: int, kk: int) -> str:
        """The four rows of a quad at position ``kk`` of the step."""
        x = self.x
        if self.along:
            lines = [f"{x}{kk // 4}_{part}_{e}.{'xyzw'[kk % 4]}" for e in range(4)]
            return f"vec4<f32>({', '.join(lines)})"
        return self.quad_loaded(part, f"{x}_step{kk}", f"{kk}u")

    def quad_loaded(self, part: int, step: str, away: str) -> str:
        """The four rows of a quad at the position that is ``away`` from the step's first."""
        x = self.x
        if self.across:
            value = f"{x}_run({x}_row{part}_0, {step})"
        else:
            value = f"vec4<f32>({', '.join(f'{x}_value({x}_row{part}_{e}, {step})' for e in range(4))})"
        return f"select(vec4<f32>(), {value}, k + {away} < k_end)" if self.tail else value

    @property
    def shared_step(self) -> str:
        """The position that this lane loads of each row, for itself and the other three."""
        return self.inside("(k + lane % 4u)")

    def shared(self, part: int) -> str:
        """The four rows of a quad at that position."""
        return self.quad_loaded(part, f"{self.x}_step", "lane % 4u")

    def run_loaded(self, part: int, e: int, four: int) -> str:
        """Four positions of row ``e`` of a quad."""
        value = f"{self.x}_run({self.x}_row{part}_{e}, {self.x}_step{four})"
        return f"select(vec4<f32>(), {value}, k + {4 * four}u < k_end)" if self.tail else value

    def step(self, first: int) -> str:
        """The position of the sum that is number ``first`` of a step."""
        return self.inside(f"(k + {first}u)", 4 if self.along else 1)


def direct_text(tile: Tile, a_side: Side, b_side: Side, tail: bool, together: int, heavy: bool, shared: bool) -> str:
    """The ``main`` of the product. ``tail``, ``together``: see :func:`.register_tile.block_text`. ``heavy``:
    ``finish`` is long, and had better be there but once. ``shared``: a is loaded once for all lanes.
    """

    def operand(side: Side, together: int) -> _Direct:
        size, share = {"a": (tile.m, tile.tm), "b": (tile.n, tile.tn)}[side.x]
        plain = _Direct(side, size, share, tile, together, tail)
        return replace(plain, together=4) if plain.across else plain

    a, b = operand(a_side, 1), operand(b_side, together)
    turns = Turns(tile, a, b)
    text = render(
        "matmul/direct_tile",
        tile=tile,
        a=a,
        b=b,
        together=together,
        lanes_of=lanes_of,
        turns=turns,
        shared=shared,
        in_turn=heavy or turns.count > FEW_TURNS,
    )
    return f"{text}\n"
