"""Products of matrix fragments that a subgroup computes at once ("tensor cores"): what an adapter offers."""

from __future__ import annotations

from typing import NamedTuple


class MatrixConfig(NamedTuple):
    """An ``m`` × ``k`` fragment of ``operand`` numbers times a ``k`` × ``n`` one, added to one of ``result`` numbers.

    Both are f16, f32, i8, u8, i32 or u32. A subgroup of ``subgroup_size`` threads does it together.
    """

    operand: str
    result: str
    m: int
    n: int
    k: int
    subgroup_size: int
