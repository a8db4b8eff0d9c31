"""Temporaries of a plan take each other's place: in what a run takes from the pool, and in the memory it has."""

from __future__ import annotations

import pytest
import torch

from torch_webgpu.compiler import compile as compiler
from torch_webgpu.compiler.passes.share_memory import share_memory
from torch_webgpu.plan import Plan, bind, trace, verify


def chain(x: torch.Tensor) -> list[torch.Tensor]:
    """Products one after the other, of two sizes, of which some are results."""
    kept = []
    for n in range(8):
        x = x @ x if n % 3 else (x[:, :8] @ x[:8]).cumsum(0)
        if n % 4 == 2:
            kept.append(x.flip(1))
    return [*kept, x.t()[2:], x.sum(0)]


def apart(fn: object, x: torch.Tensor) -> Plan:
    """The plan of a function in which every temporary has memory of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "share_memory", lambda plan: plan)
        return trace(fn, x)


def temporaries(plan: Plan) -> int:
    return sum(buffer.role == "temporary" for buffer in plan.buffers)


@pytest.mark.parametrize("quantum", [1, 256, 1 << 20])
def test_temporaries_share_memory(quantum: int) -> None:
    """Whatever sizes memory comes in, no two that are needed at once have the same, and results stay."""
    x = torch.randn(32, 32, device="webgpu") / 8
    plan = apart(chain, x)
    shared = share_memory(plan, lambda size: -(-size // quantum) * quantum)
    assert not verify(shared)
    assert shared.arguments == plan.arguments
    assert shared.buffers[: len(plan.arguments)] == plan.buffers[: len(plan.arguments)]
    assert temporaries(shared) < temporaries(plan)
    for before, after in zip(plan.steps, shared.steps, strict=True):
        for old, new in zip(before.bindings, after.bindings, strict=True):  # type: ignore[union-attr]
            assert shared.buffers[new].size_bytes >= plan.buffers[old].size_bytes
            assert shared.buffers[new].role == plan.buffers[old].role
    for got, want in zip(bind(shared)(x), chain(x), strict=True):
        torch.testing.assert_close(got, want)


def test_no_more_are_there_than_are_needed_at_once() -> None:
    def sums(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = x.cumsum(0)
        return x

    x = torch.ones(6, 5, device="webgpu")
    assert temporaries(apart(sums, x)) == 19
    assert temporaries(trace(sums, x)) == 2


def test_a_run_gives_back_what_it_took() -> None:
    x = torch.randn(256, 256, device="webgpu") / 16
    run = bind(trace(chain, x))
    run(x)
    torch.webgpu.synchronize()
    torch.webgpu.empty_cache()
    before = torch.webgpu.memory_allocated()
    torch.webgpu.reset_peak_memory_stats()
    results = run(x)
    assert torch.webgpu.memory_allocated() - before == sum(t.untyped_storage().nbytes() for t in results)
    peak = torch.webgpu.max_memory_allocated() - before
    assert peak <= torch.webgpu.memory_allocated() - before + 3 * x.nbytes
    del results
    torch.webgpu.synchronize()
    assert torch.webgpu.memory_allocated() == before
    reserved = torch.webgpu.memory_reserved()
    torch.webgpu.empty_cache()
    assert torch.webgpu.memory_reserved() < reserved
