"""Lanes that the timer flushes: those of idle threads, and none that is being recorded."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import FrameType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_webgpu.engine import clock, flush_reason
from torch_webgpu.engine.flush_reason import Cause
from torch_webgpu.engine.lane import Lane
from torch_webgpu.engine.record import Engine, engine

webgpu = torch.webgpu
DELAY_MS = 4.0
PAUSE_S = 0.02
"""Longer than the delay."""
PATIENCE_S = 60.0
WARM_UP = 12


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    webgpu.synchronize()
    with engine().using(**asdict(engine().settings)):
        engine().change(delay_ms=0.0)
        yield
    webgpu.synchronize()


@pytest.fixture
def idle_flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the lanes that the timer flushes."""
    sizes: list[int] = []
    flush_lane = Engine.flush_lane

    def noted(self: Engine, lane: Lane, cause: Cause) -> None:
        if cause is flush_reason.IDLE:
            sizes.append(len(lane))
        flush_lane(self, lane, cause)

    monkeypatch.setattr(Engine, "flush_lane", noted)
    return sizes


def trained(device: torch.device, layers: int = 6) -> Callable[[], None]:
    """A step of training, which reads nothing: about a batch's length."""
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(8, 8), nn.Tanh())]).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(4, 8).to(device), torch.randn(4, 8).to(device)

    def step() -> None:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_loop_that_is_slowed_down_makes_no_plans_anew(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine, or under a profiler: the thread stands still at any place, for longer than the delay."""
    monkeypatch.setattr(clock, "PATIENCE_S", PATIENCE_S)  # this machine may stop the thread for longer than ours
    step = trained(device)
    for _ in range(WARM_UP):
        step()
    chance, pauses, misses = random.Random(0), 0, engine().plans.misses

    def slow_down(frame: FrameType, event: str, argument: object) -> None:
        nonlocal pauses
        if chance.random() < 0.0005:
            pauses += 1
            time.sleep(PAUSE_S)

    engine().change(delay_ms=DELAY_MS)
    sys.setprofile(slow_down)
    try:
        for _ in range(20):
            step()
    finally:
        sys.setprofile(None)
    assert pauses > 20
    assert engine().plans.misses == misses


def test_a_loop_whose_thread_pauses_is_flushed_there_with_plans_that_come_back(
    device: torch.device, idle_flushes: list[int]
) -> None:
    engine().change(delay_ms=DELAY_MS)
    x = torch.randn(4, 8).to(device)
    made = []
    for _ in range(6):
        before = engine().plans.misses
        x = (x @ x.t() @ x).tanh() + 1
        wait_for(lambda: webgpu.get_pending_count() == 0)
        made.append(engine().plans.misses - before)
    assert made[2:] == [0] * 4
    assert len(idle_flushes) >= 6


def test_what_usually_goes_on_is_flushed_in_the_end(device: torch.device, idle_flushes: list[int]) -> None:
    x = torch.randn(4, 8).to(device)

    def begin() -> torch.Tensor:
        return (x + 2).tanh()

    webgpu.flush_batch()
    for _ in range(2):
        y = begin() @ x.t()
        webgpu.flush_batch()
    engine().change(delay_ms=DELAY_MS)
    y = begin()
    time.sleep(PAUSE_S)
    assert webgpu.get_pending_count() == 2
    wait_for(lambda: webgpu.get_pending_count() == 0)
    assert idle_flushes == [2]
    torch.testing.assert_close(y.cpu(), (x.cpu() + 2).tanh())


def test_what_ended_with_other_tensors_alive_may_go_on(device: torch.device) -> None:
    """A thread may stand between an operation and the death of what it read: a plan for that would not come back."""
    x = torch.randn(4, 8).to(device)
    lane = engine().lane(x.device.index)
    for keep in (False, True):
        y = x + 1
        z = y * 2
        if not keep:
            del y
        if keep:
            assert engine().goes_on(lane)
            del y
            assert not engine().goes_on(lane)
        webgpu.flush_batch()
        del z


def test_new_operations_are_not_known_to_go_on(device: torch.device) -> None:
    x = torch.randn(3, 17).to(device)
    webgpu.flush_batch()
    lane = engine().lane(x.device.index)
    y = (x * 0.5).cosh()
    assert not engine().goes_on(lane)
    z = y.sin()
    webgpu.flush_batch()
    y = (x * 0.5).cosh()
    assert engine().goes_on(lane)
    z = y.cos()
    assert not engine().goes_on(lane)
    assert z.isfinite().all()
