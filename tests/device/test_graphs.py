"""Captured graphs: replays do what the same eager calls would have done, to the bit, and own their memory."""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from torch_webgpu.engine.record import engine
from torch_webgpu.errors import ShaderCompileError
from torch_webgpu.ir.graph import Extern
from torch_webgpu.wgsl.kernel import Binding, Kernel
from torch_webgpu.wgsl.launch import Launch, Lowered

from .processes import assert_ends_well

Optimizer = torch.optim.Optimizer


@pytest.fixture(autouse=True)
def goes_on(device: torch.device) -> Iterator[None]:
    """After every test: no capture is underway, nothing is poisoned, and the device computes."""
    kept = torch.arange(5.0, device=device) * 2
    yield
    assert not torch.webgpu.is_current_stream_capturing()
    torch.webgpu.synchronize()
    assert (kept @ torch.ones(5, device=device)).item() == 20


def captured(step: Callable[[], Any], **options: Any) -> tuple[torch.webgpu.Graph, Any]:
    """A graph of ``step``, and what it returned."""
    g = torch.webgpu.Graph()
    with torch.webgpu.graph(g, **options):
        result = step()
    return g, result


def in_use() -> int:
    """Bytes of buffers that somebody holds: tensors, graphs."""
    gc.collect()
    torch.webgpu.synchronize()
    return torch.webgpu.memory_stats()["active_bytes.all.current"]


# ---- capturing and replaying


def test_nothing_runs_before_the_replay_and_each_replay_reads_its_inputs(device):
    x, total = torch.tensor([1.0, 2.0], device=device), torch.zeros(2, device=device)

    def step() -> torch.Tensor:
        total.add_(x)
        return (x * 3).relu() + 1

    g, y = captured(step)
    assert total.tolist() == [0, 0]
    for values, sums in (([1.0, 2.0], [1, 2]), ([-1.0, 5.0], [0, 7])):
        x.copy_(torch.tensor(values))
        g.replay()
        assert y.tolist() == [max(3 * v, 0) + 1 for v in values]
        assert total.tolist() == sums
    x.copy_(y * 2)  # recorded, not yet run, when the replay is asked for
    g.replay()
    assert y.tolist() == [7, 97]
    assert (y + 1).tolist() == [8, 98]


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_batches_and_views_do_not_matter(device, batch):
    x = torch.arange(12.0, device=device).view(3, 4)

    def step() -> torch.Tensor:
        a = x.t().softmax(0)
        a[1] += a[2]
        return torch.cat([a, x.t() @ x @ x.t()])[:, 1:].contiguous().cumsum(0)

    torch.webgpu.set_batch_threshold(batch)
    try:
        g, y = captured(step)
    finally:
        torch.webgpu.set_batch_threshold(64)
    x.copy_(torch.randn(3, 4))
    g.replay()
    assert torch.equal(y, step())


def test_is_current_stream_capturing(device):
    assert not torch.webgpu.is_current_stream_capturing()
    _, inside = captured(torch.webgpu.is_current_stream_capturing)
    assert inside


def test_asking_whether_something_is_captured_opens_no_device():
    script = """
        assert not torch.webgpu.is_current_stream_capturing()
        from torch_webgpu.engine.record import started_in
        assert started_in() is None
    """
    assert_ends_well(script)


def test_capture_begin_and_end_without_the_context_manager(device):
    x = torch.ones(3, device=device)
    g = torch.webgpu.CUDAGraph(keep_graph=True)
    g.capture_begin(capture_error_mode="thread_local")
    y = x + 1
    g.capture_end()
    g.instantiate()
    g.replay()
    assert y.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="captured already"):
        g.capture_begin()
    g.reset()
    with pytest.raises(RuntimeError, match="not been captured"):
        g.replay()
    g.capture_begin()
    z = x * 5
    g.capture_end()
    g.replay()
    assert z.tolist() == [5, 5, 5]
    with pytest.raises(RuntimeError, match="error mode"):
        torch.webgpu.Graph().capture_begin(capture_error_mode="sometimes")
    with pytest.raises(RuntimeError, match="without capture_begin"):
        torch.webgpu.Graph().capture_end()


def test_an_empty_graph_replays(device):
    g, _ = captured(lambda: None)
    g.replay()


def test_a_number_from_the_host_is_frozen_and_written_at_every_replay(device):
    def step() -> torch.Tensor:
        x = torch.tensor(2.5, device=device)
        flag = torch.tensor(True, device=device)
        x += 1
        return torch.stack([x, flag.float()])

    g, y = captured(step)
    for _ in range(2):
        g.replay()
        assert y.tolist() == [3.5, 1]


def test_lists_of_tensors_before_in_and_after_a_replay(device):
    def tensors(value: float) -> list[torch.Tensor]:
        return [torch.full((3,), value, device=device) for _ in range(4)]

    a, b = tensors(1), tensors(2)
    g, _ = captured(lambda: torch._foreach_mul_(a, b))
    torch._foreach_add_(a, 1)  # recorded, not yet run
    g.replay()
    torch._foreach_add_(b, a)
    g.replay()
    assert [t.tolist() for t in (*a, *b)] == [[24] * 3] * 4 + [[6] * 3] * 4


def test_views_of_a_replayed_output_follow_it(device):
    x = torch.ones(4, device=device)
    g, y = captured(lambda: x * 2)
    part = y[1:3]
    x.fill_(4)
    g.replay()
    assert part.tolist() == [8, 8]


def test_a_graph_of_many_dispatches_and_copies(device):
    """More than one submission, and compute passes cut by copies."""
    x = torch.zeros(4, device=device)

    def step() -> None:
        for k in range(600):
            x.add_(1)
            if k % 200 == 0:
                x.add_(torch.tensor(1.0, device=device))

    torch.webgpu.disable_fusion()
    try:
        g, _ = captured(step)
    finally:
        torch.webgpu.enable_fusion()
    g.replay()
    g.replay()
    assert x.tolist() == [1206] * 4


# ---- training


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(4 * 9, 5),
    )  # fmt: skip


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, capturable=True),
    "adam without foreach": lambda p: torch.optim.Adam(p, 1e-2, capturable=True, foreach=False),
    "adamw fused": lambda p: torch.optim.AdamW(p, 1e-2, capturable=True, fused=True),
}


class Training:
    """A model, its optimizer and static inputs."""

    def __init__(self, model: nn.Module, make: Callable[[Any], Optimizer], device: torch.device) -> None:
        self.model = copy.deepcopy(model).to(device)
        self.optimizer = make(self.model.parameters())
        self.x = torch.zeros(6, 1, 6, 6, device=device)
        self.target = torch.zeros(6, dtype=torch.int64, device=device)

    def load(self, x: torch.Tensor, target: torch.Tensor) -> None:
        self.x.copy_(x)
        self.target.copy_(target)

    def step(self) -> torch.Tensor:
        loss = F.cross_entropy(self.model(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def eager_step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        return self.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_training_step_is_the_eager_one(device, name):
    model = network()
    eager, graphed = (Training(model, OPTIMIZERS[name], device) for _ in range(2))
    batches = [(torch.randn(6, 1, 6, 6), torch.randint(0, 5, (6,))) for _ in range(7)]
    torch.manual_seed(1)
    expected = []
    for batch in batches:
        eager.load(*batch)
        expected.append(eager.eager_step().item())
    torch.manual_seed(1)
    losses = []
    for batch in batches[:2]:
        graphed.load(*batch)
        losses.append(graphed.eager_step().item())
    graphed.optimizer.zero_grad(set_to_none=True)
    g, loss = captured(graphed.step)
    for batch in batches[2:]:
        graphed.load(*batch)
        g.replay()
        losses.append(loss.item())
    # Fused otherwise, sums and products may be contracted otherwise.
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)
    for (key, a), b in zip(eager.model.state_dict().items(), graphed.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")
    # The gradients are the last replay's, and eager steps go on from here.
    for a, b in zip(eager.model.parameters(), graphed.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)
    torch.manual_seed(2)
    expected = eager.eager_step()
    torch.manual_seed(2)
    torch.testing.assert_close(graphed.eager_step(), expected, rtol=1e-4, atol=1e-6)


def test_a_learning_rate_on_the_device_changes_between_replays(device):
    rate = torch.tensor(0.5, device=device)
    p, q = (nn.Parameter(torch.ones(3, device=device)) for _ in range(2))
    p.grad, q.grad = torch.ones(3, device=device), torch.ones(3, device=device)
    ours, eager = (torch.optim.Adam([t], lr=rate, capturable=True) for t in (p, q))
    ours.step()
    eager.step()
    g, _ = captured(ours.step)
    for value in (0.25, 0.125):
        rate.fill_(value)
        g.replay()
        eager.step()
        assert torch.equal(p, q)
    assert p[0].item() == pytest.approx(1 - 0.5 - 0.25 - 0.125, abs=1e-4)


def test_gradients_accumulate_over_replays_that_add_to_them(device):
    w = nn.Parameter(torch.ones(3, device=device))
    w.grad = torch.zeros(3, device=device)
    x = torch.tensor([1.0, 2.0, 3.0], device=device)
    g, _ = captured(lambda: (w * x).sum().backward())
    g.replay()
    g.replay()
    assert w.grad.tolist() == [2, 4, 6]
    w.grad.zero_()
    g.replay()
    assert w.grad.tolist() == [1, 2, 3]


def test_an_optimizer_that_counts_on_the_host_refuses_to_be_captured(device):
    """A canary for aten/torch_patches.py: refuse_uncapturable_optimizers."""
    p = nn.Parameter(torch.ones(3, device=device))
    p.grad = torch.ones(3, device=device)
    optimizer = torch.optim.Adam([p])
    optimizer.step()
    value = p.tolist()
    with pytest.raises(RuntimeError, match="capturable is False"):
        captured(optimizer.step)
    assert p.tolist() == value
    captured(torch.optim.SGD([p], 0.1).step)
    other = nn.Parameter(torch.ones(3))
    other.grad = torch.ones(3)
    captured(torch.optim.Adam([other]).step)  # on the CPU


# ---- random numbers


def noise(device: torch.device, generator: torch.Generator | None = None) -> list[torch.Tensor]:
    ones = torch.ones(50, device=device)
    return [
        F.dropout(ones, 0.3),
        torch.rand(7, device=device, generator=generator),
        torch.randn(5, device=device) * F.dropout(ones[:5]),
        torch.randint(0, 1 << 40, (3,), device=device, generator=generator),
        torch.bernoulli(ones * 0.5),
        torch.randperm(6, device=device),
    ]


def test_random_numbers_are_those_of_eager_calls(device):
    torch.manual_seed(11)
    expected = [[t.tolist() for t in noise(device)] for _ in range(5)]
    torch.manual_seed(11)
    assert [t.tolist() for t in noise(device)] == expected[0]
    g, tensors = captured(lambda: noise(device))
    for k in (1, 2):
        g.replay()
        assert [t.tolist() for t in tensors] == expected[k]
    assert [t.tolist() for t in noise(device)] == expected[3]
    g.replay()
    assert [t.tolist() for t in tensors] == expected[4]
    torch.manual_seed(11)
    g.replay()
    assert [t.tolist() for t in tensors] == expected[0]


def test_a_generator_of_ones_own(device):
    generator = torch.Generator(device=device).manual_seed(5)
    expected = [[t.tolist() for t in noise(device, generator)[1::2]] for _ in range(2)]
    generator.manual_seed(5)
    g, tensors = captured(lambda: noise(device, generator))
    for values in expected:
        g.replay()
        assert [t.tolist() for t in tensors[1::2]][:2] == values[:2]


def test_streams_that_pass_32_bits(device):
    generator = torch.Generator(device=device).manual_seed(1 << 63)
    g, x = captured(lambda: torch.rand(9, device=device, generator=generator))
    for offset in ((1 << 32) - 1, (1 << 64) - 2):
        generator.set_offset(offset)
        expected = torch.rand(9, device=device, generator=generator)
        generator.set_offset(offset)
        g.replay()
        assert torch.equal(x, expected)


@pytest.mark.parametrize("touch", [torch.manual_seed, lambda _: torch.webgpu.get_rng_state()], ids=["seed", "read"])
def test_generators_are_left_alone_while_they_are_captured(device, touch):
    def step() -> None:
        torch.rand(3, device=device)
        touch(3)

    with pytest.raises(RuntimeError, match="captured graph draws from it"):
        captured(step)
    touch(3)


@pytest.mark.parametrize("own", [False, True])
def test_seeding_inside_a_capture_is_refused_when_it_matters(device, own):
    generator = torch.Generator(device=device)

    def step() -> torch.Tensor:
        if own:
            generator.manual_seed(3)
        else:
            torch.manual_seed(3)
        return torch.rand(3, device=device, generator=generator if own else None)

    with pytest.raises(RuntimeError, match="cannot be made or seeded"):
        captured(step)
    captured(lambda: torch.manual_seed(3))
    g, x = captured(lambda: torch.rand(3, device=device, generator=generator))
    generator.manual_seed(4)
    g.replay()
    generator.manual_seed(4)
    assert torch.equal(x, torch.rand(3, device=device, generator=generator))


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
    x = torch.eye(3, device=device)
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


def record_broken(x: torch.Tensor) -> torch.Tensor:
    """An operation whose kernel is not WGSL."""
    kernel = Kernel("broken", "this is not WGSL", (Binding("y", "f32", "read_write"),))
    lowered = Lowered((Launch(kernel, (1,), (), (1, 1, 1)),))
    out = engine().empty(x.shape, x.dtype, x.device.index)
    engine().record("test.broken in a graph", [x], [out], lambda _: Extern(lambda *_: lowered))
    return out


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


# ---- memory


def test_memory_is_the_graphs_until_it_dies(device):
    x = torch.ones(100_000, device=device)
    size = 400_000
    before = in_use()
    g, y = captured(lambda: (x.cumsum(0) * 2).cumsum(0).flip(0).contiguous())
    held = in_use() - before
    assert held >= 2 * size
    # Intermediates share memory by lifetime, even though there are more of them.
    assert held < 4 * size
    others = [torch.full_like(x, float(k)) for k in range(12)]
    g.replay()
    expected = y.clone()
    assert all(t.eq(k).all() for k, t in enumerate(others))
    del others
    g.replay()
    assert torch.equal(y, expected)
    del expected
    g.reset()
    y += 1  # a tensor outlives its graph
    assert size <= in_use() - before < 2 * size
    del y
    assert in_use() == before


def test_memory_comes_back_when_the_graph_is_forgotten(device):
    x = torch.ones(50_000, device=device)
    before = in_use()
    g, y = captured(lambda: x.cumsum(0).cumsum(0))
    assert in_use() > before
    del g, y
    assert in_use() == before


def test_an_input_that_dies_stays_the_graphs(device):
    inputs = [torch.full((50_000,), 3.0, device=device)]
    before = in_use()
    g, y = captured(lambda: inputs[0] + 1)
    inputs.clear()
    others = [torch.full((50_000,), float(k), device=device) for k in range(4)]
    g.replay()
    assert y.eq(4).all()
    assert all(t.eq(k).all() for k, t in enumerate(others))
    del others, y, g
    assert in_use() < before


def test_what_dies_inside_the_capture_is_given_to_nobody_outside(device):
    x = torch.full((20_000,), 2.0, device=device)

    def step() -> torch.Tensor:
        nonlocal x
        y = x * 2
        x = torch.zeros(1, device=device)
        return y.cumsum(0)

    g, y = captured(step)
    others = [torch.full((20_000,), -1.0, device=device) for _ in range(8)]
    for _ in range(2):
        g.replay()
        assert torch.equal(y.cpu(), torch.arange(1, 20_001) * 4.0)
    assert all(t.eq(-1).all() for t in others)


def test_dead_inputs_are_told_when_asked_for(device):
    inputs = [torch.ones(3, device=device), torch.ones(3, device=device)]
    g, y = captured(lambda: inputs[0] + inputs[1], check_input_liveness=True)
    g.replay()
    inputs.pop()
    with pytest.raises(RuntimeError, match=r"1 dead tensor"):
        g.replay()
    assert y.tolist() == [2, 2, 2]


def test_two_graphs_share_a_pool(device):
    x = torch.randn(30_000, device=device)

    def step() -> torch.Tensor:
        return x.cumsum(0).flip(0).contiguous().cumsum(0).sum()

    g, a = captured(step)
    before = in_use()
    h, b = captured(step, pool=g.pool())
    shared = in_use() - before
    assert h.pool() == g.pool()
    k, c = captured(step, pool=torch.webgpu.graph_pool_handle())
    assert shared < in_use() - before - shared
    x.copy_(torch.randn(30_000))
    expected = step().item()
    for graph, result in ((g, a), (h, b), (k, c)):
        graph.replay()
        assert result.item() == expected
    g.reset()
    h.replay()
    assert b.item() == expected
    assert torch.webgpu.graph_pool_handle() != torch.webgpu.graph_pool_handle()


def test_a_graph_uses_what_another_made(device):
    x = torch.ones(4, device=device)
    g, y = captured(lambda: [x * 2])
    h, z = captured(lambda: y[0] + 1)
    x.fill_(5)
    g.replay()
    h.replay()
    assert z.tolist() == [11] * 4
    y.clear()
    g.reset()
    others = [torch.zeros(4, device=device) for _ in range(4)]
    h.replay()
    assert z.tolist() == [11] * 4
    assert all(t.eq(0).all() for t in others)


def test_cached_objects_may_be_evicted(device):
    x = torch.ones(8, device=device)
    g, y = captured(lambda: (x * 3).cumsum(0))
    opened = engine().device(0)._opened
    with engine().lock:
        opened.pipelines._evict()
    torch.webgpu.empty_cache()
    x.fill_(2)
    g.replay()
    assert y.tolist() == [6.0 * k for k in range(1, 9)]


def test_graphs_that_come_and_go_leave_nothing(device):
    x = torch.randn(2_000, device=device)

    def once() -> None:
        g, y = captured(lambda: F.dropout(x.cumsum(0), 0.5).flip(0).contiguous())
        g.replay()
        y.sum().item()

    once()
    before, reserved = in_use(), torch.webgpu.memory_reserved()
    for _ in range(20):
        once()
    assert in_use() == before
    assert torch.webgpu.memory_reserved() <= reserved


# ---- several adapters


def test_what_another_adapter_does_meanwhile_is_not_captured():
    script = """
        a, b = (torch.ones(4, device=f"webgpu:{k}") for k in range(2))
        g = torch.webgpu.Graph()
        torch.manual_seed(1)
        with torch.webgpu.graph(g, stream=torch.webgpu.Stream(device=1)):
            assert torch.webgpu.current_device() == 1 and torch.webgpu.is_current_stream_capturing()
            b += torch.rand(4, device="webgpu:1")
            a += 1
            assert a.tolist() == [2] * 4 and a.max().item() == 2
            noise = torch.rand(4, device="webgpu:0")
        assert not torch.webgpu.is_current_stream_capturing()
        assert b.tolist() == [1] * 4
        g.replay()
        torch.manual_seed(1)
        assert torch.equal(b.cpu(), 1 + torch.rand(4, device="webgpu:1").cpu())
        assert torch.equal(noise.cpu(), torch.rand(4, device="webgpu:0").cpu())
        assert a.tolist() == [2] * 4
    """
    assert_ends_well(script, TORCH_WEBGPU_COPIES="2")


# ---- threads


def test_several_threads_replay(device):
    total = torch.zeros(5, device=device)
    g, _ = captured(lambda: total.add_(1))

    def work(_: int) -> float:
        own = torch.zeros(3, device=device)
        for _ in range(20):
            g.replay()
            own += 1
        return own.sum().item()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [60] * 4
    assert total.tolist() == [80] * 5


# ---- graphed callables


def test_make_graphed_callables_trains_like_the_module(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 3))
    eager = copy.deepcopy(model).to(device)
    graphed = copy.deepcopy(model).to(device)
    sample = torch.randn(4, 6, device=device, requires_grad=True)
    plain_forward = type(graphed).forward
    assert torch.webgpu.make_graphed_callables(graphed, (sample,)) is graphed
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (eager, graphed)]
    batches = [torch.randn(4, 6) for _ in range(3)]
    results = []
    for module, optimizer in zip((eager, graphed), optimizers, strict=True):
        torch.manual_seed(3)
        losses = []
        for batch in batches:
            x = batch.to(device).requires_grad_()
            optimizer.zero_grad()
            loss = module(x * 2).square().mean()
            loss.backward()
            optimizer.step()
            losses.append((loss.item(), x.grad.tolist()))
        results.append((losses, [p.tolist() for p in module.parameters()]))
    for actual, expected in zip(pytree.tree_leaves(results[1]), pytree.tree_leaves(results[0]), strict=True):
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)
    graphed.eval()
    x = torch.randn(7, 6, device=device)  # another shape: evaluation runs as it did before
    assert torch.equal(graphed(x), plain_forward(graphed, x))


def test_a_tuple_of_callables(device):
    def double(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"twice": x * 2, "once": x + 0}

    linear = nn.Linear(3, 2).to(device)
    x = torch.randn(5, 3, device=device, requires_grad=True)
    first, second = torch.webgpu.make_graphed_callables(
        (double, linear), ((x,), (torch.randn_like(x, requires_grad=True),))
    )
    value = torch.randn(5, 3, device=device, requires_grad=True)
    out = second(first(value)["twice"]).sum()
    out.backward()
    expected = value.detach().clone().requires_grad_()
    F.linear(expected * 2, linear.weight, linear.bias).sum().backward()
    assert torch.equal(value.grad, expected.grad)
    assert out.item() == pytest.approx(F.linear(value * 2, linear.weight, linear.bias).sum().item(), rel=1e-6)


def test_graphed_callables_refuse_what_torch_cuda_refuses(device):
    x = torch.ones(2, 2, device=device)
    hooked = nn.Linear(2, 2).to(device)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(AssertionError, match="hooks"):
        torch.webgpu.make_graphed_callables(hooked, (x,))
    with pytest.raises(AssertionError, match="only Tensors"):
        torch.webgpu.make_graphed_callables(lambda a, b: a * b, (x, 3))
    with torch.autocast("webgpu", dtype=torch.float16), pytest.raises(RuntimeError, match="cache_enabled"):
        torch.webgpu.make_graphed_callables(nn.Linear(2, 2).to(device), (x,))
    unused = x.clone().requires_grad_()
    used = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.webgpu.make_graphed_callables(lambda a, b: a * 2, (used, unused))
    call = torch.webgpu.make_graphed_callables(lambda a, b: a * 2, (used, unused), allow_unused_input=True)
    assert call(used, unused).tolist() == [[2, 2], [2, 2]]


# ---- other ways of running


@pytest.mark.parametrize("environment", [{"TORCH_WEBGPU_IMMEDIATES": "0"}, {"TORCH_WEBGPU_MAX_BINDING": "1000"}])
def test_parameters_in_a_uniform_buffer_and_bindings_in_windows(environment):
    script = """
        import torch.nn.functional as F
        torch.manual_seed(4)
        x = torch.randn(40, 20, device="webgpu")
        def step():
            return F.dropout((x @ x.t()).softmax(-1), 0.5).sum(0) + torch.rand(40, device="webgpu")
        g = torch.webgpu.Graph()
        with torch.webgpu.graph(g):
            y = step()
        for seed in (1, 2):
            torch.manual_seed(seed)
            x.copy_(torch.randn(40, 20))
            torch.manual_seed(seed)
            g.replay()
            first = y.cpu()
            g.replay()
            second = y.cpu()
            torch.manual_seed(seed)
            assert torch.equal(first, step().cpu()) and torch.equal(second, step().cpu())
            assert not torch.equal(first, second)
        g.reset()
    """
    assert_ends_well(script, **environment)


def test_profiles_show_the_kernels_of_replays(device):
    x = torch.ones(8, 8, device=device)
    g, y = captured(lambda: F.dropout((x @ x).softmax(-1), 0.5))
    torch.manual_seed(1)
    g.replay()
    expected = y.tolist()
    torch.manual_seed(1)
    with torch.webgpu.profile() as profile:
        g.replay()
    assert y.tolist() == expected
    assert "matmul" in profile.table()


def test_the_dump_lists_the_kernels(device, tmp_path):
    x = torch.ones(8, device=device)
    g, _ = captured(lambda: (x * 3).cumsum(0).flip(0).cumsum(0))
    path = tmp_path / "graph.dot"
    g.enable_debug_mode()
    g.debug_dump(str(path))
    text = path.read_text()
    assert text.startswith("digraph")
    assert "cumsum" in text
    assert "n0 -> n1" in text


# ---- documentation


def test_the_code_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 6
    output = assert_ends_well("\n".join(blocks))
    assert "cannot be read on the host while a graph is being captured" in output
