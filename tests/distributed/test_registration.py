"""How a process group comes to take tensors of webgpu, in one process: each group is of one rank."""

from __future__ import annotations

import pytest
from tests.device.processes import assert_ends_well, run_script

GROUP = """
from torch import distributed as dist
from torch.testing._internal.distributed import fake_pg
def group(backend=None, **options):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **options)
"""


def test_nothing_is_loaded_before_the_first_group() -> None:
    script = """
    from torch import distributed as dist
    def loaded():
        return sorted(name for name in sys.modules if name.startswith("torch_webgpu.distributed."))
    assert dist.get_default_backend_for_device("webgpu") == "webgpu"
    assert dist.is_backend_available("webgpu")
    of_one_process = ["adapters", "data_parallel", "device_copies"]  # nn.DataParallel's
    assert loaded() == [f"torch_webgpu.distributed.{name}" for name in (*of_one_process, "registration")], loaded()
    """
    assert_ends_well(script)


def test_a_group_of_gloo_serves_the_cpu_as_before() -> None:
    """No adapter is opened for it, and the CPU's tensors have the same backend."""
    script = (
        GROUP
        + """
group("gloo")
x = torch.ones(2)
dist.all_reduce(x)
dist.barrier()
things = [None]
dist.all_gather_object(things, "a")
work = dist.all_reduce(x, async_op=True)
assert work.wait() and work.is_completed() and work.get_future().done()
assert (dist.get_backend(), dist.get_backend_config()) == ("gloo", "cpu:gloo,cuda:gloo")
from torch_webgpu.engine.record import started_in
assert started_in() is None
dist.destroy_process_group()
"""
    )
    assert_ends_well(script)


@pytest.mark.parametrize(
    ("arguments", "backend"),
    [
        ("", "undefined"),  # as on CUDA
        ("'webgpu'", "webgpu"),
        ("'gloo'", "gloo"),
        ("'cpu:gloo,webgpu:webgpu'", "cpu:gloo,webgpu:webgpu"),
        ("'cpu:gloo,webgpu:gloo'", "cpu:gloo,webgpu:gloo"),
        ("device_id=torch.device('webgpu:0')", "webgpu"),
        ("device_id=0", "webgpu"),
        ("'fake'", "fake"),
    ],
)
def test_ways_to_ask(arguments: str, backend: str) -> None:
    script = GROUP + (
        f"""
group({arguments})
x = torch.full((3,), 2.0, device="webgpu")
dist.all_reduce(x)
assert x.tolist() == [2, 2, 2]
y = torch.ones(2)
dist.all_reduce(y)
dist.barrier()
assert dist.get_backend() == {backend!r}, dist.get_backend()
dist.destroy_process_group()
group()
dist.all_reduce(x)
dist.destroy_process_group()
"""
    )
    assert_ends_well(script)


@pytest.mark.parametrize("backend", ["", "'cpu:gloo,webgpu:gloo'"])
def test_the_adapter_is_that_of_the_local_rank(backend: str) -> None:
    script = GROUP + (
        f"""
group({backend})
assert torch.webgpu.current_device() == 1
assert torch.ones(1, device="webgpu").device.index == 1
dist.destroy_process_group()
"""
    )
    assert_ends_well(script, TORCH_WEBGPU_COPIES="2", LOCAL_RANK="3", LOCAL_WORLD_SIZE="4")


def test_more_processes_than_adapters_are_told() -> None:
    done = run_script(GROUP + "group()", LOCAL_RANK="0", LOCAL_WORLD_SIZE="64")
    assert "64 processes on this host share" in done.stderr
    assert done.returncode == 0


def test_a_program_that_chose_its_adapter_keeps_it() -> None:
    script = GROUP + (
        """
torch.webgpu.set_device(1)
group()
assert torch.webgpu.current_device() == 1
"""
    )
    assert_ends_well(script, TORCH_WEBGPU_COPIES="3", LOCAL_RANK="2", LOCAL_WORLD_SIZE="3")


def test_unknown_backends_are_refused_as_before() -> None:
    done = run_script(GROUP + "group('webgpuu')")
    assert done.returncode == 1
    assert "webgpuu" in done.stderr
