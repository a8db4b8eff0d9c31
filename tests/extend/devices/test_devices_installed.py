"""Third implementations of an installed package: found, listed, chosen by the environment; the runtime's tests on them.

The sample that is in every run is the runtime's own tests; ``--full`` runs all of ``tests/device/runtime``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.webgpu_double import CheckedWebGPU  # noqa: F401  that the tests' packages are found from here

ROOT = Path(__file__).parents[3]
RUNTIME = "tests/device/runtime"
SAMPLE = (
    f"{RUNTIME}/test_bounds.py",
    f"{RUNTIME}/test_runtime.py::test_commands_of_one_submission_run_in_order",
    f"{RUNTIME}/test_runtime.py::test_transfers_of_any_alignment_touch_only_their_bytes",
)


def run(site: Path, *command: str, timeout_s: int = 100, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths} | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_one_is_chosen_by_the_environment_and_logs_every_call(installed: Path, tmp_path: Path) -> None:
    program = """
import torch
device = torch.webgpu.get_device_properties(0)
assert device.implementation == "logged", device
x = torch.ones(4, device="webgpu") * 2
assert x.sum().item() == 8
assert torch.webgpu.registry.get_device("logged").origin == "third-implementations 0.1.0"
assert torch.webgpu.registry.get_device_context("logged").device == torch.device("webgpu:0")
from third_implementations.logged import CALLS
assert CALLS["run"] and CALLS["create_pipeline"] == CALLS["create_shader"]
"""
    log = tmp_path / "calls.log"
    done = run(installed, "-c", program, TORCH_WEBGPU_IMPLEMENTATION="logged", LOGGED_CALLS=str(log))
    assert done.returncode == 0, done.stderr
    calls = [line.partition("(")[0] for line in log.read_text("utf-8").splitlines()]
    assert {"create_buffer", "create_shader", "create_pipeline", "dispatch_workgroups", "run", "map"} <= set(calls)
    assert calls.index("create_pipeline") < calls.index("dispatch_workgroups") < calls.index("map")


def test_faults_come_from_the_environment(installed: Path) -> None:
    program = """
import pytest, torch
x = torch.ones(4, device="webgpu") * 2
with pytest.raises(RuntimeError, match="mapping .* failed .injected."):
    x.cpu()
assert x.cpu().tolist() == [2.0] * 4
"""
    environment = {"TORCH_WEBGPU_IMPLEMENTATION": "faults", "INJECTED_FAULTS": "failed-map:1"}
    done = run(installed, "-c", program, **environment)
    assert done.returncode == 0, done.stderr


def test_a_wrong_name_is_told_the_nearest_of_an_installed_package(installed: Path) -> None:
    program = """
import pytest, torch
with pytest.raises(ValueError, match=r"expected one of auto, wgpu, dawn, faults, logged \\(did you mean 'logged'"):
    torch.ones(1, device="webgpu")
"""
    done = run(installed, "-W", "ignore", "-c", program, TORCH_WEBGPU_IMPLEMENTATION="loged")
    assert done.returncode == 0, done.stderr


BROKEN = """
[torch_webgpu.implementations]
missing = third_implementations.logged:NOTHING
other = third_implementations.logged:CONFIG
"""


def test_the_doctor_lists_them_and_says_what_is_wrong_with_one(installed: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n", "utf-8")
    (broken / "entry_points.txt").write_text(BROKEN, "utf-8")
    program = """
import json
from torch_webgpu import doctor
doctor.survey = lambda: (_ for _ in ()).throw(doctor.NoAdapterError("not asked here"))
print(json.dumps(doctor.diagnose().to_dict()))
"""
    done = run(installed, "-c", program, PYTHONPATH=os.pathsep.join([str(installed), str(tmp_path), str(ROOT / "src")]))
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["implementations"]}
    assert list(found) == ["dawn", "wgpu", "faults", "logged", "missing", "other"]
    for name in ("faults", "logged"):
        assert found[name]["package"] == "third-implementations 0.1.0"
        assert (found[name]["version"], found[name]["wrong"]) == (found["wgpu"]["version"], "")
    assert "'missing' of broken 1.0" in found["missing"]["wrong"]
    assert "AttributeError" in found["missing"]["wrong"]
    assert "calls itself 'logged'" in found["other"]["wrong"]


@pytest.mark.parametrize("name", ["logged", "faults"])
def test_a_sample_of_the_runtimes_tests_pass(installed: Path, name: str) -> None:
    run_tests(installed, name, *SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logged", "faults"])
def test_all_of_the_runtimes_tests_pass(installed: Path, name: str) -> None:
    run_tests(installed, name, RUNTIME)


def run_tests(site: Path, name: str, *tests: str) -> None:
    """These tests pass with an implementation, which is the one that they use."""
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = run(site, *command, timeout_s=280, TORCH_WEBGPU_IMPLEMENTATION=name)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
