"""What is replaced in ``torch.distributed`` is still as PyTorch has it: each of these fails when PyTorch changes it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from tests.device.processes import assert_ends_well


def run_without_us(script: str) -> None:
    """In a process that does not load the device."""
    prelude = "import torch\nfrom torch import distributed as dist\nfrom torch._C import _distributed_c10d as c\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script)],
        env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_there_is_no_backend_for_the_device() -> None:
    run_without_us("""
    torch.utils.rename_privateuse1_backend("webgpu")
    try:
        dist.get_default_backend_for_device("webgpu")
    except ValueError as error:
        assert "no default" in str(error).lower() or "Default backend not registered" in str(error), error
    else:
        raise AssertionError("there is one")
    """)


def test_groups_of_gloo_take_listed_devices() -> None:
    run_without_us("""
    assert dist.Backend.backend_capability["gloo"] == ["cpu", "cuda"]
    assert "device_type = torch._C._get_accelerator().type" in __import__("inspect").getsource(
        dist.distributed_c10d.BackendConfig)
    """)


def test_groups_are_destroyed_without_waiting() -> None:
    """What a group is asked before it is shut down: whether it has hooks of C++'s."""
    run_without_us("""
    asked = set(dist.distributed_c10d.destroy_process_group.__code__.co_names)
    assert {"_has_hooks", "_wait_for_pending_works", "shutdown"} <= asked
    assert not asked & {"wait", "drain", "flush", "on_destroy"}
    """)


def test_barriers_take_numbers_of_processes_for_those_of_devices() -> None:
    assert_ends_well("""
    from torch import distributed as dist
    from torch_webgpu.engine.record import started_in
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    absent = torch.webgpu.device_count()
    dist.barrier(device_ids=[absent])
    dist.barrier(dist.group.WORLD, True, [absent]).wait()
    assert started_in() is None, 'the device was used'
    with pytest.raises(RuntimeError, match="does not exist"):
        dist.barrier.__wrapped__(device_ids=[absent])
    """)


def test_gloo_neither_splits_nor_coalesces() -> None:
    run_without_us("""
    import copy
    gloo = c.ProcessGroupGloo(dist.HashStore(), 0, 1)
    assert not gloo.supports_coalescing
    try:
        copy.deepcopy(gloo.options)
    except TypeError as error:
        assert "pickle" in str(error)
    else:
        raise AssertionError("options can be copied")
    """)


def test_works_of_python_answer_two_questions() -> None:
    run_without_us("""
    class Done(c.Work):
        def wait(self, timeout=None):
            return True
        def get_future(self):
            return self.future
        def is_completed(self):
            return True
        def result(self):
            return [torch.ones(1)]
    class Group(dist.ProcessGroup):
        def __init__(self, work):
            super().__init__(0, 1)
            self.work = work
        def barrier(self, opts):
            return self.work
    work = Done()
    work.future = torch.futures.Future()
    held = dist.ProcessGroup.barrier(Group(work), c.BarrierOptions())
    assert held.wait() and not held.get_future().done()
    assert not held.is_completed()
    """)


DDP = """
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("webgpu", store=dist.HashStore(), rank=0, world_size=1)
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch refuses them only where it is built without CUDA")
def test_hooks_for_bfloat16_are_still_refused() -> None:
    script = """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    model = DistributedDataParallel(nn.Linear(2, 2).to("webgpu"))
    plain = DistributedDataParallel._check_comm_hook
    plain(model, bf16_compress_hook)
    with pytest.raises(TypeError, match="BF16 all reduce communication hook required"):
        plain.__wrapped__(model, bf16_compress_hook)
    """
    run_ddp(script)


def test_builtin_hooks_still_want_a_list_of_tensors() -> None:
    script = """
    model = DistributedDataParallel(nn.Linear(2, 2).to("webgpu"))
    DistributedDataParallel._register_builtin_comm_hook.__wrapped__(model, dist.BuiltinCommHookType.FP16_COMPRESS)
    with pytest.raises(RuntimeError, match="isTensorList"):
        model(torch.ones(1, 2, device="webgpu")).sum().backward()
    """
    run_ddp(script)


def test_callbacks_still_run_when_results_are_there() -> None:
    """A hook returns before its callback has run, and DDP calls the next bucket's."""
    script = """
    import threading
    go, seen = threading.Event(), []
    def hook(state, bucket):
        future = torch.futures.Future()
        threading.Thread(target=lambda: (go.wait(10), future.set_result(bucket.buffer()))).start()
        seen.append("called")
        if bucket.is_last():
            go.set()
        return future.then(lambda future: (seen.append("done"), future.value())[1])
    def order(register):
        model = nn.Sequential(nn.Linear(99, 99), nn.Linear(99, 9)).to("webgpu")
        model = DistributedDataParallel(model, bucket_cap_mb=0.001)
        register(model, None, hook)
        x = torch.ones(1, 99, device="webgpu", requires_grad=True)
        for _ in range(2):  # the first has one bucket
            seen.clear()
            go.clear()
            model(x).sum().backward()
        return seen
    assert order(DistributedDataParallel.register_comm_hook.__wrapped__)[:2] == ["called", "called"], seen
    go.wait = lambda seconds: None
    assert order(DistributedDataParallel.register_comm_hook)[:2] == ["called", "done"], seen
    """
    run_ddp(script)


def test_delayed_gradients_are_still_not_waited_for() -> None:
    run_without_us("""
    from torch.nn.parallel import DistributedDataParallel as DDP
    names = DDP._delayed_all_reduce_hook.__code__.co_names
    assert {"all_reduce", "div_", "_delay_grad_buffer"} <= set(names) and "wait" not in names, names
    """)


def test_gradients_are_still_divided_in_the_sum() -> None:
    run_without_us("""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors as factors
    assert factors(None, None, torch.float32, "webgpu", 4.0)[2] == dist.ReduceOp.PREMUL_SUM
    assert factors(None, None, torch.float32, "webgpu", 4.0, True) == (None, 4.0, dist.ReduceOp.SUM, dist.ReduceOp.SUM)
    """)


def test_the_first_buckets_are_still_not_written() -> None:
    script = """
    from torch.distributed.algorithms.ddp_comm_hooks import mixed_precision_hooks
    from torch.nn.parallel.distributed import _MixedPrecision
    def gradient():
        model = DistributedDataParallel(
            nn.Linear(2, 2).to("webgpu"), mixed_precision=_MixedPrecision(param_dtype=torch.float16))
        model(torch.ones(1, 2, device="webgpu")).sum().backward()
        return model.module.weight.grad.cpu()
    assert gradient().tolist() == [[1, 1], [1, 1]]
    ours = mixed_precision_hooks._reducer_allreduce_and_upcast_hook
    mixed_precision_hooks._reducer_allreduce_and_upcast_hook = ours.__wrapped__
    assert gradient().tolist() != [[1, 1], [1, 1]]
    """
    run_ddp(script)


def run_ddp(script: str) -> None:
    """With a group of one rank, and PyTorch's own log, which goes to stderr, elsewhere."""
    quiet = "import logging; logging.getLogger('torch').addHandler(logging.NullHandler())\n"
    quiet += "logging.disable(logging.WARNING)\n"
    assert_ends_well(quiet + DDP + textwrap.dedent(script), TORCH_CPP_LOG_LEVEL="ERROR")


def test_the_ring_knows_three_attention_operators() -> None:
    """What context parallelism looks up is a dictionary of operators, and calls what it is given for one."""
    run_without_us("""
    import inspect
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring
    names = {str(op) for op in ring.custom_ops}
    assert len(names) == 6 and not any("overrideable" in name for name in names), names
    assert "custom_ops" in inspect.getsource(ring._enable_cp_dtensor_dispatcher)
    forward = inspect.signature(ring._templated_ring_attention).parameters
    assert list(forward)[:6] == ["group", "seq_dim", "op", "query", "key", "value"], forward
    backward = inspect.signature(ring._templated_ring_attention_backward).parameters
    assert {"grad_out", "grad_out_name", "out", "logsumexp", "is_causal"} <= set(backward), backward
    """)


def test_ranges_end_with_a_future() -> None:
    """In a thread that is not profiled: what shows the times of collectives."""
    run_without_us("""
    import threading
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU]) as p:
        end, shown = torch.futures.Future(), torch.autograd.profiler.record_function("range")
        shown.__enter__()
        shown._call_end_callbacks_on_future(end)
        torch.ones(2)
        thread = threading.Thread(target=end.set_result, args=(None,))
        thread.start()
        thread.join()
        torch.ones(3)
    at = {event.name: event.time_range for event in p.events()}["range"]
    first, last = [event.time_range for event in p.events() if event.name == "aten::ones"]
    assert at.start <= first.start and first.end <= at.end <= last.start
    """)


def test_kernels_of_the_cpu_hand_any_tensors_to_the_backend() -> None:
    """That is how fake groups get tensors of the device. The works of their backend break DDP on the CPU."""
    run_without_us("""
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    x, whole = torch.ones(2, device="meta"), torch.ones(4, device="meta")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    group = dist.group.WORLD.boxed()
    assert torch.ops.c10d._allgather_base_.default.redispatch(keys, whole, x, group, True, -1)[0] is whole
    """)
