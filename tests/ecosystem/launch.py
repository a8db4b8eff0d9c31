"""Programs of several ranks, in the folder ``ranks``: started as their libraries' users do, on webgpu and on the CPU.

Each prints what its rank 0 saw, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.ranks import free_port

from . import compare

PROGRAMS = Path(__file__).parent / "ranks"
TIMEOUT_S = 420
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "{port}")
ACCELERATE = (
    "-m", "accelerate.commands.accelerate_cli", "launch", "--num_processes", "2", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "{port}",
)  # fmt: skip


def launched(launcher: tuple[str, ...], program: str, folder: Path, *arguments: str, copies: int = 2) -> Any:
    """What the program of two ranks printed. ``copies``: how many adapters they have between them."""
    folder.mkdir()
    port = str(free_port())
    command = [sys.executable, *(part.format(port=port) for part in launcher), str(PROGRAMS / program), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_WEBGPU_COPIES": str(copies)}
    done = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    result = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    assert result.pop("ranks") == 2
    compare.used.add(result["device"])
    return result


def assert_alike(ours: Any, cpu: Any, *names: str, close: float = 1e-4) -> None:
    """The numbers of these names, in lists and by name, are those of the CPU's ranks; and each ran where it should."""
    assert (ours["device"], cpu["device"]) == ("webgpu", "cpu")
    for name in names:
        torch.testing.assert_close(ours[name], cpu[name], rtol=close, atol=close, msg=lambda m, n=name: f"{n}: {m}")


only_webgpu = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="where there is CUDA, the library chooses that"),
    pytest.mark.timeout(3 * TIMEOUT_S),
]
