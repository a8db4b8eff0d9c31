"""Captured graphs: replays do what the same eager calls would have done, to the bit."""

from __future__ import annotations

import copy
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.device.processes import assert_ends_well
from torch import nn
from torch.utils import _pytree as pytree

from .graphs import (
    captured,
    goes_on,  # noqa: F401  runs around every test
)

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


@pytest.mark.parametrize("environment", [{"TORCH_WEBGPU_IMMEDIATES": "0"}, {"TORCH_WEBGPU_MAX_BINDING": "4000"}])
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
    text = (Path(__file__).parents[3] / "docs" / "graphs.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 6
    output = assert_ends_well("\n".join(blocks))
    assert "cannot be read on the host while a graph is being captured" in output


def test_a_graph_is_executables_with_their_arguments(device: torch.device) -> None:
    x = torch.randn(4, 8, device=device)
    graph = torch.webgpu.Graph()
    with torch.webgpu.graph(graph):
        y = (x @ x.t()).relu()
        torch.webgpu.flush_batch()
        z = y.cumsum(0) * 2
    calls = graph._captured.calls
    executables = [call.executable for call in calls if call.executable is not None]
    assert len(executables) == 2
    for call in calls:
        assert call.executable is None or len(call.commands) == len(call.executable.plan.steps)
    graph.replay()
    torch.testing.assert_close(z.cpu(), ((x.cpu() @ x.cpu().t()).relu()).cumsum(0) * 2, rtol=1e-4, atol=1e-5)


def test_a_profile_names_what_a_replay_runs(device: torch.device) -> None:
    """Each kernel by its operation, with the bytes of the tensors that it reads and writes."""
    x = torch.randn(64, 32, device=device)
    graph = torch.webgpu.Graph()
    with torch.webgpu.graph(graph):
        captured = (x @ x.t() + 1).sum(1)
    with torch.webgpu.profile() as eager:
        computed = (x @ x.t() + 1).sum(1)
    with torch.webgpu.profile() as replayed:
        graph.replay()
    named = [(event.name, event.operation, event.size_bytes) for event in eager.events]
    assert named[0][0] != "mm+add"
    assert named[0][1:] == ("mm+add", (2 * 64 * 32 + 64 * 64) * 4)
    assert [(event.name, event.operation, event.size_bytes) for event in replayed.events] == named
    assert torch.equal(captured, computed)
