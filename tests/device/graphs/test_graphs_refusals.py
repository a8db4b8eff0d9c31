"""What cannot be captured, and what goes wrong in captures and replays: errors that say so, and nothing is lost."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.device.broken import record_broken
from tests.device.processes import assert_ends_well

from torch_webgpu.errors import ShaderCompileError

from .graphs import (
    captured,
    goes_on,  # noqa: F401  runs around every test
    in_use,
)

# ---- what cannot be captured


def sync_in(device: torch.device) -> dict[str, Callable[[torch.Tensor], Any]]:
    return {
        "item": lambda x: x.sum().item(),
        "cpu": lambda x: (x * 2).cpu(),
        "print": lambda x: repr(x),
        "nonzero": lambda x: x.nonzero(),
        "mask": lambda x: x[x > 0],
        "synchronize": lambda x: torch.webgpu.synchronize(),
        "upload": lambda x: torch.tensor([1.0, 2.0], device=device),
        "upload into": lambda x: x.copy_(torch.ones(3)),
        "bool": lambda x: bool((x > 0).all()),
        "another capture": lambda x: captured(lambda: x + 1),
        "timed event": lambda x: torch.webgpu.Event(enable_timing=True).record() or torch.webgpu.synchronize(),
    }


@pytest.mark.parametrize("name", sync_in(torch.device("cpu")))
def test_what_waits_for_the_device_ends_the_capture(device, name):
    x, weight = torch.tensor([1.0, 2.0, 3.0], device=device), torch.zeros(3, device=device)
    before = in_use()
    made: list[torch.Tensor] = []

    def step() -> None:
        weight.add_(1)
        made.append(x * 7)
        sync_in(device)[name](made[0])

    g = torch.webgpu.Graph()
    with pytest.raises(RuntimeError, match="captured"), torch.webgpu.graph(g):
        step()
    assert not torch.webgpu.is_current_stream_capturing()
    assert weight.tolist() == [0, 0, 0]  # nothing ran
    with pytest.raises(RuntimeError, match="capture that failed"):
        made[0].tolist()
    with pytest.raises(RuntimeError, match="not been captured"):
        g.replay()
    made.clear()
    assert in_use() == before
    with torch.webgpu.graph(g):  # the same graph can be captured after all
        y = x + 1
    g.replay()
    assert y.tolist() == [2, 3, 4]


def test_an_error_that_the_program_swallows_still_fails_the_capture(device):
    x, weight = torch.ones(3, device=device), torch.zeros(3, device=device)
    made = []

    def step() -> None:
        made.append(x + 1)
        with pytest.raises(RuntimeError, match="read on the host"):
            made[0].tolist()
        weight.add_(made[0])
        made.append(made[0] * 2)

    with pytest.raises(RuntimeError, match="the capture failed"):
        captured(step)
    assert weight.tolist() == [0, 0, 0]
    for lost in made:
        with pytest.raises(RuntimeError, match="capture that failed"):
            lost.tolist()


def test_an_exception_of_the_program_leaves_no_graph(device):
    x = torch.ones(3, device=device)
    g = torch.webgpu.Graph()
    made = []

    def step() -> None:
        made.append(x + 1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), torch.webgpu.graph(g):
        step()
    with pytest.raises(RuntimeError, match="not been captured"):
        g.replay()
    with pytest.raises(RuntimeError, match="capture that failed"):
        made[0].tolist()


def test_growing_a_storage_with_values_is_refused(device):
    x = torch.ones(3, device=device)
    with pytest.raises(RuntimeError, match="resized"):
        captured(lambda: x.resize_(300))
    assert x[:3].tolist() == [1, 1, 1]


def test_a_fallback_to_the_cpu_is_refused(device, recwarn):
    x = torch.eye(3, device=device, dtype=torch.complex128)
    with pytest.raises(RuntimeError, match="read on the host"):
        captured(lambda: torch.linalg.eigvals(x))


def test_a_tensor_from_before_a_failed_capture_can_be_written_by_the_next(device):
    x, out = torch.ones(3, device=device), torch.empty(3, device=device)
    with pytest.raises(RuntimeError, match="read on the host"):
        captured(lambda: torch.add(x, 1, out=out).sum().item())
    g, _ = captured(lambda: torch.add(x, 1, out=out))
    g.replay()
    assert out.tolist() == [2, 2, 2]


def test_a_capture_that_nobody_holds_ends(device):
    x = torch.ones(3, device=device)
    g = torch.webgpu.Graph()
    g.capture_begin()
    y = x + 1
    del g
    gc.collect()
    torch.webgpu.flush_batch()
    assert not torch.webgpu.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="capture that failed"):
        y.tolist()


# ---- errors of a replay


def test_a_kernel_that_does_not_compile_fails_the_capture(device):
    x, weight, made = torch.ones(3, device=device), torch.zeros(3, device=device), []

    def step() -> None:
        weight.add_(1)
        made.append(record_broken(x) + 1)

    before = in_use()
    g = torch.webgpu.Graph()
    with pytest.raises(ShaderCompileError, match="broken"), torch.webgpu.graph(g):
        step()
    with pytest.raises(RuntimeError, match="capture that failed"):
        made[0].tolist()
    assert weight.tolist() == [0, 0, 0]
    made.clear()
    assert in_use() == before
    with torch.webgpu.graph(g):
        weight.add_(1)
    g.replay()
    assert weight.tolist() == [1, 1, 1]


def test_what_failed_before_a_replay_is_raised_by_it(device):
    x, weight = torch.ones(3, device=device), torch.zeros(3, device=device)
    g, _ = captured(lambda: weight.add_(1))
    record_broken(x)
    bad = record_broken(x)
    with pytest.raises(ShaderCompileError, match="broken"):
        g.replay()
    assert weight.tolist() == [0, 0, 0]
    with pytest.raises(ShaderCompileError, match="broken"):
        bad.tolist()
    g.replay()
    assert weight.tolist() == [1, 1, 1]


def test_an_index_out_of_range_surfaces_as_in_eager_mode(device):
    table, index = torch.arange(4.0, device=device), torch.tensor([1, 2], device=device)
    g, y = captured(lambda: table[index] * 2)
    g.replay()
    assert y.tolist() == [2, 4]
    index.copy_(torch.tensor([1, 9]))
    g.replay()
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        torch.webgpu.synchronize()
    index.copy_(torch.tensor([3, 0]))
    g.replay()
    assert y.tolist() == [6, 0]


def test_a_graph_of_a_device_that_was_reset():
    script = """
        x = torch.ones(3, device="webgpu")
        g = torch.webgpu.Graph()
        with torch.webgpu.graph(g):
            y = x + 1
        torch.webgpu.reset_device()
        for use in (g.replay, y.cpu):
            with pytest.raises(torch_webgpu.errors.DeviceLostError):
                use()
        x = torch.ones(3, device="webgpu")
        h = torch.webgpu.Graph()
        with torch.webgpu.graph(h):
            z = x + 1
        h.replay()
        assert z.tolist() == [2, 2, 2]
        g.reset()
        g.capture_begin()
        with pytest.raises(RuntimeError, match="cannot be reset"):
            torch.webgpu.reset_device()
        g.reset()
        assert (x + 1).tolist() == [2, 2, 2]
    """
    assert_ends_well(script)
