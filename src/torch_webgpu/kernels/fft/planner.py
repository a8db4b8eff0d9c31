"""Plans of Fourier transforms of one dimension: which passes compute one of a given length, and by which butterflies.

A *pass* computes transforms of ``radix`` elements in workgroup memory, by Stockham's algorithm, whose stages sort as
they go. A long transform is one of Stockham's in turn, whose butterflies are passes. A length with a prime beyond
:data:`PRIMES` is a convolution, which transforms of a better length compute (Bluestein's algorithm).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

PRIMES = (2, 3, 5, 7, 11, 13)
"""Primes that have a butterfly of their own."""
ADJACENT = 4
"""Neighbouring columns that a workgroup takes at least where these lie together: 32 bytes, as GPUs move memory."""
ELEMENTS = 1024
"""What a workgroup takes of short transforms: enough for 128 threads."""
MAX_ELEMENTS = 4096
"""What a workgroup takes at most: beyond, threads have too many registers to keep."""
PER_THREAD = 8
MIN_THREADS = 32
MAX_THREADS = 256
MAX_BLUESTEIN = 1 << 24
"""The longest transform by Bluestein's algorithm: squares of indices are taken modulo twice the length, in 32 bits."""
_ODD_PARTS = (1, 3, 5, 7, 9)


@dataclass(frozen=True)
class Room:
    """What a workgroup has: room for ``elements`` complex numbers, and ``threads``."""

    elements: int
    threads: int = MAX_THREADS

    @classmethod
    def of(cls, workgroup_bytes: int, workgroup_threads: int, itemsize: int) -> Room:
        """For complex numbers of ``itemsize`` bytes."""
        return cls(min(MAX_ELEMENTS, workgroup_bytes // itemsize), min(MAX_THREADS, workgroup_threads))


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
        wanted = max(ELEMENTS // self.radix, ADJACENT if adjacent else 1)
        most = max(1, min(wanted, room.elements // self.radix, count))
        return 1 << (most.bit_length() - 1)

    def threads(self, columns: int, room: Room) -> int:
        """The threads of a workgroup that computes ``columns`` transforms."""
        wanted = -(-columns * self.radix // PER_THREAD)
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


def radices(n: int) -> tuple[int, ...]:
    """Of the stages of a transform of ``n`` elements: twos in eights and fours, never a stage of two beside these."""
    factors = prime_factors(n)
    odd = [p for p in factors if p > 2]
    eights, rest = divmod(len(factors) - len(odd), 3)
    if rest == 1 and eights:
        even = [8] * (eights - 1) + [4, 4]
    else:
        even = [8] * eights + [1 << rest] * (rest > 0)
    return (*even, *reversed(odd))


def stages(n: int) -> tuple[Stage, ...]:
    """Those of one pass. One element is a butterfly, too, which copies it."""
    found, before = [], 1
    for radix in radices(n) or (1,):
        found.append(Stage(radix, before))
        before *= radix
    return tuple(found)


@cache
def passes(n: int, room: Room) -> tuple[Pass, ...]:
    """The fewest passes that compute a transform of ``n`` elements, which :func:`is_direct`, nearly equal ones."""
    if n <= room.elements:
        return (Pass(n, 1, stages(n)),)
    limit = room.elements // ADJACENT
    count = 2
    while (groups := _groups(prime_factors(n), count, limit)) is None:
        count += 1
    found, before = [], 1
    for radix in groups:
        found.append(Pass(radix, before, stages(radix)))
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
