"""The runner of PyTorch's own tests tells passes, the device's failures, shared failures, skips and crashes apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .plugin import neutral

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
import os
import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCUDA
from torch.testing._internal.common_utils import TestCase, run_tests

class TestSample(TestCase):
    @dtypes(torch.float32, torch.complex128)
    def test_right(self, device, dtype):
        self.assertEqual((torch.ones(3, device=device, dtype=dtype) + 1).tolist(), [2, 2, 2])
        self.assertEqual(torch.device(device).type, "cpu" if device == "cpu" else "webgpu")
    def test_wrong_here(self, device):
        self.assertEqual(torch.device(device).type, "cpu")
    def test_wrong_everywhere(self, device):
        self.assertEqual(1, 2)
    def test_crashes(self, device):
        if device != "cpu":
            os._exit(3)
    @onlyCUDA
    def test_elsewhere(self, device):
        pass

class TestPlain(TestCase):
    def test_of_no_device(self):
        self.fail()

instantiate_device_type_tests(TestSample, globals())
"""


def test_names_without_device() -> None:
    assert neutral("a/t.py::TestXPRIVATEUSE1::test_y_webgpu_float32") == "a/t.py::TestX::test_y_float32"
    assert neutral("a/t.py::TestXCPU::test_y_cpu") == "a/t.py::TestX::test_y"


def test_outcomes(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SUITE)
    (tmp_path / "test_broken.py").write_text("import torch.no_such_module\n")
    done = subprocess.run(
        [sys.executable, "-m", "tests.pytorch", str(tmp_path), "--files", "test_sample test_broken test_absent"]
        + ["--json", str(tmp_path / "out.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = {k.rpartition("::")[2]: v["verdict"] for k, v in json.loads((tmp_path / "out.json").read_text()).items()}
    assert found == {
        "test_right_float32": "passed",
        "test_wrong_here": "failed",
        "test_wrong_everywhere": "fails on the CPU, too",
        "test_crashes": "failed",
        "test_elsewhere": "skipped",
        "test_broken.py": "not imported",
    }, done.stdout + done.stderr
    assert done.returncode == 1
    assert "absent: test_absent.py" in done.stdout
    assert "No module named 'torch.no_such_module'" in done.stdout


RANKS_SUITE = """
import os
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms

class TestRanks(DTensorTestBase):
    @property
    def world_size(self):
        return 2
    @with_comms
    def test_right(self):
        x = torch.ones(3, device=self.device_type)
        dist.all_reduce(x)
        self.assertEqual(x.tolist(), [2.0] * 3)
        self.assertEqual(x.device.type, "webgpu" if dist.is_backend_available("webgpu") else "cpu")
    @with_comms
    def test_wrong_here(self):
        self.assertEqual(self.device_type, "cpu")
    @with_comms
    def test_wrong_everywhere(self):
        raise ValueError("of a rank")
    @with_comms
    def test_right_after_that(self):
        dist.barrier()
    @with_comms
    def test_crashes(self):
        if self.device_type != "cpu" and self.rank == 1:
            os._exit(3)
    @skip_if_lt_x_gpu(8)
    @with_comms
    def test_of_more_devices(self):
        self.fail()
"""


def rows_of_ranks(folder: Path, *arguments: str) -> tuple[dict[str, dict[str, str]], str]:
    """What came of a folder's tests of several processes, by test, and what the runner printed."""
    out = folder / "out.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.pytorch", str(folder), "--distributed", *arguments, "--json", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    printed = done.stdout + done.stderr
    assert out.exists(), printed
    return json.loads(out.read_text()), printed


@pytest.mark.slow
def test_outcomes_of_several_processes(tmp_path: Path) -> None:
    (tmp_path / "test_ranks.py").write_text(RANKS_SUITE)
    rows, printed = rows_of_ranks(tmp_path, "--files", "test_ranks")
    assert {k.rpartition("::")[2]: v["verdict"] for k, v in rows.items()} == {
        "test_right": "passed",
        "test_wrong_here": "failed",
        "test_wrong_everywhere": "fails on the CPU, too",
        "test_right_after_that": "passed",
        "test_crashes": "failed",
        "test_of_more_devices": "skipped",
    }, printed
    assert rows["test_ranks.py::TestRanks::test_wrong_everywhere"]["message"] == "ValueError: of a rank"


SPAWN_SUITE = """
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

class TestSpawned(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()
"""


@pytest.mark.slow
def test_tests_that_are_written_for_cuda_are_translated(tmp_path: Path) -> None:
    (tmp_path / "test_distributed_spawn.py").write_text(SPAWN_SUITE)
    chosen = ["--files", "test_distributed_spawn", "-k", "isend_irecv_self_nccl or all_gather_v_cuda"]
    rows, printed = rows_of_ranks(tmp_path, *chosen)
    assert {k.rpartition("::")[2]: v["verdict"] for k, v in rows.items()} == {
        "test_all_gather_v_cuda": "passed",
        "test_batch_isend_irecv_self_nccl": "passed",
    }, printed
