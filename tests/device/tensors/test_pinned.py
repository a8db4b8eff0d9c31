"""Pinned memory: what counts as pinned, and downloads into it that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_webgpu.engine import readbacks
from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.device import Device

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_under_way(device: torch.device) -> None:
    torch.webgpu.synchronize()


@pytest.fixture
def landed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that grows with each part of a download that nobody waited for at first, and that is now."""
    seen: list[object] = []
    finish = readbacks.Readbacks._finish_oldest

    def noting(device: Device, waiting: Any) -> None:
        seen.extend(waiting[0].parts)
        finish(device, waiting)

    monkeypatch.setattr(readbacks.Readbacks, "_finish_oldest", staticmethod(noting))
    return seen


def test_what_is_pinned(device: torch.device) -> None:
    x = torch.arange(6.0)
    for made in (x.pin_memory("webgpu"), x.pin_memory(device)):
        assert torch.equal(made, x)
        assert made.data_ptr() != x.data_ptr()
        assert made.is_pinned("webgpu")
        assert made.view(2, 3)[1:].is_pinned("webgpu")
        assert not made.clone().is_pinned("webgpu")
    assert not x.is_pinned("webgpu")
    assert not x.to(device).is_pinned()
    assert torch.equal(x.pin_memory(), x)
    assert x[:0].pin_memory("webgpu").shape == (0,)
    if torch.cuda.is_available():
        assert x.pin_memory().is_pinned()
        assert x.pin_memory("cuda").is_pinned("cuda")
    with pytest.raises(RuntimeError, match="cannot pin"):
        x.to(device).pin_memory("webgpu")


def test_memory_is_not_pinned_for_whoever_gets_it_next(device: torch.device) -> None:
    for _ in range(200):
        made = torch.arange(1000.0).pin_memory()
        address = made.data_ptr()
        del made
        others = [torch.empty(1000) for _ in range(8)]
        if again := [t for t in others if t.data_ptr() == address]:
            assert not again[0].is_pinned()
            return
    pytest.skip("the allocator gives no memory again")


def by_synchronize(x: torch.Tensor) -> None:
    torch.webgpu.synchronize()


def by_stream(x: torch.Tensor) -> None:
    torch.webgpu.current_stream().synchronize()


def by_event(x: torch.Tensor) -> None:
    event = torch.webgpu.Event()
    event.record()
    event.synchronize()


def by_asking_an_event(x: torch.Tensor) -> None:
    event = torch.webgpu.Event()
    event.record()
    while not event.query():
        pass


def by_another_download(x: torch.Tensor) -> None:
    x.sum().item()


WAITS = [by_synchronize, by_stream, by_event, by_asking_an_event, by_another_download]


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
def test_a_copy_is_there_after_any_wait(
    wait: Callable[[torch.Tensor], None], device: torch.device, landed: list[object]
) -> None:
    x = torch.rand(300, 7, device=device)
    targets = [torch.zeros(300, 7).pin_memory("webgpu") for _ in range(3)]
    expected = []
    for k, target in enumerate(targets):
        x.add_(k + 1)
        target.copy_(x, non_blocking=True)
    assert landed == []
    wait(x)
    assert len(landed) == 3
    values = x.cpu()
    for k in reversed(range(3)):
        expected.append(values)
        values = values - (k + 1)
    for target, want in zip(targets, reversed(expected), strict=True):
        torch.testing.assert_close(target, want)


def test_an_event_waits_for_what_came_before_it_alone(device: torch.device, landed: list[object]) -> None:
    x = torch.rand(100, device=device)
    first, second = (torch.zeros(100).pin_memory("webgpu") for _ in range(2))
    first.copy_(x, non_blocking=True)
    event = torch.webgpu.Event()
    event.record()
    second.copy_(x, non_blocking=True)
    while not event.query():
        pass
    assert len(landed) == 1
    assert torch.equal(first, x.cpu())
    assert torch.equal(second, first)


def test_later_writes_do_not_show(device: torch.device) -> None:
    x = torch.zeros(1000, device=device)
    target = torch.ones(1000).pin_memory("webgpu")
    target.copy_(x, non_blocking=True)
    x.fill_(5)
    del x
    y = torch.full((1000,), 7.0, device=device)  # perhaps in the same memory
    torch.webgpu.synchronize()
    assert torch.equal(target, torch.zeros(1000))
    assert y.sum().item() == 7000


@pytest.mark.parametrize(
    "view", [lambda t: t.t(), lambda t: t[1:, 3:], lambda t: t[::2], lambda t: t[:1].expand(6, 8), lambda t: t[1]]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.int64, torch.complex64])
def test_any_view_and_dtype(
    view: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, device: torch.device
) -> None:
    values = torch.arange(48).view(6, 8).to(dtype)
    want = view(values)
    target = torch.zeros(want.shape, dtype=dtype).pin_memory("webgpu")
    target.copy_(view(values.to(device)), non_blocking=True)
    torch.webgpu.synchronize()
    assert torch.equal(target, want)
    part = torch.zeros(64, dtype=dtype).pin_memory("webgpu")
    part[3 : 3 + want.numel()].view(want.shape).copy_(view(values.to(device)), non_blocking=True)
    torch.webgpu.synchronize()
    assert torch.equal(part[3 : 3 + want.numel()].view(want.shape), want)
    assert not part[:3].any()
    assert not part[3 + want.numel() :].any()


def test_other_copies_are_there_at_once(device: torch.device, landed: list[object]) -> None:
    x = torch.rand(40, device=device)
    pinned, plain = torch.zeros(40).pin_memory("webgpu"), torch.zeros(40)
    assert torch.equal(pinned.copy_(x), x.cpu())
    assert torch.equal(plain.copy_(x, non_blocking=True), x.cpu())
    assert torch.equal(x.to("cpu", non_blocking=True), x.cpu())
    halves = torch.zeros(40, dtype=torch.float16).pin_memory("webgpu")
    assert torch.equal(halves.copy_(x, non_blocking=True), x.cpu().half())
    assert landed == []
    assert torch.equal(pinned.to(device, non_blocking=True).cpu(), pinned)


def test_what_is_under_way_is_bounded(
    device: torch.device, landed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readbacks, "MAX_PENDING_BYTES", 10_000)
    x = torch.rand(1000, device=device)
    targets = [torch.zeros(1000).pin_memory("webgpu") for _ in range(6)]
    for target in targets:
        target.copy_(x, non_blocking=True)
    assert len(landed) == 4
    torch.webgpu.synchronize()
    assert all(torch.equal(target, x.cpu()) for target in targets)


def test_staging_memory_is_used_again(device: torch.device) -> None:
    x = torch.rand(1000, device=device)
    target = torch.zeros(1000).pin_memory("webgpu")
    transfer = engine().device(device.index or 0).opened.transfer
    torch.webgpu.empty_cache()
    for _ in range(5):
        target.copy_(x, non_blocking=True)
        torch.webgpu.synchronize()
    assert len(transfer._spare) == 1
    torch.webgpu.empty_cache()
    assert transfer._spare == []


def test_a_graph_cannot_hold_one(device: torch.device) -> None:
    x, target = torch.rand(10, device=device), torch.zeros(10).pin_memory("webgpu")
    graph = torch.webgpu.Graph()
    with pytest.raises(RuntimeError, match="while a graph is being captured"), torch.webgpu.graph(graph):
        target.copy_(x, non_blocking=True)
