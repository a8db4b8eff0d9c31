"""The batching controls of seed 001: what they say is when work is submitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest
import torch

from torch_webgpu.engine.record import engine

webgpu = torch.webgpu


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    webgpu.synchronize()
    with engine().using(**asdict(engine().settings)):
        yield
    webgpu.synchronize()


def test_settings_that_mean_nothing_change_nothing() -> None:
    before = engine().settings
    for settings in ({"threshold": 0}, {"delay_ms": -1.0}, {"fusion_window": -1}, {"fusion_min_size": -1}):
        with pytest.raises(ValueError, match=r"at least one|negative"), engine().using(**settings):
            pass
        assert engine().settings == before


def test_what_is_recorded_is_planned_under_the_settings_of_then() -> None:
    with engine().using(delay_ms=0.0):
        y = torch.ones(8, device="webgpu") + 1
        assert webgpu.get_pending_count() > 0
        with engine().using(fusion=False):
            assert webgpu.get_pending_count() == 0
            y = y + 1
        assert webgpu.get_pending_count() == 0
        with engine().using(threshold=1000, fusion=engine().settings.fusion):
            y = y + 1
        assert webgpu.get_pending_count() == 1
    assert y.eq(4).all()


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
    assert engine().settings.threshold == 64


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


def test_what_is_waited_for_is_one_submission_with_the_wait() -> None:
    x = torch.ones(8, device="webgpu")
    scratch = torch.zeros(8, device="webgpu")
    device = engine().device(x.device.index)
    for wait in (webgpu.synchronize, x.sum().item, lambda: x[0].item()):
        webgpu.synchronize()
        _, before = device.work
        scratch.add_(1)
        wait()
        assert device.work[1] == before + 1
    assert scratch.eq(3).all()


@pytest.mark.parametrize("factor", [torch.linalg.cholesky_ex, torch.linalg.lu_factor_ex, torch.linalg.qr])
def test_operators_of_many_kernels_find_their_plans_again(
    device: torch.device, factor: Callable[[torch.Tensor], object]
) -> None:
    """Nothing in kernels that are much alike tells where a batch ended in the last call, and the length of what is
    recorded before differs: but for the last batch, which the program goes on with, no call after the second makes a
    plan.
    """
    a = (torch.eye(512) * 600 + torch.ones(512, 512)).to(device)
    made = []
    for call in range(10):
        before = engine().plans.misses
        factor(a)
        for _ in range(call % 5):
            a.add_(0)
        made.append(engine().plans.misses - before)
    assert made[0] > 2
    assert max(made[2:]) <= 1


@pytest.mark.parametrize("factor", [torch.linalg.inv_ex, torch.linalg.qr, torch.linalg.lu_factor_ex])
def test_factorizations_are_recorded_from_their_recipes(
    device: torch.device, factor: Callable[[torch.Tensor], object]
) -> None:
    """What a call uploads, reads or resizes makes it no recipe: it would be composed again each time."""
    a = (torch.eye(40) * 60 + torch.ones(40, 40)).to(device)
    factor(a)
    handovers = engine().handovers
    factor(a)
    assert engine().handovers == handovers


def test_new_identities_are_not_resized(device: torch.device) -> None:
    handovers = engine().handovers
    torch.eye(3, 5, device=device)
    assert engine().handovers == handovers
