"""What ends badly: every rank ends with an error in words, and none hangs. Each test has processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.distributed.ranks import free_port

PRELUDE = """
import datetime, os, signal, sys, threading, time
import torch
from torch import distributed as dist
torch.set_num_threads(1)
dist.init_process_group(timeout=datetime.timedelta(seconds=float(os.environ.get("TIMEOUT", "60"))))
rank, device = dist.get_rank(), "webgpu"
x = torch.ones(1000, device=device)
dist.all_reduce(x)
def error(call):
    begin = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        print(f"error after {time.monotonic() - begin:.1f} s: {error}", flush=True)
    else:
        print("no error", flush=True)
"""


def run_ranks(script: str, count: int = 2, **environment: str) -> list[tuple[int, str, str]]:
    """(status, what it printed, what it said) of each rank."""
    common = os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            env=common | environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        return [(p.returncode, out, said) for p in started for out, said in [p.communicate(timeout=150)]]
    finally:
        for p in started:
            p.kill()


def test_a_peer_that_is_killed() -> None:
    """Inside of each of these; the survivor's errors name the collective, the tensors, the group and the rank."""
    script = """
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    big = torch.ones(2, 1000, device=device)
    error(lambda: dist.all_reduce(x))
    error(lambda: dist.all_reduce(x, async_op=True).wait())
    error(lambda: dist.broadcast(x, 1))
    error(lambda: dist.all_gather_into_tensor(big, x))
    error(lambda: dist.reduce_scatter_tensor(x, big))
    error(lambda: dist.all_to_all_single(big, big))
    error(lambda: dist.recv(x, 1))
    options = dist.BarrierOptions()
    options.device = x.device
    error(lambda: dist.group.WORLD.barrier(options).wait())
    work = dist.all_reduce(x, async_op=True)
    error(lambda: work.get_future().wait())
    print(work.is_completed(), work.is_success(), type(work.exception()).__name__)
    dist.destroy_process_group()
    """
    (code, out, said), (killed, _, _) = run_ranks(script)
    assert (code, killed) == (0, -9), said
    *errors, of_future = [line for line in out.splitlines() if line.startswith("error after")]
    names = (
        "all_reduce all_reduce broadcast all_gather_into_tensor reduce_scatter_tensor all_to_all_single recv barrier"
    )
    assert len(errors) == len(names.split())
    for line, name in zip(errors, names.split(), strict=True):
        assert line.startswith("error after"), line
        assert f" s: {name}" in line
        assert "rank 0 of 2" in line
    assert "all_reduce of float32[1000]" in of_future
    assert out.splitlines()[-1] == "True False RuntimeError"


@pytest.mark.slow
def test_a_rank_that_never_arrives() -> None:
    script = """
    if rank == 0:
        error(lambda: dist.all_reduce(x))
        os._exit(0)
    time.sleep(8)
    """
    (_, out, _), _ = run_ranks(script, TIMEOUT="3")
    assert "all_reduce of float32[1000] (group '0', rank 0 of 2)" in out
    assert "Timed out waiting 3000ms" in out


@pytest.mark.slow
def test_different_sizes_under_detail() -> None:
    script = "error(lambda: dist.all_reduce(torch.ones(10 + rank, device=device)))"
    for rank, (_, out, _) in enumerate(run_ranks(script, TORCH_DISTRIBUTED_DEBUG="DETAIL")):
        assert f"all_reduce of float32[{10 + rank}]" in out
        assert "Detected mismatch between collectives on ranks" in out


@pytest.mark.slow
def test_the_process_ends_with_work_underway() -> None:
    """What both have called is completed at the end, in silence."""
    for code, _, said in run_ranks("works = [dist.all_reduce(x, async_op=True) for _ in range(20)]"):
        assert (code, "terminate" in said, "Traceback" in said) == (0, False, False), said


def test_ctrl_c_interrupts_a_wait() -> None:
    script = """
    if rank == 0:
        for wait in (lambda: dist.irecv(x, 1).wait(), lambda: dist.all_reduce(x)):
            threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                wait()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        os._exit(0)
    time.sleep(10)
    os._exit(0)
    """
    (_, out, said), _ = run_ranks(script)
    assert out.split() == ["interrupted"] * 2, said


@pytest.mark.slow
def test_the_process_ends_while_a_peer_is_silent() -> None:
    """It says what was not complete, and ends."""
    script = """
    if rank == 0:
        work = dist.irecv(x, 1)
    else:
        time.sleep(30)
        os._exit(0)
    """
    (code, _, said), _ = run_ranks(script)
    assert code == 0, said
    assert "these collectives were not complete: recv of float32[1000]" in said


WORKER = """
import sys
import torch
from torch import distributed as dist
for number in range(10):  # torchrun's store keeps what each left
    dist.init_process_group()
    rank, x = dist.get_rank(), torch.ones(4, device="webgpu")
    dist.all_reduce(x)
    dist.all_reduce(x)
    pair = dist.new_group([0, 1], use_local_synchronization=True)
    dist.broadcast(x, 1, group=pair)
    dist.destroy_process_group(pair)
    dist.destroy_process_group()
adapter = torch.webgpu.current_device()
sys.stdout.write(f"trained {rank} on {adapter}: {x[0].item()}" + chr(10))  # in one write
"""


@pytest.mark.parametrize("per_node", ["webgpu", pytest.param("2", marks=pytest.mark.slow)])
def test_torchrun(tmp_path: Path, per_node: str) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", per_node, "--master-port",
            str(free_port()), str(tmp_path / "worker.py"),
        ],
        env=os.environ | {"TORCH_WEBGPU_COPIES": "2", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["trained 0 on 0: 4.0", "trained 1 on 1: 4.0"]
