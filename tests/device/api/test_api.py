"""``torch.webgpu``, ``torch.accelerator`` and PyTorch's tools around the device, in their own vocabulary."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate, default_convert
from torch.utils.flop_counter import FlopCounterMode

from torch_webgpu.engine.record import engine

webgpu = torch.webgpu

# torch.cuda's names for what WebGPU has not: NVIDIA's own libraries, foreign memory, counters, nodes of graphs.
NOT_HERE = """
    AcceleratorError CUDAPluggableAllocator CudaError DeferredCudaCallError ExternalStream GreenContext MemPool
    caching_allocator_alloc caching_allocator_delete caching_allocator_disabled caching_allocator_enable
    change_current_allocator check_error
    clock_rate cudaStatus cudart current_blas_handle current_solver_handle device_memory_used
    export_dot export_graph_data get_allocator_backend
    get_stream_from_external get_sync_debug_mode
    host_memory_stats host_memory_stats_as_nested_dict memory_usage power_draw
    reset_accumulated_host_memory_stats reset_peak_host_memory_stats
    set_sync_debug_mode temperature use_mem_pool utilization
    reset_max_memory_allocated reset_max_memory_cached
""".split()


def test_torch_cudas_functions_are_here():
    named = getattr(torch.cuda, "__all__")  # noqa: B009 the stubs do not have it
    functions = [n for n in named if callable(getattr(torch.cuda, n, None)) and not n.endswith(("Tensor", "Storage"))]
    missing = [n for n in functions if not hasattr(webgpu, n) and n not in NOT_HERE]
    assert not missing
    assert not [n for n in NOT_HERE if hasattr(webgpu, n)], "take it off the list"


def test_the_device_module(device):
    assert torch.get_device_module("webgpu") is torch.get_device_module(device) is webgpu
    assert webgpu.is_available()
    assert webgpu.is_initialized()
    assert webgpu.device_count() >= 1
    assert webgpu.current_device() == 0
    assert (
        webgpu.get_device_name() == webgpu.get_device_properties(0).name == webgpu.get_device_properties("webgpu").name
    )
    assert webgpu.get_device_capability() == (1, 0)
    assert webgpu.get_arch_list() == []
    assert not webgpu.is_tf32_supported()
    assert webgpu.is_bf16_supported()
    properties = webgpu.get_device_properties()
    assert properties.max_buffer_size >= properties.max_binding_size >= 1 << 27
    capabilities = webgpu.get_capabilities()
    assert capabilities == webgpu.getCapabilities()
    assert capabilities["limits"]["maxBufferSize"] == properties.max_buffer_size
    assert list(properties.features) == capabilities["features"]
    x = torch.ones(1, device=device)
    assert x.is_webgpu
    assert (x.device, x.webgpu().device, x.type()) == (device_0 := torch.device("webgpu:0"), x.device, x.type())
    assert torch.device("webgpu", 0) == device_0
    with pytest.raises(ValueError, match="expected a webgpu device"):
        webgpu.get_device_name("cpu")


def test_torch_accelerator(device):
    accelerator = torch.accelerator
    assert accelerator.is_available()
    assert accelerator.current_accelerator().type == "webgpu"
    assert accelerator.device_count() == webgpu.device_count()
    assert accelerator.current_device_index() == 0
    accelerator.set_device_index(0)
    with accelerator.device_index(0):
        x = torch.ones(1000, device=device)
    accelerator.synchronize()
    gc.collect()  # or the cycles of an earlier test are freed between the two questions
    assert accelerator.memory_allocated() == webgpu.memory_allocated() >= 4000
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated()
    assert accelerator.memory_stats()["allocated_bytes.all.current"] == accelerator.memory_allocated()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    accelerator.empty_cache()
    assert accelerator.current_stream() == webgpu.current_stream()
    accelerator.set_stream(webgpu.Stream())
    assert x.sum().item() == 1000


def test_the_default_device():
    try:
        torch.set_default_device("webgpu")
        made = [torch.ones(2), torch.arange(3), torch.tensor([1, 2]), torch.randperm(4), nn.Linear(2, 2).weight]
        assert torch.get_default_device().type == "webgpu"
    finally:
        torch.set_default_device(None)
    with torch.device("webgpu"):
        made += [torch.zeros(2), torch.linspace(0, 1, 3), torch.randint(3, (2,)), torch.full((2,), 7), torch.eye(2)]
        kept = torch.zeros(2, device="cpu")
    assert {t.device.type for t in made} == {"webgpu"}
    assert kept.device.type == torch.zeros(1).device.type == "cpu"


# ---- memory


@pytest.mark.usefixtures("settled")
def test_memory_counters(device):
    webgpu.empty_cache()
    webgpu.reset_peak_memory_stats()
    before = webgpu.memory_allocated()
    x = torch.ones(1 << 20, device=device)
    webgpu.synchronize()
    assert webgpu.memory_allocated() == before + (4 << 20)
    assert webgpu.memory_reserved() >= 4 << 20
    y = x + 1
    webgpu.synchronize()
    del y
    assert webgpu.memory_allocated() == before + (4 << 20)
    assert webgpu.max_memory_allocated() >= before + (8 << 20)
    assert webgpu.max_memory_reserved() >= webgpu.memory_reserved()
    stats = webgpu.memory_stats()
    assert stats["active_bytes"] == stats["allocated_bytes.all.current"] == webgpu.memory_allocated()
    assert webgpu.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] == webgpu.memory_allocated()
    assert stats["pooled_bytes"] >= 4 << 20
    webgpu.empty_cache()
    assert webgpu.memory_stats()["pooled_bytes"] < 4 << 20
    assert webgpu.get_device_name() in webgpu.memory_summary()
    assert len(webgpu.memory_summary(abbreviated=True)) < len(webgpu.memory_summary())


# ---- streams and events


def test_streams_are_the_one_queue(device):
    stream = webgpu.Stream()
    x = torch.ones(64, 64, device=device)
    with webgpu.stream(stream):
        y = x @ x
    with stream:
        z = y + 1
    event = stream.record_event()
    webgpu.current_stream().wait_event(event)
    webgpu.default_stream().wait_stream(stream)
    event.synchronize()
    assert event.query()
    stream.synchronize()
    assert stream.query()
    x.record_stream(stream)
    assert stream == webgpu.current_stream() == webgpu.default_stream()
    assert isinstance(stream, torch.Stream)
    with webgpu.stream(None):
        assert z.mean().item() == 65
    assert not webgpu.is_current_stream_capturing()


def test_events_turn_true_without_waiting(device):
    x = torch.ones(256, 256, device=device)
    event = webgpu.Event()
    assert event.query()
    for _ in range(10):
        x = x @ x / 256
    event.record()
    deadline = time.monotonic() + 60
    while not event.query():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert x.mean().item() == 1
    with pytest.raises(NotImplementedError, match="between processes"):
        webgpu.Event(interprocess=True)


def test_events_measure_time(device):
    start, end = webgpu.Event(enable_timing=True), webgpu.Event(enable_timing=True)
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    start.synchronize()  # the GPU notes the time when it gets there
    time.sleep(0.02)
    torch.ones(10, device=device).sum()
    end.record()
    end.synchronize()
    assert 20 <= start.elapsed_time(end) < 10_000
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(webgpu.Event())


# ---- random state


def test_random_state(device):
    def draw() -> list[float]:
        return torch.rand(3, device=device).tolist()

    torch.manual_seed(5)
    first = draw()
    assert webgpu.initial_seed() == 5
    state = webgpu.get_rng_state()
    second = draw()
    assert first != second
    webgpu.set_rng_state(state)
    assert draw() == second
    webgpu.set_rng_state_all([state, *webgpu.get_rng_state_all()[1:]])
    assert draw() == second
    with torch.random.fork_rng(device_type="webgpu"):
        forked = draw()
    assert draw() == forked
    webgpu.manual_seed(5)
    assert draw() == first
    webgpu.default_generators[0].manual_seed(5)
    assert draw() == first
    generator = torch.Generator(device=device).manual_seed(5)
    assert torch.rand(3, device=device, generator=generator).tolist() == first
    webgpu.seed_all()
    assert draw() != first
    assert len(webgpu.default_generators) == webgpu.device_count()
    with pytest.raises(TypeError, match="ByteTensor"):
        webgpu.set_rng_state(torch.zeros(16))


# ---- batching


def test_batches_can_be_steered(device):
    webgpu.synchronize()
    with webgpu.batch():
        x = torch.ones(3, device=device) + 1
        assert webgpu.get_pending_count() > 0
    assert webgpu.get_pending_count() == 0
    assert webgpu.batch(lambda: (x * 2).sum()).item() == 12
    webgpu.disable_batching()
    try:
        assert not webgpu.is_batching_enabled()
        x.add_(1)
        assert webgpu.get_pending_count() == 0
    finally:
        webgpu.enable_batching()
    for setting, value in ((webgpu.set_batch_threshold, 0), (webgpu.set_batch_delay, -1)):
        with pytest.raises(ValueError, match=r"batch|negative"):
            setting(value)
    assert x.tolist() == [3, 3, 3]


def test_fallbacks_are_counted(device):
    before = sum(webgpu.fallback_stats().values())
    torch.ones(3, device=device).exp().sum().item()
    assert sum(webgpu.fallback_stats().values()) == before


# ---- PyTorch's tools


def test_the_profiler_sees_operators(device):
    from torch.profiler import profile, record_function

    with profile() as found, record_function("mine"):
        (torch.ones(4, 4, device=device) @ torch.ones(4, 4, device=device)).sum().item()
    names = {event.key for event in found.key_averages()}
    assert {"mine", "aten::mm", "aten::sum"} <= names


def test_flops_are_counted(device):
    with FlopCounterMode(display=False) as counter:
        nn.Linear(4, 5, bias=False).to(device)(torch.ones(2, 4, device=device)).sum().backward()
        nn.Conv2d(1, 2, 3).to(device)(torch.ones(1, 1, 5, 5, device=device))
    assert counter.get_total_flops() == 2 * (2 * 2 * 4 * 5) + 2 * 9 * 9 * 2


def test_benchmark_timer(device):
    from torch.utils import benchmark

    measured = benchmark.Timer("(x + x).sum().item()", globals={"x": torch.ones(3, device=device)}).timeit(3)
    assert measured.mean > 0


def test_collating_and_converting(device):
    batch = default_collate([{"x": torch.ones(2, device=device), "k": 1}, {"x": torch.zeros(2, device=device), "k": 2}])
    assert batch["x"].device.type == device.type
    assert batch["x"].tolist() == [[1, 1], [0, 0]]
    assert default_convert([torch.ones(1, device=device)])[0].device.type == device.type
    loader: Any = DataLoader([torch.full((2,), float(k), device=device) for k in range(4)], batch_size=2)
    assert [b.sum().item() for b in loader] == [2, 10]


def test_gradient_scaler_and_autocast_under_torch_webgpu_amp(device):
    x = torch.ones(2, 2, device=device)
    with webgpu.amp.autocast():
        assert (x @ x).dtype == torch.float16
    assert webgpu.amp.GradScaler().is_enabled()
    assert webgpu.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    assert webgpu.amp.custom_fwd.keywords == webgpu.amp.custom_bwd.keywords == {"device_type": "webgpu"}


# Canaries: each fails when PyTorch no longer needs what was done about it.


def test_a_python_backends_streams_and_events_still_know_one_device_and_no_time(device):
    """api/streams.py."""
    assert torch.Stream.__base__(torch.device("webgpu", 1)).device.index == 0
    event = torch.Event.__base__("webgpu")
    event.record()
    with pytest.raises(RuntimeError, match="support"):
        event.synchronize()


def test_the_accelerators_dtypes_are_those_the_adapter_computes_with(monkeypatch: pytest.MonkeyPatch) -> None:
    found = engine().device(0)
    for float64 in (True, False):
        monkeypatch.setattr(found, "target", replace(found.target, float64=float64))
        ask = torch.accelerator.get_device_capability
        dtypes = getattr(ask, "__wrapped__", ask)(0)["supported_dtypes"]  # PyTorch remembers the first answer
        assert {torch.float32, torch.int64, torch.bool} <= dtypes
        assert (torch.float64 in dtypes) == float64
