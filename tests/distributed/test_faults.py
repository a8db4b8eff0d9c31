"""What goes wrong among ranks that are alive: every rank ends with an error in words, and none hangs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed.programs import TRANSPORTS, ended, run_ranks, torchrun

APART = """
import warnings
warnings.simplefilter("ignore")
def one(count, dtype=torch.float32):
    return torch.ones(count, dtype=dtype, device=device)
def group():
    made = dist.new_group(timeout=datetime.timedelta(seconds=4))
    dist.all_reduce(one(3), group=made)
    return made
calls = {
    "sizes": lambda group: dist.all_reduce(one(10 + rank), group=group),
    "large": lambda group: dist.all_reduce(one(1_000_000 * (1 + rank)), group=group),
    "dtypes": lambda group: dist.all_reduce(one(10, torch.float32 if rank else torch.int32), group=group),
    "collectives": lambda group: (
        dist.all_gather_into_tensor(one(10 * size), one(10), group=group) if rank
        else dist.all_reduce(one(10), group=group)
    ),
    "broadcast": lambda group: dist.broadcast(one(10 + rank), 0, group=group),
    "gather": lambda group: dist.all_gather_into_tensor(one((10 + rank) * size), one(10 + rank), group=group),
    "scatter": lambda group: dist.reduce_scatter_tensor(one(10 + rank), one((10 + rank) * size), group=group),
}
late = group()
if rank != 2:
    error(lambda: dist.all_reduce(x, group=late), "late ")
dist.barrier(device_ids=[0])
for name in (sys.argv[1:] or calls):
    apart = group()
    error(lambda: calls[name](apart), name + " ")
    dist.barrier(device_ids=[0])
dist.destroy_process_group()
"""
NAMES = ["sizes", "large", "dtypes", "collectives", "broadcast", "gather", "scatter"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "level"), [("gloo", "DETAIL"), ("shared memory", "OFF"), ("shared memory", "DETAIL")]
)
def test_ranks_that_call_something_else(transport: str, level: str) -> None:
    """Other sizes, dtypes, collectives, and none at all: an error on each rank, and other groups go on."""
    ranks = run_ranks(APART, 3, TORCH_DISTRIBUTED_DEBUG=level, **TRANSPORTS[transport]())
    for rank, one in enumerate(ranks):
        assert one.code == 0, one.said
        errors = {line.split()[0]: line for line in one.lines}
        assert list(errors) == (NAMES if rank == 2 else ["late", *NAMES])
        for name, line in errors.items():
            assert " error after " in line, line
            assert f"rank {rank} of 3)" in line, line
            if name == "late":
                assert "all_reduce of float32[1000] (group '1'" in line
                assert "No word from rank 2: " in line or "4000ms for rank 2 of 3" in line, line
            else:
                assert "mismatch between collectives on ranks" in line or "mismatched collectives: rank" in line, line
        assert f"all_reduce of float32[{10 + rank}]" in errors["sizes"]


@pytest.mark.slow
def test_gloo_without_detail() -> None:
    """gloo ends a process that receives more than it expects (on the CPU, too). The others' barrier ends, too."""
    environment = {"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_WEBGPU_SHARED_MEMORY": "0"}
    ranks = run_ranks(APART, 3, **environment)
    for one in ranks[:2]:
        assert "Timed out waiting 4000ms" in one.lines[0]
        assert "No word from rank 2: " in one.lines[0]
    by_gloo = [one for one in ranks if "Is there a distributed collective mismatch in your code?" in one.said]
    assert by_gloo
    assert all(one.code < 0 for one in by_gloo)
    for one in ranks:
        in_barrier = one.code == 1 and ", in barrier" in one.said and "onnection" in one.said
        assert one in by_gloo or in_barrier, one.said


LOST = """
from torch_webgpu.engine.record import engine
works = [dist.all_reduce(torch.ones(1000, device=device), async_op=True)]
works[0].wait()
if rank == 1:
    engine().device(0).opened.native.destroy()
for name, call in {
    "waits": lambda: dist.all_reduce(x),
    "asynchronous": lambda: dist.all_reduce(x, async_op=True).wait(),
    "gather": lambda: dist.all_gather_into_tensor(torch.ones(2000, device=device), x),
}.items():
    error(call, name + " ")
if rank == 1:
    sys.stdin.read()  # the other has ended by itself
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_lost_device(transport: str) -> None:
    """The rank that lost it says so each time, and the other at once that this one gave up, and why."""
    survivor, lost = run_ranks(LOST, ends_last=1, **TRANSPORTS[transport]())
    for rank, one in enumerate((survivor, lost)):
        assert one.code == 0, one.said
        assert [line.split()[0] for line in one.lines] == ["waits", "asynchronous", "gather"]
        assert all(" error after " in line and f"rank {rank} of 2" in line for line in one.lines), one.out
    assert all(" was lost: " in line for line in lost.lines), lost.out
    assert "ank 1 gave up: " in survivor.lines[0], survivor.out
    assert "was lost: " in survivor.lines[0], survivor.out


IN_PYTHON = """
if rank == 1:
    raise ValueError("of rank 1")
error(lambda: dist.all_reduce(x))
"""
CAUGHT = """
if rank == 1:
    try:
        raise ValueError("of rank 1")
    except ValueError:
        sys.stdin.read()  # it goes on, and calls nothing
        os._exit(0)
error(lambda: dist.all_reduce(x))
"""


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_error_in_the_python_of_one_rank(transport: str) -> None:
    """The others end when its process does, or after the timeout if it goes on without them."""
    survivor, failed = run_ranks(IN_PYTHON, **TRANSPORTS[transport]())
    assert (survivor.code, failed.code) == (0, 1), survivor.said
    assert "ValueError: of rank 1" in failed.said
    assert "all_reduce of float32[1000] (group '0', rank 0 of 2)" in survivor.out
    assert "onnection" in survivor.out or "rank 1 is gone" in survivor.out
    survivor, failed = run_ranks(CAUGHT, ends_last=1, TIMEOUT="4", **TRANSPORTS[transport]())
    assert (survivor.code, failed.code) == (0, 0), survivor.said
    assert "Timed out waiting 4000ms" in survivor.out
    assert "No word from rank 1: " in survivor.out or "for rank 1 of 2" in survivor.out


NEVER = """
import datetime, os, sys
if os.environ["RANK"] == "1":
    sys.exit(0)
import torch
from torch import distributed as dist
try:
    dist.init_process_group(timeout=datetime.timedelta(seconds=4))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_rank_that_never_arrives_at_the_group(tmp_path: Path) -> None:
    """The error names it, under torchrun."""
    (tmp_path / "worker.py").write_text(NEVER)
    one = ended(torchrun(tmp_path / "worker.py"))
    assert one.code == 0, one.said
    assert "init_process_group (rank 0 of 2): timed out after 4 seconds, in which rank 1 did not arrive" in one.out


WORKER = """
import sys
import torch
from torch import distributed as dist
dist.init_process_group()
x = torch.ones(4, device="webgpu")
dist.all_reduce(x)
dist.all_reduce(x)
adapter = torch.webgpu.current_device()
sys.stdout.write(f"trained {dist.get_rank()} on {adapter}: {x[0].item()}" + chr(10))  # in one write
dist.destroy_process_group()
"""


@pytest.mark.parametrize("per_node", ["webgpu", pytest.param("2", marks=pytest.mark.slow)])
def test_torchrun(tmp_path: Path, per_node: str) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    one = ended(torchrun(tmp_path / "worker.py", "--nproc-per-node", per_node))
    assert one.code == 0, one.said
    assert sorted(one.lines) == ["trained 0 on 0: 4.0", "trained 1 on 1: 4.0"]
