"""Programs of several ranks that a test starts for itself, since they end badly, and what they said."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.distributed.ranks import free_port
from tests.distributed.remains import Remains

ROOT = Path(__file__).parents[2]
LONGEST_S = 240
PRELUDE = """
import datetime, os, signal, sys, threading, time
import torch
from torch import distributed as dist
torch.set_num_threads(1)
dist.init_process_group(timeout=datetime.timedelta(seconds=float(os.environ.get("TIMEOUT", "60"))))
rank, size, device = dist.get_rank(), dist.get_world_size(), "webgpu"
x = torch.ones(1000, device=device)
dist.all_reduce(x)
def error(call, name=""):
    begin = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        said = f"{name}error after {time.monotonic() - begin:.1f} s: {error}".replace(chr(10), " ")
    else:
        said = f"{name}no error"
    sys.stdout.write(said + chr(10))  # in one write: threads
    sys.stdout.flush()
"""
"""What every such program begins with. ``error`` prints the error of a call."""


class Ended(NamedTuple):
    """How a rank ended: its status, what it printed, and what it said beside that."""

    code: int
    out: str
    said: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def run_ranks(script: str, count: int = 2, ends_last: int | None = None, **environment: str) -> list[Ended]:
    """Runs a program on so many ranks, until all have ended; TimeoutExpired where one does not within minutes.

    ``ends_last``: the rank that can read no more from its standard input once the others have ended. AssertionError if
    a process or a file is left.
    """
    remains = Remains()
    common = os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            env=common | environment | remains.environment | {"RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        outputs = {}
        for rank in sorted(range(count), key=lambda one: one == ends_last):  # communicate() ends its input
            outputs[rank] = started[rank].communicate(timeout=LONGEST_S)
    finally:
        for p in started:
            p.kill()
    remains.assert_none()
    return [Ended(p.returncode, *outputs[rank]) for rank, p in enumerate(started)]


def torchrun(
    script: Path, *options: str, arguments: Iterable[object] = (), **environment: str
) -> subprocess.Popen[str]:
    """``torchrun`` of a program on two ranks, with an adapter each. Nobody waits for it."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
        "--log-dir", str(script.parent / "logs"), *options, str(script), *map(str, arguments),
    ]  # fmt: skip
    common = os.environ | {"TORCH_WEBGPU_COPIES": "2", "OMP_NUM_THREADS": "1"}
    remains = Remains()
    started = subprocess.Popen(
        command,
        env=common | environment | remains.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    remains_of[started.pid] = remains
    return started


remains_of: dict[int, Remains] = {}
"""What to look for when the torchrun of a number has ended."""


def ended(process: subprocess.Popen[str]) -> Ended:
    """Waits for what :func:`torchrun` has started. AssertionError if a process or a file is left."""
    try:
        out, said = process.communicate(timeout=LONGEST_S)
    finally:
        process.terminate()  # torchrun ends its workers
    remains_of.pop(process.pid).assert_none()
    return Ended(process.returncode, out, said)


def over_gloo() -> dict[str, str]:
    """The environment of ranks that exchange through gloo, on the adapter that the tests run on."""
    return {"TORCH_WEBGPU_SHARED_MEMORY": "0"}


def over_shared_memory() -> dict[str, str]:
    """The environment of ranks that exchange through shared memory, which is Dawn's. Skips the test where none is."""
    if not sys.platform.startswith("linux") or find_spec("wgpudawn") is None:
        pytest.skip("exchange through shared memory needs Linux and Dawn (pip install torch-webgpu[dawn])")
    if os.environ.get("TORCH_WEBGPU_IMPLEMENTATION") == "dawn":
        return {}
    named = os.environ.get("TORCH_WEBGPU_TEST_SWIFTSHADER")
    driver = Path(named) if named else ROOT / ".swiftshader" / "vk_swiftshader_icd.json"
    if not driver.exists():
        pytest.skip("SwiftShader, on which Dawn shares memory, is not installed (make swiftshader)")
    return {"TORCH_WEBGPU_IMPLEMENTATION": "dawn", "VK_DRIVER_FILES": str(driver)}


TRANSPORTS = {"gloo": over_gloo, "shared memory": over_shared_memory}
