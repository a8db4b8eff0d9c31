"""What torch.cuda's functions do where another device answers: numbers are compared with the CPU's, figures with the
device's own."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_webgpu.distributed.adapters import adapters_alike
from torch_webgpu.translation import session
from torch_webgpu.translation.emulated.devices import visible_device_count

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is translated where there is CUDA"),
    pytest.mark.filterwarnings("ignore:.*does nothing here", "ignore:.*is deprecated", "ignore:TypedStorage is"),
]
MIB = 1 << 20


@pytest.fixture(params=["webgpu", "cpu"])
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    session.enable(request.param)
    yield request.param
    session.disable()


@pytest.fixture
def webgpu() -> Iterator[None]:
    session.enable("webgpu")
    yield
    session.disable()


# ---- streams and events


def test_work_on_streams_is_in_order(target: str) -> None:
    a, b = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
    with torch.cuda.stream(a):
        x = torch.ones(100).cuda()
        done = a.record_event()
    b.wait_event(done)
    b.wait_stream(a)
    with torch.cuda.stream(b):
        x.record_stream(b)
        y = x * 3
    torch.cuda.current_stream().wait_stream(b)
    b.synchronize()
    assert b.query()
    assert y.sum().item() == 300


def test_an_event_tells_the_time(target: str) -> None:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    x = torch.ones(64, 64).cuda()
    for _ in range(3):
        x = x @ x / 64
    end.record(torch.cuda.current_stream())
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) > 0
    with pytest.raises(ValueError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(end)
    with pytest.raises(ValueError, match="recorded"):
        begin.elapsed_time(torch.cuda.Event(enable_timing=True))


def test_device_contexts_take_indices(target: str) -> None:
    with torch.cuda.device(0), torch.cuda.device_of(torch.ones(1).cuda()):
        assert torch.cuda.current_device() == 0
    torch.cuda.set_device("cuda:0")
    torch.cuda.synchronize(torch.device("cuda"))
    assert torch.cuda.Stream("cuda:0") == torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        torch.cuda.set_device(99)


# ---- captured graphs


def test_a_graph_replays(webgpu: None) -> None:
    x = torch.zeros(4).cuda()
    with torch.cuda.stream(torch.cuda.Stream()):
        y = x + 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        assert torch.cuda.is_current_stream_capturing()
        y = x + 1
    x.fill_(41)
    graph.replay()
    assert y.tolist() == [42.0] * 4


def test_graphed_callables_compute_the_same(target: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    expected = net(x)
    graphed = torch.cuda.make_graphed_callables(net.cuda(), (x.cuda(),))
    torch.testing.assert_close(graphed(x.cuda()).cpu(), expected)


# ---- memory


def test_memory_figures_are_the_devices_own(webgpu: None) -> None:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.empty(4 * MIB, dtype=torch.uint8, device="webgpu")
    assert torch.cuda.memory_allocated() == torch.webgpu.memory_allocated() == before + 4 * MIB
    assert torch.cuda.max_memory_allocated() >= before + 4 * MIB
    assert torch.cuda.memory_cached() == torch.webgpu.memory_reserved()
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == before + 4 * MIB
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    assert torch.cuda.device_memory_used() > 0
    del x
    assert torch.cuda.memory_allocated() == before


def test_on_the_cpu_they_are_the_processs() -> None:
    session.enable("cpu")
    try:
        before = torch.cuda.memory_allocated()
        # Kernels count a process's pages on several processors at once and add up late, and what other tests left
        # may be freed meanwhile: twice the bytes that are looked for.
        x = torch.ones(256 * MIB, dtype=torch.uint8)
        assert torch.cuda.memory_allocated() > before + 128 * MIB
        assert torch.cuda.max_memory_allocated() > before + 128 * MIB
        assert x.numel() == 256 * MIB
    finally:
        session.disable()


def test_raw_memory_is_counted(webgpu: None) -> None:
    before = torch.cuda.memory_allocated()
    address = torch.cuda.caching_allocator_alloc(MIB)
    assert torch.cuda.memory_allocated() == before + MIB
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.cuda.caching_allocator_delete(address)


def test_a_snapshot_of_the_memory_is_written(webgpu: None, tmp_path: Path) -> None:
    x = torch.ones(MIB, dtype=torch.uint8, device="webgpu")
    torch.cuda.memory._record_memory_history()
    torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    found = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert sum(segment["allocated_size"] for segment in found["segments"]) >= x.numel()


# ---- types of tensors


def test_types_make_tensors_and_know_them(target: str) -> None:
    x = torch.cuda.FloatTensor([[1, 2], [3, 4]])
    assert (x.device.type, x.dtype, x.tolist()) == (target, torch.float32, [[1, 2], [3, 4]])
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.HalfTensor)
    assert torch.cuda.LongTensor(2, 3).shape == (2, 3)
    assert x.type(torch.cuda.HalfTensor).dtype == x.type("torch.cuda.HalfTensor").dtype == torch.float16
    assert isinstance(torch.ones(2).type(torch.cuda.IntTensor), torch.cuda.IntTensor)
    if target != "cpu":
        assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)


def test_the_default_tensor_type_is_the_devices(target: str) -> None:
    torch.set_default_tensor_type(torch.cuda.DoubleTensor)
    try:
        assert (torch.ones(1).device.type, torch.ones(1).dtype) == (target, torch.float64)
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert (torch.ones(1).device.type, torch.ones(1).dtype) == ("cpu", torch.float32)


def test_storages_have_types_too(target: str) -> None:
    storage = torch.cuda.FloatStorage(4)
    assert isinstance(storage, torch.cuda.FloatStorage)
    assert len(storage) == 4
    assert torch.UntypedStorage(4, device="cuda").device.type == target
    assert torch.ones(2).untyped_storage().cuda().device.type == target


# ---- random numbers


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_generators_repeat_their_numbers(target: str, device: str) -> None:
    a, b = (torch.Generator(device=device).manual_seed(3) for _ in range(2))
    assert a.device.type == target
    x, y = (torch.randn(5, device=device, generator=generator) for generator in (a, b))
    assert torch.equal(x, y)
    assert isinstance(a, torch.Generator)


def test_random_states_are_kept(target: str) -> None:
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    x = torch.rand(4, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(x, torch.rand(4, device="cuda"))
    assert torch.cuda.initial_seed() == 5
    torch.cuda.set_rng_state_all([state])
    with torch.random.fork_rng(devices=[0], device_type="cuda"):
        assert torch.equal(x, torch.rand(4, device="cuda"))
    assert torch.equal(x, torch.rand(4, device="cuda"))


# ---- checkpoints


PLACES: list[Any] = [
    "cuda", "cuda:0", "cuda:7", lambda storage, place: storage.cuda(0), {"cpu": "cuda:0"}, {"cpu": "cuda"}
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_checkpoints_are_loaded_where_they_are_asked_for(target: str, place: Any) -> None:
    file = io.BytesIO()
    torch.save({"x": torch.arange(4.0)}, file)
    file.seek(0)
    x = torch.load(file, map_location=place)["x"]
    assert x.device.type == target
    assert x.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("place", [None, "cpu", {"cuda:0": "cpu"}, lambda storage, place: storage])
def test_checkpoints_of_cuda_devices_are_loaded(target: str, place: Any) -> None:
    """A file in which places are called cuda:0, as a machine with CUDA writes it."""
    file = io.BytesIO()
    torch.serialization.register_package(1, lambda storage: "cuda:0", lambda storage, place: None)
    try:
        torch.save({"x": torch.arange(4.0)}, file)
    finally:
        registry = torch.serialization._package_registry
        registry[:] = [entry for entry in registry if entry[0] != 1]
    file.seek(0)
    x = torch.load(file, map_location=place)["x"]
    assert x.device.type == (target if place is None else "cpu")
    assert x.tolist() == [0, 1, 2, 3]


# ---- mixed precision, ranges, several devices, profilers


def test_mixed_precision_is_the_devices(target: str) -> None:
    x = torch.ones(2, 2).cuda()
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert (x @ x).dtype == torch.bfloat16
    with torch.autocast("cuda", enabled=False):
        assert (x @ x).dtype == torch.float32
    scaler = torch.cuda.amp.GradScaler()
    assert scaler.is_enabled()
    weight = torch.ones(2, 2).cuda().requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale((weight * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [[-1, -1], [-1, -1]]


def test_own_functions_are_cast(target: str) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    x = torch.ones(2, dtype=torch.bfloat16).cuda().requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = Double.apply(x)
    y.sum().backward()
    assert y.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


def test_ranges_are_shown_by_the_profiler(target: str) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.cuda.nvtx.range_push("outer")
        with torch.cuda.nvtx.range("inner {}", 1):
            torch.ones(2).cuda().sum().item()
        torch.cuda.nvtx.range_pop()
    assert {"outer", "inner 1"} <= {event.key for event in profile.key_averages()}


def test_tensors_go_between_devices(target: str) -> None:
    x = torch.arange(6.0).reshape(3, 2)
    (copy,) = torch.cuda.comm.broadcast(x, [0])
    parts = torch.cuda.comm.scatter(x, [0, 0], chunk_sizes=[1, 2])
    assert [part.shape[0] for part in parts] == [1, 2]
    assert torch.equal(torch.cuda.comm.gather(parts, destination="cpu"), x)
    total = torch.cuda.comm.reduce_add([copy, copy], 0)
    assert torch.equal(total.cpu(), x * 2)
    assert copy.device.type == total.device.type == target


def test_data_parallel_runs(target: str) -> None:
    net = torch.nn.Linear(2, 2).cuda()
    x = torch.randn(3, 2).cuda()
    assert torch.equal(torch.nn.DataParallel(net, device_ids=[0])(x), net(x))


def test_data_parallel_moves_what_it_is_given(webgpu: None) -> None:
    """On one device as well: older programs leave both the module and the batches on the CPU."""
    net = torch.nn.Linear(2, 2)
    x = torch.randn(3, 2)
    expected = net(x)
    parallel = torch.nn.DataParallel(net)
    assert parallel.device_ids == adapters_alike()
    if len(parallel.device_ids) > 1:  # PyTorch moves the module itself to one, and wants it moved to several
        net.cuda()
    for y in (parallel(x), parallel(x.cuda()), torch.nn.parallel.data_parallel(net, x, [0])):
        assert y.device.type == "webgpu"
        torch.testing.assert_close(y.cpu(), expected)
    assert net.weight.device.type == "webgpu"


def test_cudart_answers_what_programs_ask(target: str) -> None:
    runtime = torch.cuda.cudart()
    assert runtime.cudaMemGetInfo(0)[1] > 0
    torch.cuda.check_error(runtime.cudaProfilerStart())
    with pytest.raises(AttributeError, match="no CUDA runtime"):
        runtime.cudaLaunchKernel()


def test_properties_are_the_devices_own(webgpu: None) -> None:
    names: dict[str, Any] = {"torch": torch, "__name__": "__main__"}
    exec("found = torch.cuda.get_device_properties(0)", names)
    found, own = names["found"], torch.webgpu.get_device_properties(0)
    assert (found.name, found.total_memory) == (own.name, own.total_memory)
    assert (found.major, found.minor) == (8, 0)
    assert found.max_buffer_size == own.max_buffer_size
    with pytest.raises(AttributeError, match="webgpu does not tell 'warp_size'"):
        _ = found.warp_size


@pytest.mark.parametrize(
    ("listed", "count"), [(None, 1), ("0", 1), ("0,1,2", 1), ("", 0), ("-1", 0), ("GPU-8932f937", 1)]
)
def test_cuda_visible_devices_is_heeded(monkeypatch: pytest.MonkeyPatch, listed: str | None, count: int) -> None:
    if listed is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    session.enable("cpu")
    try:
        assert visible_device_count() == count
    finally:
        session.disable()


def test_gloo_answers_for_nccl(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "assert dist.is_nccl_available()\n"
        "dist.init_process_group('nccl', init_method='file://%s', rank=0, world_size=1)\n"
        "x = torch.ones(2)\n"
        "dist.all_reduce(x)\n"
        "print(dist.get_backend(), x.tolist())\n"
        "dist.destroy_process_group()\n" % (tmp_path / "meeting")
    )
    command = [sys.executable, "-m", "torch_webgpu.cli", "run", "--device", "cpu", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("gloo [1.0, 1.0]")


COMPILED = """
import torch

@torch.compile
def step(x):
    torch.cuda.synchronize()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = (x.cuda() @ x).float()
        if torch.is_autocast_enabled():
            y = y + 1
    if torch.cuda.is_available():
        y = y.type(torch.cuda.DoubleTensor)
    return y

print(step(torch.ones(2, 2, device="cuda")).tolist(), step(torch.ones(2, 2).cuda()).dtype)
"""


@pytest.mark.parametrize("device", ["webgpu", "cpu"])
def test_compiled_programs_may_call_it(tmp_path: Path, device: str) -> None:
    (tmp_path / "program.py").write_text(COMPILED)
    command = [sys.executable, "-m", "torch_webgpu.cli", "run", "--device", device, str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[3.0, 3.0], [3.0, 3.0]] torch.float64"


def test_what_is_asked_in_a_graph_does_not_break_it(webgpu: None) -> None:
    @torch.compile(fullgraph=True)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.cuda.is_available() else x

    assert doubled(torch.ones(2).cuda()).tolist() == [2, 2]


def test_a_type_of_the_device_is_in_the_graph(webgpu: None) -> None:
    @torch.compile(fullgraph=True)
    def widened(x: torch.Tensor) -> torch.Tensor:
        return x.type(torch.cuda.DoubleTensor) * 2

    result = widened(torch.ones(2).cuda())
    assert (result.device.type, result.dtype, result.tolist()) == ("webgpu", torch.float64, [2, 2])
