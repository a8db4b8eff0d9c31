"""The batching controls of seed 001: what they say is when work is submitted."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from torch_webgpu.engine.record import engine

webgpu = torch.webgpu


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    eng = engine()
    before = eng.batching, eng.threshold, eng.delay_ms
    webgpu.synchronize()
    yield
    eng.batching, eng.threshold, eng.delay_ms = before
    webgpu.synchronize()


def submissions() -> int:
    return webgpu.memory_stats().submissions


def test_a_batch_is_one_submission_however_long_it_takes() -> None:
    x = torch.ones(8, device="webgpu")
    y = x + 1  # starts the timer
    before = submissions()
    with webgpu.batch():
        for _ in range(200):
            y = y + 1
        time.sleep(0.06)
        assert webgpu.get_pending_count() > 0
        assert submissions() == before
    assert webgpu.get_pending_count() == 0
    assert submissions() == before + 1
    assert y.cpu().eq(202).all()


def test_a_batch_ends_when_a_value_is_read_and_with_an_error() -> None:
    x = torch.ones(8, device="webgpu")
    with webgpu.batch():
        assert (x + 1).sum().item() == 16
    with pytest.raises(ZeroDivisionError), webgpu.batch():
        1 / (x.add_(1).sum().item() - 16)
    assert webgpu.batch(lambda: x * 2).cpu().eq(4).all()
    assert engine().threshold == 64


def test_resizing_a_new_tensor_ends_no_batch() -> None:
    x = torch.ones(8, device="webgpu")
    y = x + 1
    before = submissions()
    positions = torch.arange(8, device="webgpu")  # PyTorch makes an empty tensor and resizes it
    used = torch.ones(4, device="webgpu")
    assert webgpu.get_pending_count() > 1
    assert submissions() == before
    z = used * 2
    used.resize_(2).zero_()  # what is recorded over it runs first
    assert (y + positions).cpu().tolist() == [2.0 + i for i in range(8)]
    assert z.cpu().tolist() == [2.0] * 4


def test_the_threshold_submits() -> None:
    webgpu.set_batch_delay(0)
    webgpu.set_batch_threshold(4)
    x = torch.ones(8, device="webgpu")
    webgpu.synchronize()
    before = submissions()
    kept = []
    for _ in range(8):
        x = x + 1
        kept.append(x)
    assert submissions() >= before + 2
    assert webgpu.get_pending_count() < 4


def test_the_delay_submits_and_zero_turns_it_off() -> None:
    x = torch.ones(8, device="webgpu")
    webgpu.synchronize()
    webgpu.set_batch_delay(1)
    y = x + 1
    deadline = time.monotonic() + 30
    while webgpu.get_pending_count():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    webgpu.set_batch_delay(0)
    z = y + 1
    time.sleep(0.05)
    assert webgpu.get_pending_count() == 1
    assert z.cpu().eq(3).all()
