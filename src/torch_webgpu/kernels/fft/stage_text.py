"""The stages of a pass as its template writes them: which thread does what, where its elements lie in the tile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from .numbers import Numbers
from .planner import ADJACENT, Pass, Room, Stage, is_power_of_two, result_place

BANKS = 16
"""Numbers of 8 bytes that a GPU's workgroup memory moves at once, from different banks."""


@dataclass(frozen=True)
class Tile:
    """Workgroup memory for ``columns`` of a pass, ``stride`` from one to the next.

    ``pad``: one element is left out after so many, 0 for none: butterflies whose results are neighbours would put those
    of neighbouring threads into one bank.
    """

    columns: int
    stride: int
    pad: int = 0

    @classmethod
    def of(cls, fft: Pass, columns: int, room: Room, along: tuple[bool, bool]) -> Tile:
        """``along``: whether neighbouring threads read, and write, elements of one column."""
        plain = cls(columns, fft.radix)
        first = fft.stages[0].radix
        if not room.wide:
            return plain
        pad = BANKS if is_power_of_two(fft.radix) and fft.radix > BANKS else first if first % 2 == 0 else 0
        stride = fft.radix + (fft.radix // pad if pad else 0)
        if not all(along):
            stride += (BANKS // min(columns, BANKS) - stride) % BANKS
        return cls(columns, stride, pad) if columns * stride <= room.tile else plain

    @property
    def size(self) -> int:
        return self.columns * self.stride

    def padded(self, place: str, below: int) -> str:
        """WGSL of where element ``place`` of a column lies, which is ``below`` a number."""
        return f"{place} + {place} / {self.pad}u" if self.pad and below > self.pad else place

    def padded_number(self, place: int) -> int:
        return place + place // self.pad if self.pad else place


@dataclass(frozen=True)
class Rounds(ABC):
    """What a workgroup does with the columns of its tile, ``per`` times each, in ``rounds`` of one a thread.

    ``along``: neighbouring threads take neighbours of one column; otherwise neighbouring columns.
    """

    fft: Pass
    tile: Tile
    threads: int
    along: bool

    @property
    @abstractmethod
    def per(self) -> int: ...

    @property
    def count(self) -> int:
        return self.tile.columns * self.per

    @property
    def rounds(self) -> int:
        return -(-self.count // self.threads)

    @property
    def column(self) -> str:
        return f"/ {self.per}u" if self.along else f"% {self.tile.columns}u"

    @property
    def place(self) -> str:
        return f"% {self.per}u" if self.along else f"/ {self.tile.columns}u"


@dataclass(frozen=True)
class StageText(Rounds):
    """A stage as the template writes it: the butterflies of a workgroup.

    ``reads``, ``writes``: memory rather than the tile. ``wide``: most roots are products of two.
    """

    stage: Stage
    reads: bool
    writes: bool
    wide: bool
    numbers: Numbers

    @property
    def radix(self) -> int:
        return self.stage.radix

    @property
    def before(self) -> int:
        return self.stage.before

    @property
    def per(self) -> int:
        """Butterflies of a column."""
        return self.fft.radix // self.radix

    @property
    def even(self) -> bool:
        """Whether every thread has a butterfly in every round."""
        return self.count == self.rounds * self.threads

    def at(self, u: int) -> str:
        """WGSL of the butterfly that a thread does in a round."""
        at = f"lid + {u * self.threads}u" if u else "lid"
        return at if self.even else f"min({at}, {self.count - 1}u)"

    def names(self, u: int) -> list[str]:
        return [f"v{u}_{i}" for i in range(self.radix)]

    def result(self, u: int, k: int) -> str:
        return f"v{u}_{result_place(self.radix, k)}"

    # The tile

    def taken_from(self, u: int) -> str:
        """WGSL of the place in the tile of a butterfly's first element."""
        return f"c{u} * {self.tile.stride}u + {self.tile.padded(f'j{u}', self.per)}"

    def taken(self, u: int, i: int) -> str:
        """WGSL of the place of element ``i``."""
        offset = self.per * i
        if self.tile.pad and offset % self.tile.pad and self.tile.pad % self.per:
            place = f"(j{u} + {offset}u)"
            return f"c{u} * {self.tile.stride}u + {self.tile.padded(place, self.fft.radix)}"
        return f"from{u} + {self.tile.padded_number(offset)}u"

    def left_from(self, u: int) -> str:
        """WGSL of the place of a butterfly's first result."""
        tile, before = self.tile, self.before
        column = f"c{u} * {tile.stride}u"
        span = before * self.radix
        if before == 1 or self.radix == 1:
            place = f"j{u} * {span}u" if span > 1 else f"j{u}"
        else:
            place = f"j{u} / {before}u * {span}u + j{u} % {before}u"
        if tile.pad and span % tile.pad == 0:
            place = place.replace(f"{span}u", f"{tile.padded_number(span)}u")
            if before <= tile.pad:
                return f"{column} + {place}"
            return f"{column} + {place} + j{u} % {before}u / {tile.pad}u"
        return f"{column} + {tile.padded(f'({place})', self.fft.radix)}"

    def left(self, k: int) -> int:
        """How far result ``k`` is from the first one."""
        return self.tile.padded_number(self.before * k)

    # Roots of unity

    @property
    def twiddles(self) -> bool:
        return self.before > 1 and self.radix > 1

    @property
    def common(self) -> bool:
        """Whether a thread's roots are those of its first round."""
        step = self.threads if self.along else self.threads // self.tile.columns
        whole = self.along or self.threads % self.tile.columns == 0
        return self.wide and whole and step % self.before == 0 and self.per % self.before == 0

    @property
    def twice(self) -> bool:
        """Whether some roots are products, of which rounding should take nothing."""
        return self.radix >= 8

    def root(self, u: int, i: int) -> str:
        """WGSL of what element ``i`` is multiplied by."""
        if self.wide:
            return f"w{0 if self.common else u}_{i}.xy"
        return self.numbers.root_of(self.before * self.radix, f"k{u} * {i}u")

    def roots(self, u: int) -> Iterator[str]:
        """Statements that compute a round's roots, from few that are computed by themselves."""
        if not self.wide or (u and self.common):
            return
        n, near = self.before * self.radix, self.radix // 8
        for i in range(1, near + 1):
            yield f"let e{u}_{i} = {self.numbers.root_less_one(n, f'k{u} * {i}u')};"
        for i in sorted(range(1, self.radix), key=lambda i: (anchor(self.radix, i) != i, i)):
            first = anchor(self.radix, i)
            if first == i:
                yield f"let w{u}_{i} = {self.numbers.root_of(n, f'k{u} * {i}u', self.twice)};"
            else:
                yield f"let w{u}_{i} = {moved(f'w{u}_{first}' if first else '', f'e{u}_', i - first)};"

    # Roots between passes

    @property
    def turns(self) -> bool:
        return self.wide and self.reads and self.fft.before > 1

    def turn(self, i: int) -> str:
        """WGSL of what element ``i`` is multiplied by."""
        first = anchor(self.radix, i)
        return moved(f"a{first}", "e", i - first)


def anchor(radix: int, i: int) -> int:
    """Of which root of unity the root for element ``i`` of a butterfly is a product, with one near 1: its own, or that
    of an element so close that the turn between them is at most an eighth.
    """
    width = 2 * (radix // 8) + 1
    first = (i + width // 2) // width * width
    return first if first < radix else i


def moved(root: str, e: str, steps: int) -> str:
    """WGSL of a root times that of so many elements on; "" is 1. Names that begin with ``e`` are these, less 1."""
    if not steps:
        return f"{root}.xy"
    e = f"{e}{steps}" if steps > 0 else f"C({e}{-steps}.x, -{e}{-steps}.y)"
    return f"moved({root}, {e})" if root else f"C(1, 0) + {e}"


@dataclass(frozen=True)
class Split(Rounds):
    """What comes after the last stage where a column is a real line, its even elements' and odd ones' parts of complex
    numbers: the half of the line's spectrum. A thread makes two elements of it, of two that mirror each other.
    """

    numbers: Numbers

    @property
    def per(self) -> int:
        return self.fft.radix // 2 + 1

    def taken(self, k: str) -> str:
        """WGSL of the place in the tile of element ``k`` of column ``c``."""
        return f"c * {self.tile.stride}u + {self.tile.padded(k, self.fft.radix)}"

    @property
    def root(self) -> str:
        return self.numbers.root_of(2 * self.fft.radix, "k")


def stage_texts(
    fft: Pass, tile: Tile, threads: int, along: tuple[bool, bool], wide: bool, numbers: Numbers, split: bool = False
) -> list[StageText]:
    """The stages of a pass. Where neighbours in memory are neighbours of too few butterflies, or of none, a stage of
    copies comes before or after those of the transform. ``split``: a :class:`Split` follows.
    """
    read, written = along[0], along[1] or split
    stages = list(fft.stages)
    ways = [read, *[True] * (len(stages) - 2), *[written] * (len(stages) > 1)]
    if wide and fft.radix > 1:
        few = fft.radix < ADJACENT * stages[-1].radix
        if not split and (written != ways[-1] or (written and few)):
            stages.append(Stage(1, fft.radix))
            ways.append(written)
        if read and fft.radix < ADJACENT * stages[0].radix:
            stages.insert(0, Stage(1, 1))
            ways.insert(0, True)
    last = len(stages) - 1
    return [
        StageText(fft, tile, threads, way, stage, k == 0, k == last and not split, wide, numbers)
        for k, (stage, way) in enumerate(zip(stages, ways, strict=True))
    ]
