"""Plans of Fourier transforms: which passes and stages compute a length, and that these compute what they should."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import pytest

from torch_webgpu.kernels.fft.numbers import Numbers
from torch_webgpu.kernels.fft.planner import (
    MAX_BLUESTEIN,
    PRIMES,
    Pass,
    Room,
    convolution_length,
    has_roots,
    is_direct,
    parts,
    passes,
    place,
    prime_factors,
    radices,
    result_place,
)
from torch_webgpu.kernels.fft.stage_text import BANKS, Tile, anchor, stage_texts
from torch_webgpu.kernels.points import Draft
from torch_webgpu.target import named, names

PORTABLE = Room.of(16384, 256, 8)
WIDE = (Room.of(16384, 256, 8, True), Room.of(32768, 1024, 8, True), Room.of(49152, 1024, 8, True))
ROOMS = (
    PORTABLE,
    Room.of(16384, 256, 16),
    Room.of(49152, 1024, 8),
    *WIDE,
    *[room.for_length(1 << 20, 1, 1024) for room in WIDE],
)
LENGTHS = [
    n for n in (*range(1, 300), 1024, 2048, 3**7, 4096, 5**6, 10_000, 2**16, 2**18, 2**20, 3**12) if is_direct(n)
]


def transformed(line: np.ndarray, chain: tuple[Pass, ...] | tuple) -> np.ndarray:
    """The transform of a line by Stockham's algorithm, with butterflies of the passes' radices (or stages')."""
    n = len(line)
    for step in chain:
        radix, before = step.radix, step.before
        j = np.arange(n // radix)
        taken = line.reshape(radix, n // radix)
        turned = taken * np.exp(-2j * np.pi * np.outer(np.arange(radix), j % before) / (before * radix))
        made = np.fft.fft(turned, axis=0)
        result = np.empty(n, complex)
        for k in range(radix):
            result[j // before * before * radix + j % before + k * before] = made[k]
        line = result
    return line


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_passes_compute_the_transform(room):
    random = np.random.default_rng(0)
    for n in LENGTHS:
        chain = passes(n, room)
        line = random.normal(size=n) + 1j * random.normal(size=n)
        np.testing.assert_allclose(transformed(line, chain), np.fft.fft(line), atol=1e-9 * n)
        for step in chain:
            part = line[: step.radix]
            np.testing.assert_allclose(transformed(part, step.stages), np.fft.fft(part), atol=1e-9 * n)


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_passes_fit_a_workgroup(room):
    for n in LENGTHS:
        chain = passes(n, room)
        assert prod(step.radix for step in chain) == n
        assert len(chain) == 1 or n > room.elements
        for step in chain:
            assert prod(stage.radix for stage in step.stages) == step.radix
            for count in (1, 3, 10_000):
                columns = step.columns(count, room, adjacent=len(chain) > 1)
                assert 1 <= columns <= count
                assert columns * step.radix <= room.elements
                assert step.threads(columns, room) <= room.threads
            # Neighbours that lie together are read together.
            assert len(chain) == 1 or step.columns(10_000, room, True) * 8 >= 32


def test_every_described_gpu_has_room():
    for name in names():
        target = named(name)
        for itemsize, wide in ((8, False), (8, True), (16, False)):
            room = Room.of(target.workgroup_bytes, target.workgroup_threads, itemsize, wide)
            for step in (*passes(1 << 24, room), *passes(2048, room, True)):
                columns = step.columns(1 << 12, room, True)
                assert columns * step.radix * itemsize <= target.workgroup_bytes
                assert step.threads(columns, room) <= target.workgroup_threads


def test_passes_of_powers_of_two():
    assert [step.radix for step in passes(2048, PORTABLE)] == [2048]
    assert [step.radix for step in passes(4096, PORTABLE)] == [64, 64]
    assert [step.radix for step in passes(1 << 18, PORTABLE)] == [512, 512]
    assert len(passes(1 << 20, PORTABLE)) == 3
    assert len(passes(1 << 20, ROOMS[2])) == 2


def test_radices():
    assert [radices(n) for n in (2, 4, 8, 16, 32, 128)] == [(2,), (4,), (8,), (4, 4), (8, 4), (8, 4, 4)]
    assert radices(1) == ()
    assert radices(2 * 3 * 5 * 7 * 11 * 13) == (2, 13, 11, 7, 5, 3)
    for n in LENGTHS:
        assert prod(radices(n)) == n
        assert set(radices(n)) <= {*PRIMES, 4, 8}


def test_wide_radices():
    found = [radices(n, True) for n in (2, 16, 32, 64, 128, 512, 1024, 4096)]
    assert found == [(2,), (4, 4), (8, 4), (8, 8), (8, 16), (2, 16, 16), (4, 16, 16), (16, 16, 16)]
    assert radices(1, True) == ()
    assert radices(1000, True) == (10, 10, 10)
    assert radices(2187, True) == (3, 9, 9, 9)
    for n in LENGTHS:
        assert prod(radices(n, True)) == n
        assert len(radices(n, True)) <= len(radices(n))
        assert all(radix in (*PRIMES, 8) or prod(parts(radix)) == radix <= 16 for radix in radices(n, True))


@pytest.mark.parametrize("radix", range(2, 17))
def test_large_butterflies(radix):
    """Of transforms of their parts, as the template writes them."""
    random = np.random.default_rng(0)
    v = random.normal(size=radix) + 1j * random.normal(size=radix)
    exact = np.fft.fft(v)
    first, second = parts(radix)
    if first == 1:
        assert [result_place(radix, k) for k in range(radix)] == list(range(radix))
        return
    for j in range(second):
        part = [place(radix, i, j) for i in range(first)]
        v[part] = np.fft.fft(v[part])
    for i in range(first):
        part = [place(radix, i, j) for j in range(second)]
        if has_roots(radix):
            v[part] *= np.exp(-2j * np.pi * i * np.arange(second) / radix)
        v[part] = np.fft.fft(v[part])
    np.testing.assert_allclose([v[result_place(radix, k)] for k in range(radix)], exact)


@pytest.mark.parametrize("radix", range(2, 17))
def test_roots_near_others(radix):
    for i in range(radix):
        first = anchor(radix, i)
        assert 0 <= first < radix
        assert 8 * abs(i - first) <= radix
        assert anchor(radix, first) == first
    assert anchor(radix, 0) == 0


def number(wgsl: str, **values: int) -> int:
    """The value of an expression of unsigned numbers."""
    return eval(wgsl.replace("u", "").replace("/", "//"), {name.replace("u", ""): v for name, v in values.items()})


@pytest.mark.parametrize("along", [(True, True), (False, True), (False, False)], ids=str)
@pytest.mark.parametrize("room", [PORTABLE, *WIDE], ids=str)
def test_each_stage_takes_what_the_one_before_left(room, along):
    for n in (4, 16, 24, 30, 32, 60, 64, 81, 96, 128, 256, 512, 1000, 1024, 2048):
        (fft,) = passes(n, room)
        columns = fft.columns(1 << 20, room, not all(along))
        tile = Tile.of(fft, columns, room, along)
        assert tile.size <= room.tile
        texts = stage_texts(fft, tile, fft.threads(columns, room), along, room.wide, Numbers("f32", Draft()))
        assert [s.reads for s in texts] == [True] + [False] * (len(texts) - 1)
        assert [s.writes for s in texts] == [False] * (len(texts) - 1) + [True]
        for one, other in pairwise(texts):
            left: dict[tuple[int, int], int] = {}
            for c in range(min(columns, 2)):
                for j in range(one.per):
                    first = number(one.left_from(0), c0=c, j0=j)
                    start = j // one.before * one.before * one.radix + j % one.before
                    for k in range(one.radix):
                        left[c, start + one.before * k] = first + one.left(k)
            assert len(set(left.values())) == len(left) == min(columns, 2) * n
            assert max(left.values()) < tile.size
            for c in range(min(columns, 2)):
                for j in range(other.per):
                    first = number(other.taken_from(0), c0=c, j0=j)
                    for i in range(other.radix):
                        taken = number(other.taken(0, i).replace("from0", str(first)), c0=c, j0=j)
                        assert taken == left[c, j + other.per * i]


def test_threads_find_their_elements_in_different_banks():
    """What half a subgroup leaves and takes at once, of 8 bytes each, at lengths that GPUs like."""
    room = WIDE[-1]
    for n in (16, 128, 256, 512, 1024, 2048, 4096):
        (fft,) = passes(n, room)
        columns = fft.columns(1 << 20, room, False)
        tile = Tile.of(fft, columns, room, (True, True))
        texts = stage_texts(fft, tile, fft.threads(columns, room), (True, True), True, Numbers("f32", Draft()))
        for s in texts:
            at = [(lane // s.per, lane % s.per) for lane in range(BANKS)]
            if not s.writes:
                assert len({number(s.left_from(0), c0=c, j0=j) % BANKS for c, j in at}) == BANKS
            if not s.reads:
                assert len({number(s.taken_from(0), c0=c, j0=j) % BANKS for c, j in at}) == BANKS


def test_other_lengths_are_convolutions():
    for n in (17, 19 * 8, 1021, 65_537, 1_048_573, MAX_BLUESTEIN - 3):
        assert not is_direct(n)
        m = convolution_length(n, PORTABLE)
        assert 2 * n - 1 <= m < 4 * n
        assert is_direct(m)
    assert convolution_length(1021, PORTABLE) == 2048  # one pass, rather than fewer elements


def test_squares_of_indices_fit_32_bits():
    """What ``square_modulo`` of fourier.wgsl computes, step by step."""
    m = 2 * MAX_BLUESTEIN
    for k in (65_536, 1_048_572, MAX_BLUESTEIN - 1):
        for n in (m, m - 2):
            square = 0
            for shift in (21, 14, 7, 0):
                terms = square * 128, k * (k >> shift & 127)
                assert max(terms) < 1 << 32
                square = sum(t % n for t in terms) % n
            assert square == k * k % n


def test_prime_factors():
    for n in range(2, 500):
        assert prod(prime_factors(n)) == n
        assert all(len(prime_factors(p)) == 1 for p in prime_factors(n))
