"""Bad input gets a clear error at the next synchronisation at the latest, and the process goes on working."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from tests.device.broken import TEXT, record_broken
from tests.device.memory_limit import memory_limit
from tests.device.processes import assert_ends_well

from torch_webgpu.engine.flush_reason import ASKED
from torch_webgpu.engine.record import engine
from torch_webgpu.errors import OutOfMemoryError, ShaderCompileError

MIB = 1 << 20


@pytest.fixture(autouse=True)
def goes_on(device: torch.device) -> Iterator[None]:
    """After every test: what was right before is right again, and no error is left over."""
    kept = torch.arange(5.0, device=device) * 2
    yield
    torch.webgpu.synchronize()
    assert (kept @ torch.ones(5, device=device)).item() == 20


# ---- no adapter


def test_without_an_adapter_everything_but_the_device_works():
    script = """
        assert not torch.webgpu.is_available() and torch.webgpu.device_count() == 0
        assert not torch.accelerator.is_available()
        torch.manual_seed(0), torch.webgpu.manual_seed_all(0), torch.webgpu.empty_cache()
        for use in (
            lambda: torch.zeros(1, device="webgpu"),
            lambda: torch.ones(1).to("webgpu"),
            lambda: torch.nn.Linear(2, 2, device="webgpu"),
            lambda: torch.webgpu.get_device_name(),
            lambda: torch.webgpu.synchronize(),
        ):
            with pytest.raises(torch.webgpu.NoAdapterError, match="apt install libvulkan1 mesa-vulkan-drivers"):
                use()
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward() is None
    """
    nowhere = "/nonexistent"
    assert_ends_well(script, VK_DRIVER_FILES=nowhere, VK_ICD_FILENAMES=nowhere, __EGL_VENDOR_LIBRARY_FILENAMES=nowhere)


# ---- devices

MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": lambda w, c: w + c,
    "radd": lambda w, c: c + w,
    "add_": lambda w, c: w.add_(c),
    "add_ to cpu": lambda w, c: c.add_(w),
    "mm": lambda w, c: w @ c,
    "addmm": lambda w, c: torch.addmm(c, w, w),
    "cat": lambda w, c: torch.cat([w, c]),
    "where": lambda w, c: torch.where(w > 0, w, c),
    "gather": lambda w, c: w.gather(0, c.long()),
    "linear": lambda w, c: F.linear(w, c),
    "embedding": lambda w, c: F.embedding(c.long(), w),
    "cross_entropy": lambda w, c: F.cross_entropy(w, c),
    "layer_norm": lambda w, c: F.layer_norm(w, (3,), c[0]),
    "batch_norm": lambda w, c: F.batch_norm(w, c[0], c[1], training=True),
    "conv1d": lambda w, c: F.conv1d(w[None], c[:, :, None]),
    "mse_loss": lambda w, c: F.mse_loss(w, c),
    "out=": lambda w, c: torch.add(w, w, out=c),
    "foreach": lambda w, c: torch._foreach_add([w], [c]),
    "isin": lambda w, c: torch.isin(w, c),
    "cdist": lambda w, c: torch.cdist(w, c),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_are_named_as_pytorch_names_them(device, name):
    complaint = r"Expected all tensors to be on the same device.*(webgpu:0.*cpu|cpu.*webgpu:0)"
    with pytest.raises(RuntimeError, match=complaint):
        MIXED[name](torch.ones(3, 3, device=device), torch.ones(3, 3))


def test_numbers_and_indices_may_be_on_the_cpu(device):
    x = torch.arange(4.0, device=device)
    assert (x + torch.tensor(1.0)).tolist() == [1, 2, 3, 4]
    assert torch.where(x > 1, x, torch.tensor(9.0)).tolist() == [9, 9, 2, 3]
    assert x[torch.tensor([2, 0])].tolist() == [2, 0]
    x[torch.tensor([True, False, False, True])] = 7
    assert x.tolist() == [7, 1, 2, 7]


def test_an_adapter_that_is_not_there(device):
    absent = torch.webgpu.device_count()
    for use in (
        lambda: torch.ones(1, device=f"webgpu:{absent}"),
        lambda: torch.webgpu.set_device(absent),
        lambda: torch.webgpu.device(absent),
        lambda: torch.webgpu.synchronize(absent),
        lambda: torch.accelerator.set_device_index(absent),
    ):
        with pytest.raises(RuntimeError, match=f"webgpu:{absent} does not exist: this machine has"):
            use()


# ---- indices


@pytest.mark.parametrize(
    ("words", "use"),
    [
        ("index: index 7", lambda x, i: x[i]),
        ("index_select: index 7", lambda x, i: x.index_select(0, i)),
        ("gather: index 7", lambda x, i: x.gather(0, i)),
        ("embedding: index 7", lambda x, i: F.embedding(i, x.view(4, 1))),
        ("index_put: index 7", lambda x, i: x.index_put_((i,), torch.ones(3, device=x.device))),
        ("scatter: index 7", lambda x, i: x.scatter(0, i, 1.0)),
        ("Target 7 is out of bounds. (nll_loss;", lambda x, i: F.cross_entropy(x.view(1, 4).expand(3, 4), i)),
    ],
)
def test_an_index_out_of_range_is_raised_at_the_next_synchronisation(device, words, use):
    x, index = torch.arange(4.0, device=device), torch.tensor([0, 7, 1], device=device)
    use(x, index)
    with pytest.raises(IndexError, match=re.escape(words)):
        torch.webgpu.synchronize()
    assert use(torch.arange(4.0, device=device), index.clamp(max=3)).sum().isfinite().item()


# ---- memory


@pytest.mark.usefixtures("settled")
def test_a_tensor_no_buffer_can_hold_is_refused_at_once(device):
    largest = torch.webgpu.get_device_properties().max_buffer_size
    before = torch.webgpu.memory_allocated()
    for use in (
        lambda: torch.empty(largest + 4, dtype=torch.uint8, device=device),
        lambda: torch.ones(1, device=device).expand(largest // 4 + 1).contiguous(),
    ):
        with pytest.raises(torch.OutOfMemoryError, match=r"cannot hold a tensor of .* GiB(.|\n)*in use"):
            use()
    assert torch.webgpu.memory_allocated() == before


def touch(tensors: list[torch.Tensor]) -> None:
    """Writes a little of each, so that they get their memory."""
    for t in tensors:
        t[:4].zero_()
        torch.webgpu.synchronize()


def test_a_software_adapter_does_not_promise_more_than_the_machine_has(device, monkeypatch):
    from torch_webgpu.runtime.host_memory import Budget
    from torch_webgpu.runtime.vulkan_memory import DeviceMemory

    torch.webgpu.empty_cache()
    pool = engine().device(0).opened.pool
    available = pool.reserved_bytes + 600 * MIB
    budget = Budget(lambda: DeviceMemory(available, 8 << 30))
    budget.join(pool)
    monkeypatch.setattr(pool, "_budget", budget)
    kept = [torch.empty(100 * MIB, dtype=torch.uint8, device=device) for _ in range(5)]
    with pytest.raises(torch.OutOfMemoryError, match=r"fill: .*tried to allocate 100(.|\n)*machine(.|\n)*in use"):
        touch(kept)
    kept.clear()
    assert torch.ones(3, device=device).sum().item() == 3


def fill(kept: list[torch.Tensor], count: int, elements: int, device: torch.device) -> None:
    """Appends tensors until the device refuses one; that one, too."""
    for _ in range(count):
        kept.append(torch.ones(elements, device=device))
        torch.webgpu.synchronize()


def test_out_of_memory_names_the_operation_and_gives_a_summary(device):
    kept = []
    with memory_limit(65 * MIB):
        with pytest.raises(torch.OutOfMemoryError, match=r"fill: .*tried to allocate 8.*MiB(.|\n)*in use"):
            fill(kept, 20, 2 * MIB, device)
        assert len(kept) == 9
        assert all(t.sum().item() == 2 * MIB for t in kept[:-1])
        with pytest.raises(torch.OutOfMemoryError, match="fill"):
            kept[-1].cpu()  # what could not be computed stays an error
        kept.clear()
        gc.collect()
        again = [torch.ones(2 * MIB, device=device) for _ in range(6)]
        assert [t.sum().item() for t in again] == [2 * MIB] * 6
    assert torch.webgpu.memory_allocated() < 65 * MIB


def test_pooled_memory_of_other_sizes_is_given_back_before_memory_is_out(device):
    with memory_limit(64 * MIB):
        for size in (1, 3, 5, 9, 11, 13, 14):
            x = torch.ones(size * MIB, device=device)
            assert x.sum().item() == size * MIB
            del x


def test_memory_runs_out_in_the_middle_of_a_batch(device):
    """More temporaries than fit at once, each dead before the next: what is encoded is submitted to make room."""
    with engine().using(fusion=False), memory_limit(48 * MIB):
        total = torch.zeros((), device=device)
        for size in range(1, 12):
            total += torch.ones(size * MIB // 2, device=device).mul(2).sum()
        assert total.item() == sum(range(1, 12)) * MIB


def test_tensors_that_died_make_room_for_new_ones(device):
    with memory_limit(48 * MIB):
        for _ in range(6):
            x = torch.ones(8 * MIB, device=device)
            torch.webgpu.flush_batch()
            del x
        assert torch.ones(8 * MIB, device=device).sum().item() == 8 * MIB


def test_a_training_step_that_runs_out_of_memory_leaves_the_weights(device):
    """The update depends on what could not be computed; the weights stay as they were, and a smaller batch trains."""
    model = torch.nn.Linear(4, 1 << 10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(batch: int) -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(batch, 4, device=device)).sigmoid().square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    step(8)
    before = [p.detach().cpu() for p in model.parameters()]
    with memory_limit(24 * MIB):
        with pytest.raises(torch.OutOfMemoryError):
            step(1 << 13)
        assert all(torch.equal(p.cpu(), b) for p, b in zip(model.parameters(), before, strict=True))
        gc.collect()
        losses = [step(8) for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.skipif(not os.environ.get("TORCH_WEBGPU_TEST_OOM"), reason="fills the GPU: set TORCH_WEBGPU_TEST_OOM=1")
def test_a_full_gpu(device):
    chunk = min(torch.webgpu.get_device_properties().max_buffer_size, 2 << 30) // 4
    kept = []
    with pytest.raises(torch.OutOfMemoryError, match="in use"):
        fill(kept, 1000, chunk, device)
    assert kept[0][-1].item() == 1
    kept.clear()
    gc.collect()
    assert torch.ones(chunk, device=device)[-1].item() == 1


# ---- shaders


def test_wgsl_that_does_not_compile_spoils_only_what_depends_on_it(device):
    x = torch.arange(3.0, device=device)
    before = x + 1
    bad = record_broken(x)
    after = x * 2
    worse = bad + after
    with pytest.raises(ShaderCompileError, match="broken") as caught:
        torch.webgpu.synchronize()
    assert TEXT in str(caught.value)
    assert " | " in str(caught.value)
    assert before.tolist() == [1, 2, 3]
    assert after.tolist() == [0, 2, 4]
    for spoilt in (bad, worse, bad[1:]):
        with pytest.raises(ShaderCompileError, match="broken"):
            spoilt.cpu()
    used = bad * 3
    with pytest.raises(ShaderCompileError, match="broken"):
        used.cpu()


@pytest.mark.usefixtures("settled")
def test_spoilt_tensors_are_given_back(device):
    before = torch.webgpu.memory_allocated()
    bad = record_broken(torch.ones(1000, device=device))
    with pytest.raises(ShaderCompileError):
        bad.cpu()
    del bad
    gc.collect()
    assert torch.webgpu.memory_allocated() == before


@pytest.mark.parametrize("again", [lambda: torch.webgpu.synchronize(), lambda: torch.ones(3, device="webgpu")])
def test_an_error_of_a_background_flush_is_raised_at_the_next_use_or_synchronisation(device, again):
    eng = engine()
    torch.webgpu.synchronize()
    bad = record_broken(torch.ones(3, device=device))
    failed = Thread(target=lambda: setattr(eng, "error", eng.error or _error_of(lambda: eng.flush(ASKED))))
    failed.start()
    failed.join()
    with pytest.raises(ShaderCompileError):
        again()
    assert (torch.ones(3, device=device) + 1).tolist() == [2, 2, 2]
    del bad


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@pytest.mark.usefixtures("settled")
def test_a_kernel_that_does_not_compile_gives_back_what_its_batch_takes_for_itself(device):
    x = torch.ones(1 << 20, device=device)
    torch.webgpu.synchronize()
    before = torch.webgpu.memory_allocated()
    total, bad = x.sum(), record_broken(x)  # partial sums are in memory that belongs to no tensor
    with pytest.raises(ShaderCompileError, match="broken"):
        bad.tolist()
    assert total.item() == 1 << 20
    del total, bad
    gc.collect()
    torch.webgpu.synchronize()
    assert torch.webgpu.memory_allocated() == before


# ---- lost devices


def test_a_lost_device_says_so_and_opens_again():
    script = """
        from torch_webgpu.engine.record import engine
        x = torch.arange(4.0, device="webgpu")
        y = (x @ x).exp()
        torch.webgpu.synchronize()
        engine().device(0).opened.native.destroy()
        for use in (
            lambda: (x + 1).cpu(),
            lambda: torch.ones(3, device="webgpu").sum().item(),
            lambda: torch.webgpu.synchronize(),
            lambda: x.cpu(),
        ):
            with pytest.raises(torch.webgpu.DeviceLostError, match="lost"):
                use()
        pending = x * 2
        for _ in range(2):
            torch.webgpu.reset_device()
            for old in (x, y, x[1:], pending):
                with pytest.raises(torch.webgpu.DeviceLostError, match="reset"):
                    old.cpu()
            with pytest.raises(torch.webgpu.DeviceLostError, match="reset"):
                (x + 1).sum().item()
            new = torch.ones(100, 100, device="webgpu", requires_grad=True)
            (new @ new).sum().backward()
            assert new.grad.sum().item() == 2e6
        del old, x, y, pending, new
        assert torch.webgpu.memory_allocated() == 0
    """
    assert_ends_well(script)


def test_each_use_of_a_lost_device_says_so_whichever_comes_first():
    script = """
        from torch_webgpu.engine.record import engine
        uses = [
            lambda: (x + 1).cpu(),
            lambda: torch.ones(3, device="webgpu").sum().item(),
            lambda: torch.webgpu.synchronize(),
            lambda: x.cpu(),
            lambda: torch.ones(3).to("webgpu"),
        ]
        for k in range(len(uses)):
            x = torch.arange(4.0, device="webgpu")
            (x @ x).exp()
            torch.webgpu.synchronize()
            native = engine().device(0).opened.native
            native.destroy()
            if k % 2:  # as where the library tells it only with an error
                native.sink.lost = None
                native.sink.errors.append(("internal", "Parent device is lost"))
                with pytest.raises(torch.webgpu.DeviceLostError):
                    native.sink.take()
            for use in uses[k:] + uses[:k]:
                with pytest.raises(torch.webgpu.DeviceLostError, match="lost"):
                    use()
            torch.webgpu.reset_device()
    """
    assert_ends_well(script)


def test_out_of_memory_is_pytorchs():
    assert OutOfMemoryError is torch.OutOfMemoryError is torch.webgpu.OutOfMemoryError


WHERE = """
import traceback, torch, torch_webgpu
import torch.nn.functional as F
weight = torch.rand(4, 3, device="webgpu", requires_grad=True)
index = torch.tensor([0, 9], device="webgpu")
scaled = weight * 2
try:
    found = F.embedding(index, scaled)  # here
    total = (found + 1).sum()
    total.item()  # later
except IndexError as error:
    print(traceback.extract_tb(error.__traceback__)[0].lineno, error)
print(F.embedding(index % 4, scaled).shape)
"""


@pytest.mark.parametrize("debug", ["where", ""])
def test_the_line_that_used_an_index_raises_when_that_is_asked_for(debug):
    environment = os.environ | {"TORCH_WEBGPU_DEBUG": debug}
    found = subprocess.run([sys.executable, "-c", WHERE], env=environment, capture_output=True, text=True, check=True)
    error, shape = found.stdout.splitlines()
    line, message = error.split(" ", 1)
    here, later = (n for n, text in enumerate(WHERE.splitlines(), 1) if text.endswith(("# here", "# later")))
    assert shape == "torch.Size([2, 3])"
    assert int(line) == (here if debug else later)
    assert message.startswith("embedding: index 9 is out of bounds for dimension 0 with size 4")
    assert ("TORCH_WEBGPU_DEBUG=where" in message) == (not debug)
