"""A program that never waits: what it has in flight, and what it holds for nothing, is bounded."""

from __future__ import annotations

import threading

import pytest
import torch

from torch_webgpu.engine import backpressure
from torch_webgpu.engine.backpressure import HELD_BYTES, MARK_BYTES, MARK_SUBMISSIONS, MAX_MARKS, Backpressure
from torch_webgpu.engine.record import engine

MIB = 1 << 20


class SlowDevice:
    """Reaches a mark when it is told to."""

    index = 0

    def __init__(self) -> None:
        self.marks: list[bool] = []

    def mark(self):
        self.marks.append(False)
        number = len(self.marks) - 1
        return lambda: self.marks[number]


def test_nobody_waits_for_a_queue_that_is_short():
    bounds, device = Backpressure(), SlowDevice()
    for _ in range(MAX_MARKS * MARK_SUBMISSIONS):
        bounds.submitted(device)
    assert bounds.in_flight(device) == MAX_MARKS


@pytest.mark.parametrize("upload", [False, True])
def test_a_full_queue_waits_for_its_oldest_mark_alone(upload):
    bounds, device = Backpressure(), SlowDevice()
    count, size = (MAX_MARKS, MARK_BYTES) if upload else (MAX_MARKS * MARK_SUBMISSIONS, 0)
    for _ in range(count):
        bounds.submitted(device, size)

    def submit_more():
        for _ in range(1 if upload else MARK_SUBMISSIONS):
            bounds.submitted(device, size)

    thread = threading.Thread(target=submit_more)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "it did not wait"
    device.marks[0] = True
    thread.join(10)
    assert not thread.is_alive()
    assert bounds.in_flight(device) == MAX_MARKS


def test_what_was_waited_for_is_not_in_flight():
    bounds, device = Backpressure(), SlowDevice()
    for _ in range(MAX_MARKS * MARK_SUBMISSIONS + MARK_SUBMISSIONS - 1):
        bounds.submitted(device)
    bounds.done(device)
    assert bounds.in_flight(device) == 0
    bounds.submitted(device)
    assert bounds.in_flight(device) == 0, "a mark after one submission"


def test_a_device_that_answers_no_more_is_not_waited_for_forever(monkeypatch):
    monkeypatch.setattr(backpressure, "WAIT_S", 0.05)
    bounds, device = Backpressure(), SlowDevice()
    for _ in range((MAX_MARKS + 2) * MARK_SUBMISSIONS):
        bounds.submitted(device)
    assert bounds.in_flight(device) == MAX_MARKS


def test_a_long_loop_keeps_within_the_bound(device):
    x = torch.zeros(8, device=device)
    for _ in range(64 * MARK_SUBMISSIONS * (MAX_MARKS + 4)):
        x += 1
        assert engine().backpressure.in_flight(engine().devices[0]) <= MAX_MARKS
    assert x.eq(64 * MARK_SUBMISSIONS * (MAX_MARKS + 4)).all().item()


@pytest.fixture
def no_timer():
    """Batches end by their length alone."""
    torch.webgpu.set_batch_delay(0)
    yield
    torch.webgpu.set_batch_delay(16)


@pytest.mark.usefixtures("no_timer")
@pytest.mark.parametrize("others", [0, 40], ids=["alone", "beside tensors of other programs"])
def test_uploads_give_back_what_died(device, others):
    """Each upload is used once and dropped: a batch's worth of them would be twenty."""
    host = torch.ones(4 * MIB // 4 * 2)
    expected = 40 * float(host.sum())
    # Their buffers are larger than they are: size classes.
    held = [torch.full(((9 * MIB) // 4 + 1,), 1.0, device=device) for _ in range(others)]
    torch.webgpu.synchronize()
    torch.webgpu.reset_peak_memory_stats()
    # Buffers, of which the peak is one, too: not what tensors hold, which is less.
    before = torch.webgpu.memory_stats()["active_bytes.all.current"]
    assert before >= torch.webgpu.memory_allocated() >= sum([t.nbytes for t in held])
    total = torch.zeros((), device=device)
    for _ in range(40):
        total += host.to(device).sum()
    assert total.item() == expected
    peak = torch.webgpu.memory_stats()["active_bytes.all.peak"] - before
    # What may be held, twice a tensor (the one that is uploaded, the one before it), and temporaries.
    assert peak <= max(HELD_BYTES, before // 20) + 2 * host.nbytes + 2 * MIB


@pytest.mark.usefixtures("no_timer")
def test_chains_over_large_tensors_are_not_cut(device):
    """What is never stored holds no memory, so it is no reason to flush: the chain is one kernel."""
    x = torch.ones(2 * HELD_BYTES // 4, device=device)
    torch.webgpu.synchronize()
    submissions = torch.webgpu.memory_stats()["submissions"]
    y = x
    for _ in range(12):
        y = y + 1
    assert torch.webgpu.memory_stats()["submissions"] == submissions
    assert y[::1000003].cpu().eq(13).all()
