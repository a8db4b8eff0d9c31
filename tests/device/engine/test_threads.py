"""Threads, forks, interrupts and the end of the process: the device may be used from anywhere, and is left whole."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.device.processes import assert_ends_well, run_script
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_webgpu.engine.record import engine

THREADS = 6

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_threads(work: Callable[[int], object], count: int = THREADS) -> list[object]:
    """``work(0)`` to ``work(count - 1)``, at once; their results, or the first exception."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


# ---- threads


def test_threads_compute_at_once(device):
    def work(seed: int) -> torch.Tensor:
        x = torch.full((5, 7), float(seed), device=device)
        for step in range(30):
            x = (x @ torch.eye(7, device=device) + step).relu()
            if step % 7 == 0:
                x.sum().item()
        return x.cpu()

    for seed, result in enumerate(in_threads(work)):
        assert result.eq(seed + sum(range(30))).all()


def test_threads_train_their_own_models_with_one_seed_each(device):
    def work(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        x = torch.randn(16, 4, generator=generator)
        model, x = model.to(where), x.to(where)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    where = torch.device("cpu")
    expected = in_threads(work, 3)
    where = device
    for ours, theirs in zip(in_threads(work, 3), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_graph_of_one_thread_is_differentiated_in_another(device):
    x = torch.ones(3, device=device, requires_grad=True)
    losses = [(x * k).square().sum() for k in range(1, 5)]
    in_threads(lambda k: losses[k].backward(), 4)
    assert x.grad.tolist() == [2.0 * (1 + 4 + 9 + 16)] * 3


def test_each_thread_has_its_current_device_and_grad_mode(device):
    def work(_: int) -> tuple[int, bool]:
        return torch.webgpu.current_device(), torch.is_grad_enabled()

    with torch.no_grad():
        assert in_threads(work, 2) == [(0, True)] * 2


def test_an_error_in_one_thread_leaves_the_others_alone(device):
    def work(k: int) -> float:
        x = torch.ones(4, device=device)
        if k == 1:
            with pytest.raises(RuntimeError):
                x @ torch.ones(5, device=device)
        return (x * k).sum().item()

    assert in_threads(work, 4) == [0, 4, 8, 12]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_that_pins(device, workers):
    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    seen = []
    for x, y in DataLoader(data, batch_size=2, num_workers=workers, pin_memory=True):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        seen.append((x.sum(1) + y).cpu())
    assert torch.cat(seen).tolist() == [5 * k + 1 for k in range(6)]


def test_a_dataloader_over_device_tensors(device):
    data = TensorDataset(torch.arange(8.0, device=device))
    batches = [x for (x,) in DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(0))]
    assert all(x.device == device or x.device.type == device.type for x in batches)
    assert sorted(torch.cat(batches).tolist()) == list(range(8))


def test_the_timer_submits_what_nobody_waits_for(device):
    eng = engine()
    torch.webgpu.synchronize()
    torch.ones(3, device=device).add_(1)
    assert eng.pending_count
    for _ in range(200):
        if not eng.pending_count:
            break
        threading.Event().wait(0.05)
    assert not eng.pending_count


# ---- forks


@needs_fork
def test_a_forked_child_is_told_and_the_parent_goes_on():
    script = """
        import torch.multiprocessing as mp
        x = torch.ones(3, device="webgpu")
        y = (x + 1) * 2
        def child():
            torch.manual_seed(0)
            assert torch.webgpu._is_in_bad_fork()
            for use in (
                lambda: torch.zeros(1, device="webgpu"),
                lambda: torch.ones(1).to("webgpu"),
                lambda: x.add_(1),
                lambda: y.cpu(),
                lambda: repr(x),
                torch.webgpu.synchronize,
                torch.webgpu.memory_allocated,
                torch.webgpu.empty_cache,
            ):
                with pytest.raises(torch.webgpu.ForkError, match="spawn"):
                    use()
            assert torch.ones(3).sum() == 3
        for pending in (False, True):
            process = mp.get_context("fork").Process(target=child)
            process.start(); process.join()
            assert process.exitcode == 0
            x.mul_(1)
        assert x.tolist() == [1, 1, 1] and y.tolist() == [4, 4, 4]
    """
    assert_ends_well(script)


@needs_fork
def test_a_child_forked_while_another_thread_computes():
    """The engine's lock may be held by a thread that the child does not have."""
    script = """
        import torch.multiprocessing as mp
        def work():
            x = torch.ones(64, 64, device="webgpu")
            while not done.is_set():
                (x @ x).sum().item()
                started.set()
        def child():
            with pytest.raises(torch.webgpu.ForkError):
                torch.zeros(1, device="webgpu").item()
        started, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=work)
        thread.start(); started.wait()
        for _ in range(4):
            process = mp.get_context("fork").Process(target=child)
            process.start(); process.join(60)
            assert process.exitcode == 0
        done.set(); thread.join()
    """
    assert_ends_well(script)


@needs_fork
def test_a_dataloader_worker_that_touches_the_device():
    script = """
        from torch.utils.data import DataLoader, Dataset
        x = torch.ones(3, device="webgpu"); x.sum().item()
        class Wrong(Dataset):
            def __len__(self): return 4
            def __getitem__(self, index): return torch.ones(2, device="webgpu") * index
        with pytest.raises(torch.webgpu.ForkError, match="spawn"):
            list(DataLoader(Wrong(), num_workers=1, multiprocessing_context="fork"))
        assert x.sum().item() == 3
    """
    assert_ends_well(script)


# ---- interrupts


def test_an_interrupt_waits_until_a_flush_is_done():
    script = """
        import signal
        from torch_webgpu.runtime.device import Device
        plain = Device.submit
        def submit_interrupted(*arguments):
            signal.raise_signal(signal.SIGINT)
            return plain(*arguments)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell start out ignoring it
        torch.webgpu.set_batch_delay(0)  # the clock's thread would be interrupted instead
        x = torch.arange(4.0, device="webgpu")
        y, z = x @ x, x.cumsum(0)
        x.add_(1)
        Device.submit = submit_interrupted
        for submit in (torch.webgpu.flush_batch, torch.webgpu.synchronize, lambda: (x * 2).tolist()):
            z = z + x.cumsum(0)
            with pytest.raises(KeyboardInterrupt):
                submit()
        Device.submit = plain
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert y.item() == 14 and x.tolist() == [1, 2, 3, 4] and z.tolist() == [3, 10, 21, 36]
    """
    assert_ends_well(script)


# ---- the end


@pytest.mark.parametrize(
    "script",
    {
        "unused": "torch.webgpu",
        "pending": "x = torch.ones(100, device='webgpu'); x.add_(1)",
        "timer": "x = torch.ones(200, 200, device='webgpu')\nfor _ in range(30): x = x @ x\ntime.sleep(0.017)",
        "running": "x = torch.ones(300, 300, device='webgpu')\nfor _ in range(50): x = x @ x",
        "thread": (
            "def work():\n  for _ in range(30): torch.ones(99, device='webgpu').sum().item()\n"
            "threading.Thread(target=work).start()"
        ),
        "exit handler": (
            "import atexit\nx = torch.ones(9, device='webgpu')\natexit.register(lambda: print(x.sum().item()))"
        ),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_process_ends_quietly_whatever_is_going_on(script):
    printed = assert_ends_well(script[1])
    assert printed == ("9.0\n" if script[0] == "exit handler" else "")


def test_a_process_that_fails_tells_only_that():
    done = run_script("x = torch.ones(9, device='webgpu') + 1\nraise SystemExit(3)")
    assert (done.returncode, done.stderr) == (3, "")
    done = run_script("x = torch.ones(9, device='webgpu') + 1\nraise ValueError('mine')")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "mine" in done.stderr


# ---- importing


@pytest.mark.parametrize(
    "script",
    [
        "import torch",
        "import torch_webgpu.dtypes, torch",
        "from torch_webgpu.errors import ForkError",
    ],
)
def test_imports_in_any_order_are_silent_and_register_the_device(script):
    check = f"{script}\nimport torch, torch_webgpu\nassert torch.device('webgpu').type == 'webgpu' and torch.webgpu"
    done = subprocess.run([sys.executable, "-W", "error", "-c", check], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_autoload_torch_stands_alone():
    check = (
        "import sys, torch\nassert not hasattr(torch, 'webgpu') and 'torch_webgpu' not in sys.modules\n"
        "import torch_webgpu\nassert torch.ones(2, device='webgpu').sum().item() == 2"
    )
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-W", "error", "-c", check]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
