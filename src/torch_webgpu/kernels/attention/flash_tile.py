"""Blocks of attention's scores in registers: their sizes, and the operands of their products.

A workgroup keeps a block of ``rows`` x ``columns`` scores in registers: each thread ``share`` rows of four columns, as
vectors ``<name>_<i>``. ``flash_tile.wgsl.jinja`` makes two kinds of products of such blocks:

* ``product`` multiplies two operands whose lines are the block's rows and columns, along their width;
* ``accumulate`` multiplies the block, which ``put`` brought to workgroup memory, with an operand whose lines are
  the block's columns, and adds to sums ``<name>_<i>_<j>``: of a thread's row i the four numbers of unit
  ``tx + j * across``.

Operands travel in vectors of four numbers (*units*) of a line; the next step's travel to registers while this one's
are multiplied. In workgroup memory four lines are followed by a vector that nobody uses, so that neighbouring threads,
which read every fourth line, read different banks. A body declares for operand ``x`` the functions

* ``x_line(b: u32, head: u32, line: u32) -> u32``, where a line starts, and
* ``x_four(line: u32, i: u32) -> vec4<f32>``, unit ``i`` of it, in which numbers beyond its end are zeros,

which are asked for lines and units that exist.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FlashTile:
    """``share``: a multiple of 4; ``step``: numbers of a line, or lines of a weighted operand, that are in workgroup
    memory at once.
    """

    rows: int
    columns: int
    share: int
    step: int = 16

    @property
    def across(self) -> int:
        """Threads that share a row."""
        return self.columns // 4

    @property
    def threads(self) -> int:
        return self.rows // self.share * self.across

    @property
    def quads(self) -> int:
        """Fours of rows."""
        return self.rows // 4

    @property
    def thread_quads(self) -> int:
        """Fours of rows of a thread."""
        return self.share // 4

    @property
    def units(self) -> int:
        """Of a line, in a step."""
        return self.step // 4

    @property
    def block_vectors(self) -> int:
        """Of a block in workgroup memory: the columns, each as fours of rows."""
        return self.columns * self.quads + self.columns // 4

    def sums(self, units: int) -> int:
        """How many units of a line of so many a thread adds up."""
        return -(-units // self.across)

    def stage_vectors(self, most_units: int) -> int:
        """Of a step's operands, where lines that are weighted have up to ``most_units``."""
        lines = self.rows + self.columns
        return max(lines * self.units + lines // 4, self.step * self.sums(most_units) * self.across)

    def workgroup_bytes(self, most_units: int) -> int:
        """With two numbers for each row."""
        return 16 * (self.stage_vectors(most_units) + self.block_vectors) + 8 * self.rows


@dataclass(frozen=True)
class Lines:
    """Lines ``first`` and following of operand ``name``, of ``units``; there are ``count``, of head ``head``."""

    name: str
    head: str
    first: str
    count: str
    units: int
