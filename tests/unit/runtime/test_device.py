"""What a device does, on the double: every call it makes is checked, and what it computes is seen."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.unit.runtime import programs
from tests.unit.runtime.programs import add, add_last, double, filled, native, words
from tests.webgpu_double import CheckedWebGPU, Faults

from torch_webgpu.errors import ShaderCompileError, WebGPUError
from torch_webgpu.runtime import transfer
from torch_webgpu.runtime.commands import ClearBuffer, CopyBuffer
from torch_webgpu.runtime.device import Device
from torch_webgpu.runtime.observer import Observer

N = 64


def test_nothing_is_opened_before_it_is_used(webgpu: CheckedWebGPU) -> None:
    device = programs.device(webgpu)
    assert device.stats.buffers == 0
    assert device.submissions == 0
    assert device.free_sizes == []
    assert "not opened" in device.memory_summary()
    device.empty_cache()
    device.finish()
    device.close()
    assert not webgpu.devices


def test_an_adapter_that_refuses(webgpu: CheckedWebGPU) -> None:
    webgpu.faults.opens = False
    with pytest.raises(WebGPUError, match="Checked GPU refuses to open: no device today"):
        programs.device(webgpu).allocate(4)


def test_commands_run_in_order(device: Device) -> None:
    x, y = filled(device, range(N)), device.allocate(4 * N)
    device.submit(
        [
            ClearBuffer(y, 0, 4 * N),
            add(x, y, N, 1),
            double(y, N),
            CopyBuffer(y, 0, x, 0, 4 * N),
            ClearBuffer(x, 0, 8),
            add(x, y, N, 5),
        ]
    )
    assert words(device, y, N) == [5, 5, *[2 * (k + 1) + 5 for k in range(2, N)]]


@pytest.mark.parametrize("without", [[], ["immediates"]], ids=["immediates", "uniform"])
def test_parameters_of_any_size_arrive(webgpu: CheckedWebGPU, without: list[str]) -> None:
    device = programs.device(webgpu, without=without)
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    device.submit([add(x, y, N, 3), add_last(y, x, N, 40), add(x, y, N, 500), double(y, N)])
    assert words(device, y, N) == [2 * 543] * N
    device.close()


def test_more_parameters_than_a_uniform_buffer_holds_take_several_submissions(device: Device) -> None:
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    before = device.submissions
    device.submit([add_last(*pair, N, 1) for pair in [(x, y), (y, x)] * 600])
    assert device.submissions > before + 1
    assert words(device, x, N) == [1200] * N


def test_buffers_larger_than_a_binding_are_bound_in_windows(webgpu: CheckedWebGPU) -> None:
    device = programs.device(webgpu, limits={"max-storage-buffer-binding-size": 1024})
    n = 600  # 2,400 bytes: three windows, the last one shorter
    x, y = filled(device, range(n)), device.allocate(4 * n)
    device.submit([add(x, y, n, 7)])
    assert words(device, y, n) == [k + 7 for k in range(n)]
    with pytest.raises(WebGPUError, match="this adapter allows 8"):
        device.submit([add(device.allocate(8192), device.allocate(8192), n, 7)])
    device.close()


def test_what_does_not_fit_is_refused_whole(device: Device) -> None:
    x, y = filled(device, [1] * N), filled(device, [2] * N)
    good = add(x, y, N, 1)
    for bad in (
        good._replace(params=b"1234"),
        good._replace(grid=(1 << 16, 1, 1)),
        good._replace(buffers=(x,)),
        good._replace(buffers=(x, x)),
    ):
        with pytest.raises(WebGPUError):
            device.submit([good, bad])
        with pytest.raises(WebGPUError):
            device.encode_graph([good, bad])
        with pytest.raises(WebGPUError):
            device.prepare_again("bad", [good, bad])
    assert words(device, y, N) == [2] * N


def test_a_kernel_that_the_compiler_refuses(device: Device, faults: Faults) -> None:
    faults.refused.add("add")
    x, y = device.allocate(4 * N), device.allocate(4 * N)
    for refused in (
        lambda: device.submit([double(y, N), add(x, y, N, 1)]),
        lambda: device.compile(programs.ADD),
        lambda: device.encode_graph([double(y, N), add(x, y, N, 1)]),
    ):
        with pytest.raises(ShaderCompileError, match="kernel add does not compile"):
            refused()
    device.prepare([add(x, y, N, 1), add_last(x, y, N, 1), double(y, N)])  # leaves it to whoever runs it
    faults.refused.clear()
    device.prepare([add(x, y, N, 1), add_last(x, y, N, 1), double(y, N)])
    device.submit([add(x, y, N, 1), add_last(x, y, N, 1)])


OFFSETS = [(0, 3), (1, 2), (2, 5), (3, 1), (4, 4), (5, 11), (0, 0), (7, 0), (0, 16)]


@pytest.mark.parametrize(("offset", "size"), OFFSETS)
def test_transfers_of_any_alignment_touch_only_their_bytes(device: Device, offset: int, size: int) -> None:
    buffer = device.allocate(16)
    expected = np.arange(100, 116, dtype=np.uint8)
    device.upload(buffer, 0, expected)
    data = np.arange(1, size + 1, dtype=np.uint8)
    device.upload(buffer, offset, data)
    expected[offset : offset + size] = data
    whole, part = device.download([(buffer, 0, 16), (buffer, offset, size)])
    assert np.array_equal(whole, expected)
    assert np.array_equal(part, data)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_transfers_in_chunks(device: Device, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    monkeypatch.setattr(transfer, "_CHUNK_BYTES", 1 << 12)
    size = 5 * 4096 + 2
    data = np.random.default_rng(offset).integers(0, 256, size, np.uint8)
    buffer = device.allocate(size + 8)
    device.upload(buffer, offset, data)
    given = np.empty(size, np.uint8)
    (whole,) = device.download([(buffer, offset, size), (buffer, offset + 1, size - 1)], [given])
    assert np.array_equal(given, data)
    assert np.array_equal(whole, data[1:])


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (0, 260), (256, 1), (255, 2)])
def test_transfers_outside_the_buffer_are_refused(device: Device, offset: int, size: int) -> None:
    buffer = device.allocate(256)
    for refused in (
        lambda: device.upload(buffer, offset, bytes(size)),
        lambda: device.download([(buffer, offset, size)]),
        lambda: device.opened.transfer.begin([(buffer, offset, size)], [np.empty(size, np.uint8)]),
        lambda: device.begin_readbacks((buffer, offset, size), np.empty(size, np.uint8)),
    ):
        with pytest.raises(WebGPUError, match="load of"):
            refused()


def test_readbacks_at_the_end_of_submissions(device: Device) -> None:
    x, y = filled(device, [1] * N), device.allocate(4 * N)
    targets = [np.empty(4 * N, np.uint8) for _ in range(4)]
    first = device.opened.transfer.begin([(y, 0, 4 * N)], targets[:1])
    assert first is not None
    device.submit([add(x, y, N, 1), *first.copies])
    device.finish_readback(first)
    parts = [part for target in targets[1:] for part in device.begin_readbacks((y, 0, 4 * N), target)]
    device.submit([add(x, y, N, 2), *[copy for part in parts for copy in part.copies], add(x, y, N, 3)])
    device.empty_cache()  # leaves alone what is underway
    for part in reversed(parts):
        device.finish_readback(part)
    assert [target.view(np.uint32).tolist() for target in targets] == [[2] * N, *[[3] * N] * 3]
    again = device.begin_readbacks((y, 0, 4 * N), targets[0])  # never finished
    device.submit(again[0].copies)


def test_a_submission_waits_for_its_uploads_and_an_upload_for_earlier_submissions(device: Device) -> None:
    x, y, z = filled(device, [0] * N), device.allocate(4 * N), device.allocate(4 * N)
    device.submit([add(x, y, N, 1)])
    device.upload(x, 0, np.full(N, 5, np.uint32))
    device.submit([add(x, z, N, 1)])
    assert (words(device, y, 1), words(device, z, 1)) == ([1], [6])


def test_uploads_alone_are_done_after_synchronize(device: Device) -> None:
    x = filled(device, range(N))
    device.synchronize()
    assert native(device).submissions == 2  # clearing the error flags, and this
    assert not native(device)._writes
    assert words(device, x, N) == list(range(N))


def test_marks(device: Device, faults: Faults) -> None:
    faults.late_polls = 2
    x = filled(device, [0] * N)
    device.submit([double(x, N)])
    early = device.mark()
    assert [early() for _ in range(3)] == [False, False, True]
    device.submit([double(x, N)])
    late = device.mark()
    assert not late()
    device.synchronize()
    assert late()
    assert early()


def test_work_is_another_value_after_every_submission(device: Device) -> None:
    x = device.allocate(4)
    before = device.work
    assert device.work == before
    device.submit([ClearBuffer(x, 0, 4)])
    assert device.work != before


def test_an_observer_is_given_the_submissions(device: Device) -> None:
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    graph = device.encode_graph([add(x, y, N, 1)])
    seen: list[int] = []

    class Counting(Observer):
        def submit(self, commands: object) -> None:
            seen.append(len(tuple(commands)))  # type: ignore[call-overload]
            super().submit(commands)  # type: ignore[arg-type]

    with Counting(device):
        device.submit([add(x, y, N, 1), double(y, N)])
        device.replay(graph)
    graph.release()
    assert seen == [2, 1]
    assert words(device, y, 1) == [1]


def test_many_kernels_and_groups_leave_the_cache_again(webgpu: CheckedWebGPU) -> None:
    device = programs.device(webgpu)
    cache = device.opened.pipelines
    cache.recent.limit, cache._pipelines.limit = 8, 2
    buffers = [filled(device, [k] * N) for k in range(12)]
    for _ in range(2):
        for k, (x, y) in enumerate(pairwise(buffers)):
            device.submit([add(x, y, N, 1), add_last(y, x, N, 0), double(buffers[k], N)])
    assert device.stats.pipelines <= 2
    assert device.stats.bind_groups <= 8
    device.release_all(buffers)
    device.empty_cache()
    assert device.stats.bind_groups == 0
    device.close()


def test_a_software_adapter_says_which_kernels_run_first_while_it_is_waited_for(webgpu: CheckedWebGPU) -> None:
    device = programs.device(webgpu, info={"adapter_type": "CPU"})
    x = filled(device, [1] * N)
    device.submit([double(x, N)])
    assert words(device, x, 1) == [2]
    device.synchronize()
    device.close()
