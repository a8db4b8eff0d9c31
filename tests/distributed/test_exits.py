"""Processes that end, or are interrupted, with collectives underway: none hangs, none ends by a signal."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.distributed.programs import TRANSPORTS, ended, run_ranks, torchrun

TOGETHER = """
works = [dist.all_reduce(x, async_op=True) for _ in range(20)]
if rank == 1:
    sys.exit(3)
if rank == 2:
    raise ValueError("of the program")
"""


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_end_with_work_underway(transport: str) -> None:
    """At the last line, by sys.exit and by an exception: what all have called is completed first, in silence."""
    ranks = run_ranks(TOGETHER, 3, **TRANSPORTS[transport]())
    assert [one.code for one in ranks] == [0, 3, 1], [one.said for one in ranks]
    assert ["Traceback" in one.said for one in ranks] == [False, False, True], [one.said for one in ranks]
    assert "ValueError: of the program" in ranks[2].said
    assert not any("terminate" in one.said or "not complete" in one.said for one in ranks)


CALLBACK = """
work = dist.all_reduce(x, async_op=True)
following = work.get_future().then(lambda _: (time.sleep(1.0), print("followed", flush=True)))
work.wait()
"""


def test_a_process_that_ends_waits_for_callbacks() -> None:
    """A thread that is in one when the interpreter ends would end the process by a signal."""
    ranks = run_ranks(CALLBACK, 2)
    assert [one.code for one in ranks] == [0, 0], [one.said for one in ranks]
    assert all("followed" in one.out for one in ranks), [one.said for one in ranks]


ALONE = """
pair = dist.new_group([0, 2])
if rank != 1:
    dist.all_reduce(x, group=pair)  # all ranks of a group come to its first collective
if rank == 0:  # at the last line, with all of these underway
    works = [dist.all_reduce(x, async_op=True, group=pair) for _ in range(3)] + [dist.irecv(x, 2)]
    threading.Thread(target=lambda: dist.recv(torch.ones(7, device=device), 2), daemon=True).start()
if rank == 1:
    work = dist.irecv(x, 2)
    os._exit(4)
if rank == 2:
    error(lambda: dist.recv(x, 1))
    sys.stdin.read()  # silent until the test has seen the others end
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_ends_while_a_peer_is_silent(transport: str) -> None:
    """It says what was not complete, and ends; os._exit ends at once, which others notice."""
    last, at_once, silent = run_ranks(ALONE, 3, ends_last=2, **TRANSPORTS[transport]())
    assert (last.code, at_once.code, silent.code) == (0, 4, 0), last.said
    assert "these collectives were not complete: all_reduce of float32[1000]" in last.said
    assert "recv of float32[1000] from rank 2" in last.said
    assert "recv of float32[7] from rank 2" in last.said
    assert "terminate" not in last.said
    assert "recv of float32[1000] from rank 1 (group '0', rank 2 of 3)" in silent.out


INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
if rank == 0:
    for wait in (
        lambda: dist.irecv(x, 1).wait(),
        lambda: dist.all_reduce(x, async_op=True).wait(),
        lambda: dist.all_reduce(x),
    ):
        threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            wait()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    os._exit(0)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.parametrize("transport", ["gloo", pytest.param("shared memory", marks=pytest.mark.slow)])
def test_ctrl_c_interrupts_a_wait(transport: str) -> None:
    interrupted, _ = run_ranks(INTERRUPTED, ends_last=1, **TRANSPORTS[transport]())
    assert interrupted.out.split() == ["interrupted"] * 3, interrupted.said


WORKER = """
import os, sys, time
import torch
from torch import distributed as dist
dist.init_process_group()
x = torch.ones(4, device="webgpu")
dist.all_reduce(x)
sys.stdout.write(f"inside {os.getpid()}" + chr(10))  # in one write
sys.stdout.flush()
if dist.get_rank() == 0:
    dist.all_reduce(x)
time.sleep(600)
"""


@pytest.mark.slow
def test_ctrl_c_ends_torchrun(tmp_path: Path) -> None:
    """And both its workers: one in a synchronous collective, one in Python."""
    (tmp_path / "worker.py").write_text(WORKER)
    running = torchrun(tmp_path / "worker.py")
    assert running.stdout is not None
    workers = [int(running.stdout.readline().split()[1]) for _ in range(2)]
    running.send_signal(signal.SIGINT)
    result = ended(running)
    assert result.code != 0
    assert "got signal: 2" in result.said
    assert result.said.count("KeyboardInterrupt") >= 2, result.said
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
