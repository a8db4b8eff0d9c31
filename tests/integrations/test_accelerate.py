"""Hugging Face Accelerate finds the device, casts on it, and its checkpoints resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.device.processes import run_script
from tests.integrations.training import batches, net, state_of
from torch import nn

from torch_webgpu.integrations import accelerate as ours
from torch_webgpu.integrations import known

pytest.importorskip("accelerate", reason="about Hugging Face Accelerate, which is not installed")

import accelerate
from accelerate import Accelerator, checkpointing, state
from accelerate.utils import memory, modeling


def plain(module: str, target: str) -> Any:
    """What Accelerate has without the patch."""
    [patch] = [p for p in known.patches(f"accelerate.{module}") if p.target == target]
    return patch.plain


@pytest.fixture(autouse=True)
def new_state() -> Iterator[None]:
    """Accelerate keeps one state a process."""
    state.AcceleratorState._reset_state(True)
    yield
    state.AcceleratorState._reset_state(True)


def train(accelerator: Accelerator, model: nn.Module, optimizer: Any, steps: slice = slice(None)) -> list[float]:
    losses = []
    for x, y in batches()[steps]:
        loss = nn.functional.cross_entropy(model(x.to(accelerator.device)), y.to(accelerator.device))
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert loss.device == accelerator.device
        losses.append(loss.item())
    return losses


def prepared(dropout: float = 0.0, **options: Any) -> tuple[Accelerator, Any, Any]:
    state.AcceleratorState._reset_state(True)
    accelerator = Accelerator(**options)
    model = net(dropout)
    return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2))


def test_it_finds_the_device() -> None:
    assert Accelerator().device == torch.device("webgpu", 0)
    assert accelerate.PartialState().default_device.type == "webgpu"


def test_an_explicit_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Accelerator(cpu=True).device.type == "cpu"
    state.AcceleratorState._reset_state(True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert Accelerator().device.type == "cpu"


def test_training_equals_the_cpu() -> None:
    accelerator, model, optimizer = prepared()
    losses, weights = train(accelerator, model, optimizer), state_of(model)
    assert model.devices == {"webgpu"}
    assert set(model.seen) == {("webgpu", torch.float32)}
    accelerator, model, optimizer = prepared(cpu=True)
    torch.testing.assert_close(losses, train(accelerator, model, optimizer), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights, state_of(model), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_mixed_precision_casts(precision: str, dtype: torch.dtype) -> None:
    accelerator, model, optimizer = prepared(mixed_precision=precision)
    at_the_product: list[torch.dtype] = []
    model.last.register_forward_hook(lambda module, inputs, output: at_the_product.append(output.dtype))
    losses = train(accelerator, model, optimizer)
    assert set(at_the_product) == {dtype}
    assert model.devices == {"webgpu"}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    if precision == "fp16":
        assert accelerator.scaler.is_enabled()
        assert accelerator.scaler.get_scale() == 65536.0
        assert accelerator.scaler._scale.device.type == "webgpu"
    full = prepared()
    torch.testing.assert_close(losses, train(*full), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("precision", ["no", "fp16"])
def test_a_checkpoint_resumes_with_its_random_state(precision: str, tmp_path: Path) -> None:
    accelerator, model, optimizer = prepared(0.5, mixed_precision=precision)
    train(accelerator, model, optimizer, slice(0, 2))
    accelerator.save_state(str(tmp_path))
    expected, weights = train(accelerator, model, optimizer, slice(2, 4)), state_of(model)

    accelerator, model, optimizer = prepared(0.5, mixed_precision=precision)
    torch.manual_seed(123)
    accelerator.load_state(str(tmp_path))
    assert train(accelerator, model, optimizer, slice(2, 4)) == expected
    torch.testing.assert_close(state_of(model), weights, rtol=0, atol=0)


def test_a_checkpoint_of_the_cpu_loads(tmp_path: Path) -> None:
    accelerator, model, optimizer = prepared(cpu=True)
    train(accelerator, model, optimizer, slice(0, 2))
    accelerator.save_state(str(tmp_path))
    weights = state_of(model)
    assert not list(tmp_path.glob("*webgpu*")) or accelerator.device.type == "cpu"
    accelerator, model, optimizer = prepared()
    accelerator.load_state(str(tmp_path))
    torch.testing.assert_close(state_of(model), weights, rtol=0, atol=0)


# Memory ---------------------------------------------------------------------------------------------------------------


def test_memory_that_is_there() -> None:
    budget = modeling.get_max_memory()
    free, total = torch.webgpu.mem_get_info(0)
    assert 0.5 * free < budget[0] <= total
    if torch.webgpu.get_device_properties(0).adapter_type == "CPU":  # it computes in the host's memory: counted once
        assert "cpu" not in budget


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["DiscreteGPU"], {0: 100, "cpu": 1000}),
        (["DiscreteGPU", "CPU"], {0: 100, "cpu": 1000}),
        (["DiscreteGPU", "DiscreteGPU"], {0: 100, 1: 100, "cpu": 1000}),
        (["DiscreteGPU", "IntegratedGPU"], {0: 100, 1: 100}),
        (["IntegratedGPU", "CPU"], {0: 100}),
        (["CPU", "CPU"], {0: 50, 1: 50}),
    ],
)
def test_memory_by_kind_of_adapter(kinds: list[str], expected: dict[Any, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "device_count", lambda: len(kinds))
    monkeypatch.setattr(ours, "get_device_properties", lambda index: SimpleNamespace(adapter_type=kinds[index]))
    monkeypatch.setattr(ours, "mem_get_info", lambda index: (90, 400))
    monkeypatch.setattr(ours, "memory_stats", lambda index: {"pooled_bytes": 10})
    assert ours.memory_budget({"cpu": 1000}) == expected


def test_memory_that_no_driver_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(index: int) -> tuple[int, int]:
        raise RuntimeError("WebGPU does not tell")

    monkeypatch.setattr(ours, "mem_get_info", unknown)
    assert modeling.get_max_memory()[0] >= torch.webgpu.get_device_properties(0).max_buffer_size


def test_memory_as_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    asked = {"cpu": "1GB", 0: "500MB"}
    assert modeling.get_max_memory(asked) == asked == {0: 500_000_000, "cpu": 1_000_000_000}
    assert list(modeling.get_max_memory({"cpu": 10, 0: 20})) == [0, "cpu"]
    assert not caplog.records
    assert modeling.get_max_memory({99: 1, "cpu": 1}) == {99: 1, "cpu": 1}
    assert "Device 99 is not available" in caplog.text
    with pytest.raises(ValueError, match="not recognized"):
        modeling.get_max_memory({"nowhere": 1})


def test_device_map_auto() -> None:
    model = net()
    placed = accelerate.infer_auto_device_map(model)
    assert placed == {"": 0}
    model = accelerate.dispatch_model(model, placed)
    assert model.devices == {"webgpu"}
    assert model(torch.ones(2, 8).to("webgpu")).device.type == "webgpu"


def test_device_map_with_a_part_on_the_cpu() -> None:
    want = net()(torch.ones(2, 8))
    model = net()
    model = accelerate.dispatch_model(model, {"first": 0, "drop": 0, "last": "cpu"})
    torch.testing.assert_close(model(torch.ones(2, 8)).cpu(), want, rtol=1e-5, atol=1e-5)
    assert model.seen[-1][0] == "webgpu"  # what is kept on the CPU computes on the adapter, too


def test_device_map_over_two_adapters() -> None:
    script = """
    import accelerate
    from accelerate.utils import get_max_memory
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    x = torch.ones(2, 64)
    want = model(x)
    budget = get_max_memory()
    assert budget.keys() - {"cpu"} == {0, 1}
    layer = 65 * 64 * 4
    placed = accelerate.infer_auto_device_map(model, max_memory={0: 2.5 * layer, 1: 4 * layer})
    assert set(placed.values()) == {0, 1}
    model = accelerate.dispatch_model(model, placed)
    assert {str(p.device) for p in model.parameters()} == {"webgpu:0", "webgpu:1"}
    torch.testing.assert_close(model(x).cpu(), want, rtol=1e-4, atol=1e-5)
    """
    done = run_script(script, TORCH_WEBGPU_COPIES="2")
    assert done.returncode == 0, done.stderr


def test_weights_offloaded_to_the_disk(tmp_path: Path) -> None:
    want = net()(torch.ones(2, 8))
    model = accelerate.disk_offload(net(), tmp_path, execution_device=torch.device("webgpu"))
    torch.testing.assert_close(model(torch.ones(2, 8)).cpu(), want, rtol=1e-5, atol=1e-5)
    assert model.seen[-1][0] == "webgpu"
    torch.save(net().state_dict(), tmp_path / "weights.bin")
    with accelerate.init_empty_weights():
        empty = net()
    loaded = accelerate.load_checkpoint_and_dispatch(empty, str(tmp_path / "weights.bin"), device_map="auto")
    assert loaded.devices == {"webgpu"}
    torch.testing.assert_close(loaded(torch.ones(2, 8).to("webgpu")).cpu(), want, rtol=1e-5, atol=1e-5)


def test_a_batch_that_fits_is_found() -> None:
    tried = []

    @memory.find_executable_batch_size(starting_batch_size=8)
    def run(batch_size: int) -> int:
        tried.append(batch_size)
        if batch_size > 2:
            torch.empty(2**42, device="webgpu")
        return batch_size

    assert run() == tried[-1] <= 2


def test_memory_is_released() -> None:
    x = torch.ones(1 << 18, device="webgpu")
    assert x.sum().item() == 1 << 18
    del x
    assert torch.webgpu.memory_stats()["pooled_bytes"] > 0
    memory.release_memory()
    assert torch.webgpu.memory_stats()["pooled_bytes"] == 0


# Canaries: when one of these fails, Accelerate does by itself what the patch is for, and the patch can go. ------------


def test_the_default_device_still_needs_it() -> None:
    assert plain("state", "PartialState.default_device").__get__(accelerate.PartialState()).type == "cpu"


def test_float16_still_needs_it() -> None:
    with pytest.raises(ValueError, match="fp16 mixed precision requires"):
        plain("accelerator", "Accelerator.__init__")(Accelerator.__new__(Accelerator), mixed_precision="fp16")


def test_the_scaler_still_needs_it() -> None:
    with pytest.warns(UserWarning, match="CUDA"):
        assert not plain("utils.modeling", "get_grad_scaler")().is_enabled()


def test_memory_still_needs_it(caplog: pytest.LogCaptureFixture) -> None:
    assert 0 not in plain("utils.modeling", "get_max_memory")()
    plain("utils.modeling", "get_max_memory")({0: 1})
    assert "Device 0 is not available" in caplog.text


def test_the_cache_still_needs_it() -> None:
    x = torch.ones(1 << 18, device="webgpu")
    assert x.sum().item() == 1 << 18
    del x
    plain("utils.memory", "clear_device_cache")(garbage_collection=True)
    assert torch.webgpu.memory_stats()["pooled_bytes"] > 0


def test_random_states_still_need_it(tmp_path: Path) -> None:
    accelerate.PartialState()
    plain("checkpointing", "save_accelerator_state")(tmp_path, [], [], [], [], 0, 0)
    before = torch.webgpu.get_rng_state()
    torch.rand(3, device="webgpu")
    assert checkpointing.load_accelerator_state is not plain("checkpointing", "load_accelerator_state")
    plain("checkpointing", "load_accelerator_state")(tmp_path, [], [], [], [], 0)
    assert not torch.equal(torch.webgpu.get_rng_state(), before)


def test_ranks_still_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two processes would be the only one, by itself."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    ours, partial = state.PartialState._prepare_backend, state.PartialState.__new__(state.PartialState)
    assert plain("state", "PartialState._prepare_backend")(partial) == (None, state.DistributedType.NO)
    assert ours(partial) == ("webgpu", state.DistributedType.MULTI_GPU)
    assert ours(partial, backend="gloo") == ("gloo", state.DistributedType.MULTI_GPU)
    assert ours(partial, cpu=True) == ("gloo", state.DistributedType.MULTI_CPU)
    rank = SimpleNamespace(device=None, distributed_type=state.DistributedType.MULTI_GPU, local_process_index=0)
    with pytest.raises(ZeroDivisionError):  # it counts CUDA's devices
        plain("state", "PartialState.set_device")(rank)
    state.PartialState.set_device(rank)
    assert rank.device == torch.device("webgpu", 0)


def test_empty_weights_still_need_it() -> None:
    options = {"fsdp_version": 1, "sync_module_states": True}
    made = accelerate.FullyShardedDataParallelPlugin(**options)
    assert made.param_init_fn(nn.Linear(2, 2)).weight.device.type == "webgpu"
    with pytest.raises(RuntimeError, match="no available devices"):
        plain("utils.dataclasses", "FullyShardedDataParallelPlugin.__post_init__")(made)


def test_the_launcher_still_needs_it() -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    theirs, parse = plain("commands.launch", "_validate_launch_command"), launch.launch_command_parser().parse_args
    assert not theirs(parse(["--num_processes", "2", "script.py"]))[0].multi_gpu
    for options, expected in (
        (["--num_processes", "2"], (True, 2)),
        (["--num_processes", "1"], (False, 1)),
        ([], (torch.webgpu.device_count() > 1, torch.webgpu.device_count())),
        (["--cpu", "--num_processes", "2"], (False, 2)),
        (["--use_fsdp", "--num_processes", "2"], (False, 2)),
    ):
        asked = launch._validate_launch_command(parse([*options, "script.py"]))[0]
        assert (asked.multi_gpu, asked.num_processes) == expected, options


def test_ddp_still_needs_it() -> None:
    """It is told the number of the process for its device, in a branch by name."""
    assert "hpu" in plain("accelerator", "Accelerator.prepare_model").__code__.co_consts
