"""Several adapters: copies, guards, gradients and errors between ``webgpu:0`` and ``webgpu:1``."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_webgpu.patches import AT_REGISTRATION

COUNT = torch.webgpu.device_count()


def needs_two(test: Any) -> Any:
    skip = pytest.mark.skipif(COUNT < 2, reason=f"needs two adapters, this machine has {COUNT}")
    return pytest.mark.multi_device(skip(test))


@pytest.mark.skipif(COUNT > 1, reason="this machine has two adapters: the tests below run as they are")
def test_one_adapter_opened_twice_does_as_two():
    """The tests of this file, where there is one adapter only, in a process that has it as two devices."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = os.environ | {"TORCH_WEBGPU_COPIES": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout
    assert " 1 skipped" in done.stdout


FIRST, SECOND = torch.device("webgpu:0"), torch.device("webgpu:1")


@needs_two
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("where", [(FIRST, SECOND), (SECOND, FIRST)], ids=["0 to 1", "1 to 0"])
def test_copies_between_adapters(dtype, where):
    host = torch.arange(24).view(4, 6).remainder(7).to(dtype)
    source = host.to(where[0])
    assert source.device == where[0]
    for view in (source, source.t(), source[1:, ::2], source[0].expand(3, 6)):
        moved = view.to(where[1], non_blocking=True)
        assert moved.device == where[1]
        assert torch.equal(moved.cpu(), view.cpu())
    target = torch.zeros(6, 4, dtype=dtype, device=where[1])
    target.t().copy_(source)
    assert torch.equal(target.t().cpu(), host)


@needs_two
def test_a_copy_sees_what_was_recorded_before_it():
    x = torch.zeros(1000, device=FIRST)
    y = torch.zeros(1000, device=SECOND)
    for step in range(20):
        x.add_(1)
        y.copy_(x)
        x.copy_(y * 2)
        assert y[3].item() == 2 ** (step + 1) - 1


@needs_two
def test_guards_and_the_current_device():
    webgpu = torch.webgpu
    assert webgpu.current_device() == 0
    with webgpu.device(1):
        assert webgpu.current_device() == torch.accelerator.current_device_index() == 1
        assert torch.zeros(1, device="webgpu").device == SECOND
        with webgpu.device(0), webgpu.device_of(torch.ones(1, device=SECOND)):
            assert webgpu.current_device() == 1
        with webgpu.device(-1), webgpu.device_of(torch.ones(1)):
            assert webgpu.current_device() == 1
    assert webgpu.current_device() == 0
    try:
        webgpu.set_device(SECOND)
        assert torch.ones(2, device="webgpu").to("webgpu").device == SECOND
        assert torch.ones(2).webgpu().device == SECOND
        made = [
            torch.tensor([1.0], device="webgpu"),
            torch.as_tensor([1.0], device="webgpu"),
            torch.ones(1).to("webgpu"),
        ]
        made += [nn.Linear(1, 1).to("webgpu").weight, torch.ones(1, device=FIRST).to(torch.device("webgpu"))]
        assert {t.device for t in made} == {SECOND}
        assert torch.Generator("webgpu").device == SECOND
        assert torch.ones(1).to("webgpu:0").device == FIRST
    finally:
        webgpu.set_device(0)
    with torch.accelerator.device_index(1):
        assert torch.randn(2, device="webgpu").device == SECOND
    with torch.device("webgpu:1"):
        assert nn.Linear(2, 2).weight.device == SECOND
    with webgpu.stream(webgpu.Stream(1)):
        assert webgpu.current_device() == 1
    assert webgpu.get_device_name(1) == webgpu.get_device_properties(SECOND).name


@needs_two
def test_each_thread_has_its_own_current_device():
    seen = []

    def work() -> None:
        torch.webgpu.set_device(1)
        seen.append(torch.zeros(1, device="webgpu").device)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [SECOND]
    assert torch.zeros(1, device="webgpu").device == FIRST


@needs_two
def test_results_stay_where_their_tensors_are():
    x = torch.randn(3, 4, device=SECOND)
    made = [x @ x.t(), x.sum(), x.sort()[0], torch.cat([x, x]), torch.zeros_like(x), x.new_ones(2), torch.rand_like(x)]
    made += [
        x[x > 0],
        x.nonzero(),
        torch.nn.functional.dropout(x),
        x.to(torch.float16),
        x.exp_(),
        torch.where(x > 1, x, 0),
    ]
    assert {t.device for t in made} == {SECOND}


@needs_two
@pytest.mark.parametrize("multithreading", [True, False])
def test_a_training_step_on_the_second_adapter(multithreading):
    def train(where: torch.device | str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
        )
        x, y = torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 1, 0])
        model, x, y = model.to(where), x.to(where), y.to(where)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with torch.autograd.set_multithreading_enabled(multithreading):
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(checkpoint(model, x, use_reentrant=False), y).backward()
                optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    torch.testing.assert_close(train(SECOND), train("cpu"), atol=1e-4, rtol=1e-4)


@needs_two
def test_a_model_across_adapters():
    first, second = nn.Linear(4, 8).to(FIRST), nn.Linear(8, 2).to(SECOND)
    x = torch.randn(3, 4)
    second(first(x.to(FIRST)).relu().to(SECOND)).square().sum().backward()
    reference = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    reference[0].load_state_dict(first.state_dict())
    reference[2].load_state_dict(second.state_dict())
    reference(x).square().sum().backward()
    for p, q in zip([*first.parameters(), *second.parameters()], reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, atol=1e-5, rtol=1e-4)
    assert first.weight.grad.device == FIRST
    assert second.weight.grad.device == SECOND


@needs_two
def test_random_streams_are_apart():
    torch.manual_seed(3)
    a, b = torch.rand(4, device=FIRST), torch.rand(4, device=SECOND)
    assert torch.equal(a.cpu(), b.cpu())  # one seed, two streams of their own
    states = torch.webgpu.get_rng_state_all()
    c = torch.rand(4, device=SECOND)
    torch.webgpu.set_rng_state_all(states)
    torch.rand(4, device=FIRST)
    assert torch.equal(torch.rand(4, device=SECOND).cpu(), c.cpu())
    with torch.random.fork_rng(devices=[1], device_type="webgpu"):
        d = torch.rand(4, device=SECOND)
    assert torch.equal(torch.rand(4, device=SECOND).cpu(), d.cpu())


@needs_two
@pytest.mark.parametrize(
    "use",
    [
        lambda a, b: a + b,
        lambda a, b: a @ b,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: a.add_(b),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: torch.nn.functional.linear(a, b),
        lambda a, b: torch.add(a, a, out=b),
        lambda a, b: torch.addmm(a, a, b),
        lambda a, b: torch.nn.functional.layer_norm(a, (3,), b[0]),
        lambda a, b: torch.addcmul(a, a, b),
        lambda a, b: a.gather(0, b.long()),
    ],
    ids=("add", "matmul", "cat", "add_", "where", "linear", "out", "addmm", "layer_norm", "addcmul", "gather"),
)
def test_mixed_adapters_are_an_error(use):
    a, b = torch.ones(3, 3, device=FIRST), torch.ones(3, 3, device=SECOND)
    for one, other in ((a, b), (b, a)):
        # A signature that is known from one device must not hide the mistake.
        use(one.clone(), one.clone())
        with pytest.raises(
            RuntimeError, match=r"Expected all tensors to be on the same device.*webgpu:[01].*webgpu:[01]"
        ):
            use(one, other)
    assert (a.sum().item(), b.sum().item()) == (9, 9)


@needs_two
def test_counters_and_errors_are_per_adapter():
    webgpu = torch.webgpu
    before = webgpu.memory_allocated(0), webgpu.memory_allocated(1)
    x = torch.ones(1000, device=SECOND)
    assert (webgpu.memory_allocated(0), webgpu.memory_allocated(1)) == (before[0], before[1] + 4000)
    x[torch.tensor([5000], device=SECOND)]
    webgpu.synchronize(0)
    with pytest.raises(IndexError):
        webgpu.synchronize(1)
    event = webgpu.Event()
    event.record(webgpu.current_stream(1))
    event.wait()
    assert event.query()
    webgpu.reset_device(1)
    with pytest.raises(webgpu.DeviceLostError):
        x.cpu()
    assert torch.ones(3, device=FIRST).sum().item() == torch.ones(3, device=SECOND).sum().item() == 3


@needs_two
def test_saving_and_loading_between_adapters(tmp_path):
    torch.save({"x": torch.arange(4.0, device=SECOND)}, tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt")["x"].device == SECOND
    assert torch.load(tmp_path / "x.pt", map_location={"webgpu:1": "webgpu:0"})["x"].device == FIRST
    assert torch.load(tmp_path / "x.pt", map_location="cpu")["x"].tolist() == [0, 1, 2, 3]


@needs_two
def test_new_tensors_are_beside_theirs():
    x = torch.ones(1, device=SECOND)
    with torch.webgpu.device(1):
        pass  # from now on
    assert x.new_tensor([1.0]).device == SECOND
    assert torch.ones(1, device=FIRST).new_tensor([1.0]).device == FIRST


@needs_two
def test_a_python_backends_guard_still_answers_zero():
    """A canary for aten/dispatch/torch_patches.py: with_current_device."""
    with torch.webgpu.device(1):
        x = torch.ones(1)
        assert torch.Tensor.to.__wrapped__(x, "webgpu").device == FIRST
        assert torch.Tensor.new_tensor.__wrapped__(x, [1.0], device="webgpu").device == FIRST
        for make in (torch.tensor, torch.as_tensor, torch.asarray):
            assert make.__wrapped__([1.0], device="webgpu").device == FIRST


@needs_two
def test_a_python_backends_guard_still_counts_one_device():
    """A canary for aten/dispatch/torch_patches.py: run_backward_in_calling_thread."""
    rows = [patch for patch in AT_REGISTRATION if patch.target == "_engine_run_backward"]
    assert len(rows) == 2
    for row in rows:
        x = torch.ones(2, device=SECOND, requires_grad=True)
        loss = (x * x).sum()
        with pytest.raises(RuntimeError):
            row.plain((loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True)
        assert x.grad is None
