"""The one cache of what operators do: it is bounded, follows the default dtype, and learns whatever was set before."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import pytest
import torch

from torch_webgpu.aten.dispatch import recipes
from torch_webgpu.aten.dispatch.recorded_once import record_once
from torch_webgpu.engine.record import engine


@pytest.fixture(autouse=True)
def batching() -> Iterator[None]:
    """A flush at every operation leaves nothing to learn."""
    with engine().using(batching=True):
        yield


@pytest.fixture
def room_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Gives the cache room for so many signatures, and empties it before and after."""
    recipes.clear()
    yield partial(monkeypatch.setattr, recipes._kept, "limit")
    recipes.clear()


def counting() -> tuple[Callable[..., torch.Tensor], list[int]]:
    """A kernel of two operations, and a list that grows with each time it runs."""
    ran: list[int] = []

    @record_once
    def kernel(x: torch.Tensor) -> torch.Tensor:
        ran.append(x.shape[0])
        return x.sum(0) + x

    return kernel, ran


@pytest.mark.parametrize("change", [{"batching": False}, {"threshold": 1}])
def test_kernels_are_learnt_whatever_the_batches(change: dict[str, object], device: torch.device) -> None:
    kernel, ran = counting()
    x = torch.arange(6.0, device=device).view(2, 3)
    with engine().using(**change):
        for _ in range(20):
            kernel(x)
    for _ in range(3):
        assert torch.equal(kernel(x).cpu(), x.cpu().sum(0) + x.cpu())
    assert len(ran) == 1


def test_there_is_one_bound_for_all_operators(device: torch.device, room_for: Callable[[int], None]) -> None:
    room_for(24)
    dropped = recipes.statistics.dropped
    for _ in range(2):
        for n, k in product(range(1, 30), range(1, 3)):
            x = torch.full((n, k), float(n), device=device)
            assert (x + 1).sum().item() == (n + 1) * n * k
            assert x.softmax(0).sum().item() == pytest.approx(k)
            x.copy_(x * 2)
            assert x[0, 0].item() == 2 * n
    assert recipes._kept.entries <= 24
    assert recipes.statistics.dropped > dropped
    known = {id(kept.found.run) for kept in recipes._kept.everything().values() if not isinstance(kept.found, str)}
    for owner in [o for o in gc.get_objects() if isinstance(o, recipes.Recipes)]:
        assert all(len(guards) <= recipes.GUARDS_PER_SHAPE for guards in owner.guarded.values())
        assert all(id(run) in known for guards in owner.guarded.values() for _, run in guards)


def test_what_was_dropped_is_learnt_again(device: torch.device, room_for: Callable[[int], None]) -> None:
    room_for(12)
    kernel, ran = counting()
    for _ in range(2):
        for n in (3, *range(4, 24)):
            x = torch.ones(n, 2, device=device)
            for _ in range(2):
                assert kernel(x).sum().item() == 2 * n * (n + 1)
    assert len(ran) < 4 * 21
    assert ran.count(3) == 2


def test_each_default_dtype_has_its_own(device: torch.device) -> None:
    x = torch.ones(3, 13, dtype=torch.int32, device=device)
    for _ in range(3):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            torch.set_default_dtype(dtype)
            try:
                assert {t.dtype for t in (x * 1.5, x / 2, x.sqrt(), x.mean(dtype=None) if False else x.sin())} == {
                    dtype
                }
            finally:
                torch.set_default_dtype(torch.float32)


def test_tensors_that_share_memory(device: torch.device) -> None:
    """What is only read may share memory; what is written is looked at closely."""
    on_cpu = torch.arange(96.0).view(3, 4, 8) / 50
    for _ in range(3):
        results = []
        for where in ("cpu", device):
            q, k, v = on_cpu.to(where, copy=True)
            results.append(
                [
                    q @ k.T,
                    q @ q.T,
                    torch.addmm(v, q, torch.eye(8).to(where)),
                    q.index_add(0, torch.tensor([1, 1]).to(where), v[:2]),
                    v.copy_(k).clone(),
                    k.index_copy_(0, torch.tensor([0]).to(where), q[1:2]).clone(),
                    q[:2].copy_(q[1:3].clone()).clone(),
                    q[0].add_(q[1]).clone(),
                    torch.add(q, k, out=v),
                    torch.frexp(k.clone(), out=(k, torch.empty(4, 8, dtype=torch.int32).to(where)))[0],
                ]
            )
        for ours, theirs in zip(*results[::-1], strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


def test_results_of_given_tensors(device: torch.device) -> None:
    """Outputs by name are what is returned, wherever the other names stand, and are resized when they must be."""
    x, y = torch.ones(4, 6, device=device), torch.full((4, 6), 2.0, device=device)
    for _ in range(3):
        out, wrong = torch.empty(4, 6, device=device), torch.empty(0, device=device)
        assert torch.add(x, y, alpha=3, out=out) is out
        assert out.sum().item() == 24 * 7
        assert torch.add(x, y, out=out).sum().item() == 24 * 3
        assert torch.add(x, y, alpha=0.5, out=wrong) is wrong
        assert wrong.shape == (4, 6)
        assert wrong.sum().item() == 24 * 2
        with pytest.raises(RuntimeError, match="device"):
            torch.add(x[0, 0], y[0, 0], out=torch.empty(()))


def test_numbers_of_kernels_that_take_them(device: torch.device) -> None:
    x = torch.zeros(5, 3, device=device)
    made = recipes.statistics.made
    for k in range(40):
        assert x.fill_(k / 8).sum().item() == 15 * k / 8
    assert recipes.statistics.made - made <= 4
