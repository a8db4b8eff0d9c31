"""The runtime on a real adapter: memory, submission, transfers, errors, process life."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.device.processes import skip_in_a_browser

from torch_webgpu.errors import ShaderCompileError, WebGPUError
from torch_webgpu.plan import size_class
from torch_webgpu.runtime.runtime import ClearBuffer, CopyBuffer, Device, Dispatch, devices
from torch_webgpu.wgsl.kernel import Binding, Kernel, Param

ADD_SCALAR = Kernel(
    "add_scalar",
    "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) g: vec3<u32>) {\n"
    "  if (g.x < P.n) { y_store(g.x, x_load(g.x) + P.s); }\n}",
    (Binding("x", "f32"), Binding("y", "f32", "read_write")),
    (Param("n"), Param("s", "f32")),
    workgroup_size=(64, 1, 1),
)
RAISE_FLAG = Kernel(
    "raise_flag",
    "@compute @workgroup_size(1) fn main() { flags_atomic_max(0u, 7u); }",
    (Binding("flags", "u32", "read_write", "atomic"),),
    workgroup_size=(1, 1, 1),
)


@pytest.fixture(scope="module")
def device() -> Device:
    found = devices()
    if not found:
        pytest.skip("no WebGPU adapter on this machine")
    return found[0]


def add_scalar(source, target, n: int, scalar: float) -> Dispatch:
    return Dispatch(ADD_SCALAR, (source, target), struct.pack("If", n, scalar), (-(-n // 64), 1, 1))


def read_f32(device, buffer, n: int) -> np.ndarray:
    return device.download([(buffer, 0, 4 * n)])[0].view(np.float32)


def in_new_process(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``script`` after the names above are imported."""
    prelude = "from tests.device.runtime.test_runtime import *\ndevice = devices()[0]\n"
    return subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


# ---- submission, transfers


def test_a_dispatch_computes_what_its_kernel_says(device):
    n = 1000
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    values = np.arange(n, dtype=np.float32)
    device.upload(x, 0, values)
    device.submit([add_scalar(x, y, n, 2.5)])
    assert np.array_equal(read_f32(device, y, n), values + 2.5)


def test_commands_of_one_submission_run_in_order(device):
    n = 64
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    device.submit(
        [
            ClearBuffer(x, 0, 4 * n),
            add_scalar(x, y, n, 1.0),
            add_scalar(y, x, n, 1.0),
            CopyBuffer(x, 0, y, 0, 4 * (n // 2)),
            add_scalar(y, x, n, 10.0),
        ]
    )
    expected = np.where(np.arange(n) < n // 2, 12.0, 11.0).astype(np.float32)
    assert np.array_equal(read_f32(device, x, n), expected)


def test_an_upload_comes_after_submitted_work_and_before_later_work(device):
    n = 64
    x, y, z = (device.allocate(4 * n) for _ in range(3))
    device.upload(x, 0, np.zeros(n, np.float32))
    device.submit([add_scalar(x, y, n, 1.0)])
    device.upload(x, 0, np.full(n, 5, np.float32))
    device.submit([add_scalar(x, z, n, 1.0)])
    first, second = device.download([(y, 0, 4 * n), (z, 0, 4 * n)])
    assert set(first.view(np.float32)) == {1.0}
    assert set(second.view(np.float32)) == {6.0}


@pytest.mark.parametrize(("offset", "size"), [(0, 3), (1, 2), (2, 5), (3, 1), (4, 4), (5, 11), (0, 0)])
def test_transfers_of_any_alignment_touch_only_their_bytes(device, offset, size):
    buffer = device.allocate(16)
    background = np.arange(100, 116, dtype=np.uint8)
    device.upload(buffer, 0, background)
    data = np.arange(1, size + 1, dtype=np.uint8)
    device.upload(buffer, offset, data)
    expected = background.copy()
    expected[offset : offset + size] = data
    whole, part = device.download([(buffer, 0, 16), (buffer, offset, size)])
    assert np.array_equal(whole, expected)
    assert np.array_equal(part, data)


def test_transfers_larger_than_the_staging_buffer(device):
    n = 20_000_003
    x = device.allocate(4 * n)
    values = np.arange(n, dtype=np.float32)
    device.upload(x, 0, values)
    tail, whole, odd = device.download([(x, 4 * n - 4, 4), (x, 0, 4 * n), (x, 1, 4 * n - 2)])
    assert tail.view(np.float32)[0] == values[-1]
    assert np.array_equal(whole.view(np.float32), values)
    assert np.array_equal(odd, values.view(np.uint8)[1:-1])
    device.release(x)
    device.empty_cache()


@pytest.mark.parametrize("place", ["upload", "download"])
def test_transfers_outside_the_buffer_are_refused(device, place):
    buffer = device.allocate(16)
    transfer = {
        "upload": lambda: device.upload(buffer, buffer.size_bytes - 4, bytes(8)),
        "download": lambda: device.download([(buffer, buffer.size_bytes - 4, 8)]),
    }
    with pytest.raises(WebGPUError, match=place):
        transfer[place]()


def test_kernels_raise_flags_in_the_error_buffer(device):
    before = device.download([(device.error_buffer, 0, 64)])[0]
    assert not before.any()
    device.submit([Dispatch(RAISE_FLAG, (device.error_buffer,), b"", (1, 1, 1))])
    assert device.download([(device.error_buffer, 0, 4)])[0].view(np.uint32)[0] == 7
    device.submit([ClearBuffer(device.error_buffer, 0, 64)])


# ---- memory


@pytest.mark.parametrize("size", [1, 16, 256, 257, 5000, (1 << 20) + 1, 3 << 20, (1 << 27) - 4, 1 << 27])
def test_a_size_class_wastes_at_most_a_sixteenth(size):
    capacity = size_class(size)
    assert capacity >= size
    assert capacity % 4 == 0
    assert capacity - size <= max(size / 16, 256)
    assert size_class(capacity) == capacity


def test_released_buffers_are_handed_out_again(device):
    device.empty_cache()
    first = device.allocate(10_000)
    device.release(first)
    assert device.stats.pooled_bytes == first.size_bytes
    assert device.allocate(9_990) is first
    device.release(first)
    with pytest.raises(WebGPUError, match="twice"):
        device.release(first)
    device.empty_cache()
    assert device.stats.pooled_bytes == 0


def test_changing_sizes_do_not_hoard_memory(device):
    device.empty_cache()
    device.reset_peak_stats()
    for step in range(40):
        device.release(device.allocate((8 << 20) + step * (1 << 19)))
    stats = device.stats
    assert stats.reserved_bytes <= 1.25 * stats.peak_allocated_bytes + (64 << 20)
    device.empty_cache()


def test_a_buffer_over_the_limit_is_out_of_memory(device):
    limit = device.limits["max-buffer-size"]
    with pytest.raises(torch.OutOfMemoryError, match="max-buffer-size") as caught:
        device.allocate(limit + 4)
    assert "in use" in str(caught.value)
    test_a_dispatch_computes_what_its_kernel_says(device)


def test_memory_given_back_takes_its_bind_groups_along(device):
    x, y = device.allocate(5000), device.allocate(5000)
    device.submit([add_scalar(x, y, 4, 1.0)])
    device.empty_cache()  # of what other tests left
    before = device.stats.bind_groups
    device.release(x)
    device.empty_cache()
    assert device.stats.bind_groups == before - 1
    with pytest.raises(WebGPUError, match="released"):
        device.submit([add_scalar(x, y, 4, 1.0)])


# ---- pipelines, caches


def test_pipelines_and_bind_groups_are_reused(device):
    n = 64
    x, y = device.allocate(4 * n), device.allocate(4 * n)
    device.submit([add_scalar(x, y, n, 1.0)])
    before = device.stats
    device.submit([add_scalar(x, y, n, float(scalar)) for scalar in range(10)])
    after = device.stats
    assert (after.pipelines, after.bind_groups) == (before.pipelines, before.bind_groups)
    assert set(read_f32(device, y, n) - read_f32(device, x, n)) == {9.0}


def test_bind_groups_are_bounded_and_come_back(device):
    n = 4
    device.empty_cache()
    cache = device._opened.pipelines
    whole, cache.recent.limit = cache.recent.limit, 8
    try:
        buffers = [device.allocate(4 * n) for _ in range(20)]
        device.submit([ClearBuffer(buffers[0], 0, 4 * n)])
        for _ in range(2):
            device.submit([add_scalar(a, b, n, 1.0) for a, b in pairwise(buffers)])
            assert device.stats.bind_groups <= 8
        assert set(read_f32(device, buffers[-1], n)) == {19.0}
    finally:
        cache.recent.limit = whole


@pytest.mark.parametrize(
    "environment", [{"TORCH_WEBGPU_IMMEDIATES": "0"}, {"TORCH_WEBGPU_MAX_BINDING": "1000"}], ids=["uniform", "windows"]
)
def test_parameters_in_a_uniform_buffer_and_buffers_in_windows(device, environment):
    script = """
        n, rounds = 700, 3000
        x, y = device.allocate(4 * n), device.allocate(4 * n)
        device.upload(x, 0, np.arange(n, dtype=np.float32))
        device.submit([add_scalar(x, y, n, 3.0)])
        assert np.array_equal(read_f32(device, y, n), np.arange(n, dtype=np.float32) + 3)
        device.submit([ClearBuffer(x, 0, 4 * n)])
        pairs = [(x, y), (y, x)]
        device.submit([add_scalar(*pairs[i % 2], 64, float(i % 7)) for i in range(rounds)])
        assert read_f32(device, x, 1)[0] == sum(i % 7 for i in range(rounds))
        print(device.target.immediates_bytes, device.target.max_binding_bytes)
    """
    done = in_new_process(script, **environment)
    assert done.returncode == 0, done.stderr
    immediates, binding = done.stdout.split()
    assert immediates == "0" or binding == "1000"


# ---- errors


def test_a_shader_error_shows_the_numbered_source_and_the_session_goes_on(device):
    broken = Kernel("broken", "@compute @workgroup_size(1) fn main() { let x: u32 = 1.5; }", ())
    with pytest.raises(ShaderCompileError, match="broken") as caught:
        device.submit([Dispatch(broken, (), b"", (1, 1, 1))])
    assert "   1 | @compute" in str(caught.value)
    test_a_dispatch_computes_what_its_kernel_says(device)


def bad_commands(device):
    x, y = device.allocate(256), device.allocate(256)
    return {
        "aligned|multiple": CopyBuffer(x, 0, y, 1, 8),
        "buffers?": Dispatch(ADD_SCALAR, (x,), bytes(8), (1, 1, 1)),
        "parameters": Dispatch(ADD_SCALAR, (x, y), bytes(4), (1, 1, 1)),
        "workgroups": Dispatch(ADD_SCALAR, (x, y), bytes(8), (65536, 1, 1)),
        "merge": Dispatch(ADD_SCALAR, (x, x), bytes(8), (1, 1, 1)),
    }


@pytest.mark.parametrize("complaint", ["aligned|multiple", "buffers?", "parameters", "workgroups", "merge"])
def test_a_bad_command_raises_and_nothing_of_its_submission_runs(device, complaint):
    x, y = device.allocate(256), device.allocate(256)
    device.submit([ClearBuffer(x, 0, 256), ClearBuffer(y, 0, 256)])
    with pytest.raises(WebGPUError, match=complaint):
        device.submit([add_scalar(x, y, 64, 1.0), bad_commands(device)[complaint]])
    assert not read_f32(device, y, 64).any()
    device.submit([add_scalar(x, y, 64, 1.0)])
    assert read_f32(device, y, 64).all()


def test_a_lost_device_raises_from_then_on():
    script = """
        import pytest, torch_webgpu.errors as errors
        x = device.allocate(256)
        device._opened.native.destroy()
        with pytest.raises(errors.DeviceLostError, match="lost"):
            device.synchronize()
        for use in (lambda: device.submit([]), lambda: device.allocate(4), lambda: device.download([(x, 0, 4)])):
            with pytest.raises(errors.DeviceLostError):
                use()
        device.release(x)
    """
    done = in_new_process(script)
    assert done.returncode == 0, done.stderr


# ---- timing


def test_timestamps_measure_dispatches(device):
    if "timestamp-query" not in device.features:
        pytest.skip("the adapter has no timestamp queries")
    small, large = (device.allocate(4 * n) for n in (64, 1 << 21))
    target = device.allocate(4 << 21)
    durations_ns = device.time([add_scalar(small, target, 64, 1.0), add_scalar(large, target, 1 << 21, 1.0)] * 3)
    assert len(durations_ns) == 6
    assert min(durations_ns[1::2]) > min(durations_ns[0::2]) > 0
    with pytest.raises(WebGPUError, match="dispatches"):
        device.time([ClearBuffer(small, 0, 4)])


# ---- process life


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_gets_a_clear_error_and_the_parent_goes_on():
    script = """
        import atexit
        from torch_webgpu.errors import ForkError
        x, y = device.allocate(256), device.allocate(256)
        device.submit([add_scalar(x, y, 64, 1.0)])
        child = os.fork()
        if child == 0:
            try:
                device.release(x)
                device.submit([])
            except ForkError as error:
                assert "spawn" in str(error)
                atexit._run_exitfuncs()
                # As multiprocessing's children end: exit() would run NVIDIA's destructors, which hang or crash here.
                os._exit(11)
            os._exit(12)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 11
        device.submit([add_scalar(x, y, 64, 1.0)])
        device.synchronize()
    """
    done = in_new_process(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "device.allocate(256)",
        "x, y = device.allocate(1 << 24), device.allocate(1 << 24)\n"
        "device.submit([add_scalar(x, y, 1 << 21, 1.0)] * 50)  # still running when the interpreter ends",
        "raise SystemExit(0)",
        "device",
    ],
    ids=["idle", "busy", "exception", "unopened"],
)
def test_the_process_ends_cleanly(script):
    done = in_new_process(script)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "panicked" not in done.stderr


def test_an_adapter_is_chosen_by_name_and_a_wrong_name_is_an_error(device):
    skip_in_a_browser()
    chosen = in_new_process("print(device.name)", TORCH_WEBGPU_ADAPTER=device.name[:5].upper())
    assert chosen.stdout.strip() == device.name, chosen.stderr
    wrong = in_new_process("", TORCH_WEBGPU_ADAPTER="no such adapter")
    assert "NoAdapterError" in wrong.stderr
    assert device.name in wrong.stderr


def test_nothing_is_loaded_before_a_device_is_asked_for():
    script = "import sys, torch_webgpu.runtime.runtime; assert not {'wgpu', 'cffi'} & set(sys.modules)"
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
