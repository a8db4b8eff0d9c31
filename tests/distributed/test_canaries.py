"""What is replaced in ``torch.distributed`` is still as PyTorch has it: each of these fails when PyTorch changes it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


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
