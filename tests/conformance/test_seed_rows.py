"""The rows of the seed lists that have no OpInfo entry: copies between devices and dtypes, quantization."""

from __future__ import annotations

import pytest
import torch

from . import samples
from .compare import assert_same
from .seed_ops import SEED_OPS, SEED_TESTS
from .target import CPU, DEVICE, Replica, fallback_stats
from .trials import DTYPES

LAYOUTS = {"contiguous": torch.clone, **samples.LAYOUTS}


@pytest.fixture
def native():
    """Fail if the test made the CPU do the work."""
    before = fallback_stats()
    yield
    assert fallback_stats() == before, "fell back to the CPU"


def some(dtype: torch.dtype) -> torch.Tensor:
    """Values that every dtype holds and that survive every conversion."""
    return torch.randint(0, 2 if dtype == torch.bool else 100, (4, 3, 5), generator=_seeded()).to(dtype)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_copy(dtype, layout, native):
    """To the device and back, in any layout: the elements between a view's own are left alone."""
    source = LAYOUTS[layout](some(DTYPES[dtype]))
    there = source.to(DEVICE)
    assert_same(there, source, {}, strides=False)
    assert torch.equal(there.to(CPU), source)

    other = some(DTYPES[dtype]).flip(0)
    for make in (torch.clone, samples.transposed, samples.sliced):
        onto = Replica(DEVICE), Replica(CPU)
        views = [replica.tensor(make(LAYOUTS[layout](other).contiguous())) for replica in onto]
        views[0].copy_(there)
        views[1].copy_(source)
        assert_same(onto[0].storages, onto[1].storages, {})
        views[0].zero_()
        views[0].copy_(source)  # from the host straight into a strided view
        assert_same(onto[0].storages, onto[1].storages, {})


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_copy_converts(source, target, native):
    """``to(dtype)`` and ``copy_`` across dtypes, on the device and on the way to it."""
    values = some(DTYPES[source])
    expected = values.to(DTYPES[target])
    assert_same(values.to(DEVICE).to(DTYPES[target]), expected, {})
    assert_same(values.to(DEVICE, DTYPES[target]), expected, {})
    onto = torch.zeros(values.shape, dtype=DTYPES[target], device=DEVICE)
    assert_same(onto.copy_(values), expected, {})
    assert_same(onto.zero_().copy_(values.to(DEVICE)), expected, {})


def test_quantize():
    """``quantize_per_tensor`` and ``dequantize``."""
    values = torch.linspace(-3, 3, 40).reshape(8, 5)
    expected = torch.quantize_per_tensor(values, 0.05, 10, torch.quint8)
    actual = torch.quantize_per_tensor(values.to(DEVICE), 0.05, 10, torch.quint8)
    assert actual.is_quantized
    assert actual.device.type == DEVICE.type
    assert torch.equal(actual.int_repr().cpu(), expected.int_repr())
    assert torch.equal(actual.dequantize().cpu(), expected.dequantize())


def test_every_row_is_tested():
    rows = {row: names for section in SEED_OPS.values() for row, names in section.items()}
    assert all(rows.values())
    assert set(globals()) >= SEED_TESTS
