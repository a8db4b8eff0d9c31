"""Plans of Fourier transforms of one dimension: which passes compute one of a given length, and by which butterflies.

A *pass* computes transforms of ``radix`` elements in workgroup memory, by Stockham's algorithm, whose stages sort as
they go. A long transform is one of Stockham's in turn, whose butterflies are passes. A length with a prime beyond
:data:`PRIMES` is a convolution, which transforms of a better length compute (Bluestein's algorithm).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import gcd

PRIMES = (2, 3, 5, 7, 11, 13)
"""Primes that have a butterfly of their own."""
ADJACENT = 4
"""Neighbouring columns that a workgroup takes at least where these lie together: 32 bytes, as GPUs move memory."""
ELEMENTS = 1024
"""What a workgroup takes of short transforms: enough for 128 threads."""
WIDE_ELEMENTS = 512
"""The same for wide ones: while some workgroups compute, more of them read and write."""
FEW = 1 << 21
"""Elements of a long transform, all its lines together, that are too few for a large GPU's threads if each has many."""
SHORT = 64
"""Powers of two up to this one are of small radices, so that threads read and write enough neighbours."""
MAX_ELEMENTS = 4096
"""What a workgroup takes at most: beyond, threads have too many registers to keep."""
PER_THREAD = 8
MAX_RADIX = 16
"""The largest butterfly: its elements are a thread's registers."""
MIN_THREADS = 32
MAX_THREADS = 256
FEW_THREADS = 512
MAX_BLUESTEIN = 1 << 24
"""The longest transform by Bluestein's algorithm: squares of indices are taken modulo twice the length, in 32 bits."""
_ODD_PARTS = (1, 3, 5, 7, 9)


@dataclass(frozen=True)
class Room:
    """What a workgroup has: room for ``elements`` complex numbers that it transforms, and ``threads``.

    ``wide``: threads have registers for the largest butterflies. ``tile``: elements that its memory holds, some of
    which may be left out so that threads find theirs in different banks. ``few``: so few elements are transformed that
    powers of two have smaller butterflies, and more threads.
    """

    elements: int
    threads: int = MAX_THREADS
    wide: bool = False
    tile: int = 0
    few: bool = False

    @classmethod
    def of(cls, workgroup_bytes: int, workgroup_threads: int, itemsize: int, wide: bool = False) -> Room:
        """For complex numbers of ``itemsize`` bytes."""
        tile = workgroup_bytes // itemsize
        return cls(min(MAX_ELEMENTS, tile), min(MAX_THREADS, workgroup_threads), wide, tile)

    def for_length(self, n: int, count: int, workgroup_threads: int) -> Room:
        """For ``count`` transforms of ``n`` elements."""
        if self.wide and n > self.elements and n * count <= FEW:
            return replace(self, few=True, threads=min(FEW_THREADS, workgroup_threads))
        return self


@dataclass(frozen=True)
class Stage:
    """Butterflies of ``radix`` elements, after stages whose radices have the product ``before``."""

    radix: int
    before: int


@dataclass(frozen=True)
class Pass:
    """One dispatch: transforms of ``radix`` elements, after passes whose radices have the product ``before``."""

    radix: int
    before: int
    stages: tuple[Stage, ...]

    def columns(self, count: int, room: Room, adjacent: bool) -> int:
        """How many of ``count`` transforms a workgroup computes: a power of two. ``adjacent``: neighbours lie together
        in memory.
        """
        elements = WIDE_ELEMENTS if room.wide else ELEMENTS
        wanted = max(elements // self.radix, ADJACENT if adjacent else 1)
        most = max(1, min(wanted, room.elements // self.radix, count))
        return 1 << (most.bit_length() - 1)

    def threads(self, columns: int, room: Room) -> int:
        """The threads of a workgroup that computes ``columns`` transforms."""
        each = max(stage.radix for stage in self.stages) if room.wide else PER_THREAD
        wanted = -(-columns * self.radix // each)
        return min(room.threads, max(MIN_THREADS, 1 << (wanted - 1).bit_length()))


def prime_factors(n: int) -> list[int]:
    """In ascending order."""
    factors, p = [], 2
    while p * p <= n:
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1
    return factors + [n] * (n > 1)


def is_direct(n: int) -> bool:
    """Whether butterflies alone compute a transform of this length."""
    for p in PRIMES:
        while n % p == 0:
            n //= p
    return n == 1


def radices(n: int, wide: bool = False) -> tuple[int, ...]:
    """Of the stages of a transform of ``n`` elements.

    Twos are in eights and fours, never a stage of two beside these. ``wide``: fewest stages; those of a long power of
    two have the largest radix, but for the first one.
    """
    factors = prime_factors(n)
    if wide and not (n <= SHORT and is_power_of_two(n)):
        return _wide_radices(n, tuple(factors))
    odd = [p for p in factors if p > 2]
    eights, rest = divmod(len(factors) - len(odd), 3)
    if rest == 1 and eights:
        even = [8] * (eights - 1) + [4, 4]
    else:
        even = [8] * eights + [1 << rest] * (rest > 0)
    return (*even, *reversed(odd))


def _wide_radices(n: int, factors: tuple[int, ...]) -> tuple[int, ...]:
    if is_power_of_two(n):
        sixteens, rest = divmod(len(factors), 4)
        return (*[1 << rest] * (rest > 0), *[16] * sixteens)
    found = min(_products(factors), key=lambda found: (len(found), sum(found)))
    return tuple(sorted(found, key=lambda radix: (radix % 2, radix)))


def is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


@cache
def _products(factors: tuple[int, ...]) -> frozenset[tuple[int, ...]]:
    """The ways to multiply ``factors`` to radices, each in ascending order."""
    if not factors:
        return frozenset([()])
    first, ways = factors[0], set()
    for way in _products(factors[1:]):
        ways.add(tuple(sorted((first, *way))))
        for k, radix in enumerate(way):
            if first * radix <= MAX_RADIX:
                ways.add(tuple(sorted((*way[:k], first * radix, *way[k + 1 :]))))
    fewest = min(map(len, ways))
    return frozenset(way for way in ways if len(way) <= fewest + 2)


def parts(radix: int) -> tuple[int, int]:
    """The butterflies that a large one is made of, (1, radix) where it is one of its own."""
    if radix == 8 or radix in PRIMES or radix < 6:
        return 1, radix
    first = 4 if radix % 4 == 0 else prime_factors(radix)[0]
    return first, radix // first


def has_roots(radix: int) -> bool:
    """Whether a large butterfly multiplies by roots of unity between its parts: those without a common factor need none
    (Good's algorithm).
    """
    return gcd(*parts(radix)) > 1


def place(radix: int, i: int, j: int) -> int:
    """Where a large butterfly has element ``i`` of part ``j``."""
    first, second = parts(radix)
    return second * i + j if has_roots(radix) else (second * i + first * j) % radix


def result_place(radix: int, k: int) -> int:
    """Where a butterfly leaves element ``k`` of its result."""
    first, second = parts(radix)
    if first == 1:
        return k
    return place(radix, k % first, k // first if has_roots(radix) else k % second)


def stages(n: int, wide: bool = False) -> tuple[Stage, ...]:
    """Those of one pass. One element is a butterfly, too, which copies it."""
    found, before = [], 1
    for radix in radices(n, wide) or (1,):
        found.append(Stage(radix, before))
        before *= radix
    return tuple(found)


@cache
def passes(n: int, room: Room, adjacent: bool = False) -> tuple[Pass, ...]:
    """The fewest passes that compute a transform of ``n`` elements, which :func:`is_direct`, nearly equal ones.

    ``adjacent``: neighbouring lines lie together in memory, so that a workgroup should have room for a few.
    """
    if n <= (room.elements // ADJACENT if adjacent and room.wide else room.elements):
        return (Pass(n, 1, stages(n, room.wide)),)
    limit = room.elements // ADJACENT
    count = 2
    while (groups := _groups(prime_factors(n), count, limit)) is None:
        count += 1
    wide = room.wide and not (room.few and is_power_of_two(n))
    found, before = [], 1
    for radix in groups:
        found.append(Pass(radix, before, stages(radix, wide)))
        before *= radix
    return tuple(found)


def _groups(factors: Sequence[int], count: int, limit: int) -> list[int] | None:
    """Products of ``count`` groups of the factors, none beyond ``limit``; None where they are not found."""
    groups = [1] * count
    for factor in reversed(factors):
        smallest = groups.index(min(groups))
        groups[smallest] *= factor
    return sorted(groups, reverse=True) if max(groups) <= limit else None


@cache
def convolution_length(n: int, room: Room) -> int:
    """Of the transforms that compute one of ``n`` elements by Bluestein's algorithm: at least ``2n - 1``; fewest passes
    first, then fewest elements.
    """
    return min(_lengths(2 * n - 1), key=lambda m: (len(passes(m, room)), m))


def _lengths(least: int) -> Iterator[int]:
    for odd in _ODD_PARTS:
        yield odd << max(0, (-(-least // odd) - 1).bit_length())
