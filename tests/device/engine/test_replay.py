"""Recordings that come back: executables, where batches end, what is the same every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from tests.device.processes import assert_ends_well
from torch import nn

from torch_webgpu.engine import executable as executables
from torch_webgpu.engine import tensor as engine_tensor
from torch_webgpu.engine.executable import Executable
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.tensor import Mailbox, Template
from torch_webgpu.errors import WebGPUError
from torch_webgpu.runtime.buffers import BufferPool
from torch_webgpu.runtime.encoder import Encoder
from torch_webgpu.runtime.pipelines import PipelineCache


@pytest.fixture(autouse=True)
def no_timer() -> Iterator[None]:
    """Batches end by what they hold alone."""
    torch.webgpu.flush_batch()
    torch.webgpu.set_batch_delay(0)
    yield
    torch.webgpu.set_batch_delay(16)


def program(x: torch.Tensor) -> list[torch.Tensor]:
    """Products, chains, a write through a view, intermediates that die, a reduction, values that stay."""
    y = (x * 2 + 1).relu()
    z = y @ y.t()
    z[1:3].mul_(0.5)
    w = torch.softmax(z, 1)
    y = (w - z).tanh()
    return [y.sum(0), w, z.cumsum(1), y @ w]


def test_a_program_gives_what_its_first_run_gave(device: torch.device) -> None:
    for seed in range(6):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
        results = program(x.to(device))
        torch.webgpu.flush_batch()
        for actual, expected in zip(results, program(x), strict=True):
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    ("owner", "part", "calls_before"),
    [
        (BufferPool, "_take", 0),
        (BufferPool, "_take", 3),
        (PipelineCache, "bound", 0),
        (PipelineCache, "bound", 3),
        (Encoder, "submit_prepared", 0),
    ],
)
def test_a_program_that_fails_is_undone_and_run_step_by_step(
    owner: type, part: str, calls_before: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(8, 5)
    on_device = x.to(device)
    for _ in range(3):
        results = program(on_device)
        torch.webgpu.flush_batch()
    del results
    torch.webgpu.synchronize()
    torch.webgpu.empty_cache()  # buffers and bind groups are to be made anew
    before = torch.webgpu.memory_allocated(), torch.webgpu.memory_stats()["active.all.current"]
    real, run, calls = getattr(owner, part), Executable.run, []

    def fail_once(self: object, *args: object, **kwargs: object) -> object:
        calls.append(in_program[-1])
        if calls.count(True) == calls_before + 1 and calls[-1]:
            raise WebGPUError("out of luck")
        return real(self, *args, **kwargs)

    in_program = [False]

    def run_program(*args: object) -> None:
        in_program.append(True)
        try:
            run(*args)  # type: ignore[arg-type]
        finally:
            in_program.pop()

    monkeypatch.setattr(owner, part, fail_once)
    monkeypatch.setattr(Executable, "run", run_program)
    results = program(on_device)
    torch.webgpu.flush_batch()
    monkeypatch.undo()
    assert calls.count(True) > calls_before, "the recording did not come back as a program"
    for actual, expected in zip(results, program(x), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    del results, actual
    torch.webgpu.synchronize()
    assert (torch.webgpu.memory_allocated(), torch.webgpu.memory_stats()["active.all.current"]) == before


def test_a_program_follows_moving_offsets_changing_numbers_and_other_buffers(device: torch.device) -> None:
    base = torch.randn(64)
    on_device, kept = base.to(device), []
    for step in range(12):
        start, number = 8 * (step // 2 % 3), 0.5 * (step // 4)  # each stays for a while, then changes
        for where in (on_device, base):
            results = program(where[start : start + 40].view(8, 5))
            kept.append([*results, where[start : start + 8] * number - number])
        torch.webgpu.flush_batch()
        if step % 3 == 2:
            del kept[:-2]
    assert engine().plans.hits
    for actual, expected in zip(kept[::2], kept[1::2], strict=True):
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)


def test_parameters_that_were_written_in_part_are_written_again(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error between them, and then a recording with the offsets of the one before."""
    base = torch.randn(64)
    on_device = base.to(device)

    def products(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.t() @ x  # without numbers: only where x starts is a parameter
        return [y, y @ y, y.cumsum(0)]

    def run(start: int, fails: bool) -> None:
        results = products(on_device[start : start + 40].view(8, 5))
        if fails:
            write, calls = executables._write_word, count()
            monkeypatch.setattr(executables, "_write_word", lambda *a: write(*a) if next(calls) != 1 else 1 / 0)
        torch.webgpu.flush_batch()
        monkeypatch.undo()
        for actual, expected in zip(results, products(base[start : start + 40].view(8, 5)), strict=True):
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)

    for start, fails in [(0, False)] * 3 + [(8, True), (0, False), (8, False)]:
        run(start, fails)


def test_a_program_looks_up_again_what_was_evicted(device: torch.device) -> None:
    x = torch.randn(8, 5)
    on_device = x.to(device)
    for step in range(8):
        results = program(on_device)
        torch.webgpu.flush_batch()
        if step == 4:
            engine().device(0).opened.pipelines._pipelines.evict()
        if step == 6:
            del results
            torch.webgpu.empty_cache()
            continue
        for actual, expected in zip(results, program(x), strict=True):
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_a_loop_finds_its_plans_and_bind_groups_again_wherever_its_first_batch_began(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3)
    )
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(6, 12, device=device), torch.tensor([0, 1, 2, 0, 1, 2], device=device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    extra = torch.zeros(3, device=device)
    scheduler, stats = engine().plans, engine().device(0)
    for _ in range(2):
        extra = extra * 1.5 + 1  # moves the beginning of what follows
        for _ in range(40):
            step()
        misses, groups = scheduler.misses, stats.stats.bind_groups
        for _ in range(40):
            step()
        assert scheduler.misses == misses
        assert stats.stats.bind_groups == groups


def test_numbers_of_allocations_begin_again_and_pass_over_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    first = engine_tensor.FIRST_NUMBER
    monkeypatch.setattr(engine_tensor, "LAST_NUMBER", first + 10)
    mailbox = Mailbox()
    mailbox._end = first + 10
    template = Template((3,), (1,), torch.float32, 0)
    kept = [mailbox.make(template) for _ in range(10)]
    stays = [kept[k] for k in (0, 3, 4, 9)]
    del kept
    mailbox.forget(mailbox.dead())
    seen = []
    for _ in range(40):
        tensor, allocation = mailbox.make(template)
        seen.append(allocation.number - first)
        assert mailbox.allocations[tensor.data_ptr() >> engine_tensor.ADDRESS_BITS] is allocation
        del tensor
        mailbox.forget(mailbox.dead())
    assert set(seen) == {1, 2, 5, 6, 7, 8}
    assert mailbox.rounds > 1
    assert all(
        mailbox.allocations[tensor.data_ptr() >> engine_tensor.ADDRESS_BITS] is allocation
        for tensor, allocation in stays
    )


def test_tensors_may_outlive_the_mailbox():
    """At the end of the interpreter they do, and their deaths are still written down."""
    script = """
        import gc
        from torch_webgpu.engine.tensor import Mailbox, Template
        mailbox = Mailbox()
        tensors = [mailbox.make(Template((3,), (1,), torch.float32, 0))[0] for _ in range(3000)]
        del mailbox
        gc.collect()
        others = [bytearray(b"x" * (1 << 18)) for _ in range(50)]
        tensors.clear()
        assert all(block == b"x" * (1 << 18) for block in others)
    """
    assert_ends_well(script)


def test_an_address_of_the_host_names_no_allocation(device: torch.device) -> None:
    """What allocations are found by lies above all memory of the process."""
    on_host = torch.ones(3)
    assert engine().allocations_at([on_host.data_ptr()]) is None
    assert on_host.data_ptr() < engine_tensor.FIRST_NUMBER << engine_tensor.ADDRESS_BITS


def test_kernels_that_draw_random_numbers_draw_new_ones_at_each_call(device: torch.device) -> None:
    x = torch.ones(1000, device=device)
    for draw in (
        lambda: F.rrelu(-x, training=True),
        lambda: F.dropout(x, 0.5),
        lambda: torch.multinomial(x, 10),
        lambda: torch.bernoulli(x * 0.5),
        lambda: F.fractional_max_pool2d(x.view(1, 1, 20, 50), 2, output_size=(9, 24)) + torch.rand_like(x[:1]),
    ):
        values = [draw().cpu() for _ in range(12)]
        assert all(not torch.equal(values[-1], v) for v in values[:-1])


def test_lazily_conjugated_and_negated_arguments_are_other_arguments(device: torch.device) -> None:
    a, b = torch.randn(4, 4, dtype=torch.complex64), torch.randn(4, 4, dtype=torch.complex64)
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t,
        lambda t: t.conj(),
        lambda t: torch._neg_view(t),
        lambda t: t.t(),
        lambda t: t.mH,
        lambda t: t.conj().imag.to(t.dtype),
    ]
    for _ in range(2):
        for left in views:
            for right in views:
                for fn in (torch.matmul, torch.add, lambda x, y: torch.cumsum(x, 0) + y, torch.dot):
                    x, y = (a[0], b[1]) if fn is torch.dot else (a, b)
                    if fn is torch.dot and (left(a).stride() != a.stride() or right(b).stride() != b.stride()):
                        continue
                    expected = fn(left(x), right(y))
                    torch.testing.assert_close(fn(left(x.to(device)), right(y.to(device))).cpu(), expected)


def test_offsets_are_counted_in_the_elements_of_each_view(device: torch.device) -> None:
    """A kernel that looks at a complex tensor's parts has it at other offsets than the tensor itself."""
    x = torch.randn(40, dtype=torch.complex64)
    y = x.to(device)
    for start in (0, 4, 8, 12):
        part, expected = y[start : start + 8], x[start : start + 8]
        torch.testing.assert_close(part.abs().cpu(), expected.abs())
        torch.testing.assert_close(torch.view_as_real(part).sum(0).cpu(), torch.view_as_real(expected).sum(0))
        torch.testing.assert_close(part.cumsum(0).cpu(), expected.cumsum(0))
        torch.testing.assert_close(part.sum().cpu(), expected.sum())
        torch.testing.assert_close(part.norm().cpu(), expected.norm())
