"""Fourier transforms as GPUs compute them, with large butterflies, on whatever adapter there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.device.against_cpu import layouts
from tests.device.choices import forget

from torch_webgpu.engine.record import engine

from .test_fft import FUNCTIONS, accurate, operand


@pytest.fixture(autouse=True)
def as_gpus_do(monkeypatch):
    device = engine().device(0)
    monkeypatch.setattr(device, "target", replace(device.target, software=False))
    forget(monkeypatch)


def test_short_lengths(device):
    for n in (*range(1, 17), 20, 24, 30, 32, 60, 64, 66, 77, 81, 120, 128, 169, 225, 256):
        accurate(device, torch.fft.fft, operand("fft", 3, n))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function(device, name):
    fn = getattr(torch.fft, name)
    for n in (2, 7, 8, 16, 60, 128):
        accurate(device, lambda x, n=n: fn(x, n), operand(name, 40, n))


@pytest.mark.parametrize("n", [509, 512, 1000, 1024, 2048, 2187, 4096, 5000, 8192, 65_536])
def test_long_lengths(device, n):
    lines = 2 if n > 5000 else 5
    accurate(device, torch.fft.fft, operand("fft", lines, n))
    accurate(device, lambda x: torch.fft.irfft(x, n), operand("irfft", lines, n // 2 + 1))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_layouts(device, dim):
    for x in layouts(lambda *s: torch.randn(s, dtype=torch.complex64), 9, 20, 16).values():
        accurate(device, lambda x: torch.fft.fft(x, dim=dim), x)
        accurate(device, torch.fft.fftn, x)


@pytest.mark.parametrize("shape", [(2048, 3, 5), (3, 4096, 5), (5, 7, 6000)], ids=str)
def test_long_lines_in_any_dimension(device, shape):
    """Those that lie beside each other take more passes, of several lines at once."""
    dim = shape.index(max(shape))
    x = torch.randn(shape, dtype=torch.complex64)
    for view in (x, x.transpose(0, 2).contiguous().transpose(0, 2), x[::2]):
        accurate(device, lambda x: torch.fft.fft(x, dim=dim), view)
        accurate(device, lambda x: torch.fft.irfft(x, dim=dim), view)


@pytest.mark.parametrize("workgroup_bytes", [16384, 32768, 49152])
def test_every_size_of_workgroup_memory(device, monkeypatch, workgroup_bytes):
    chip = engine().device(0)
    if workgroup_bytes > chip.target.workgroup_bytes:
        pytest.skip("the adapter has less")
    monkeypatch.setattr(chip, "target", replace(chip.target, workgroup_bytes=workgroup_bytes))
    for n in (16, 1024, 4096, 1000):
        accurate(device, torch.fft.fft, operand("fft", 3, n))
        accurate(device, lambda x: torch.fft.fft(x, dim=0), operand("fft", n, 6))
