"""Plans of Fourier transforms: which passes and stages compute a length, and that these compute what they should."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from torch_webgpu.kernels.fft.planner import (
    MAX_BLUESTEIN,
    PRIMES,
    Pass,
    Room,
    convolution_length,
    is_direct,
    passes,
    prime_factors,
    radices,
)
from torch_webgpu.target import named, names

PORTABLE = Room.of(16384, 256, 8)
ROOMS = (PORTABLE, Room.of(16384, 256, 16), Room.of(49152, 1024, 8))
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
        for itemsize in (8, 16):
            room = Room.of(target.workgroup_bytes, target.workgroup_threads, itemsize)
            for step in passes(1 << 24, room):
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
