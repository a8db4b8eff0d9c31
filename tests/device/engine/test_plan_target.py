"""Plans for targets: made in a process without any adapter, run where there is one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.plans_for_targets import inputs, plans
from torch._subclasses import FakeTensorMode

from torch_webgpu.errors import RequirementError, TraceError, WebGPUError
from torch_webgpu.plan import Plan, Requirements, bind, trace
from torch_webgpu.target import named

ROOT = Path(__file__).parents[3]
NOWHERE = {"VK_DRIVER_FILES": "/nonexistent", "__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent"}
"""Hides the drivers of Vulkan and of OpenGL."""


def other_process(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "tests.plans_for_targets", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans that were made where there is no adapter."""
    folder = tmp_path_factory.mktemp("plans")
    assert other_process("make", str(folder), **NOWHERE) == "adapters: 0\n"
    return folder


def test_they_are_the_same_byte_for_byte_as_with_an_adapter(folder: Path) -> None:
    assert torch.webgpu.device_count() > 0
    for name, plan in plans().items():
        read = Plan.load(folder / f"{name}.npz", trusted=True)
        assert read.to_json() == plan.to_json(), name
        assert read.contents == plan.contents


def test_they_run_on_this_adapter(folder: Path) -> None:
    """In a process that has not traced them; where an index is out of range, its operator has its name there, too."""
    said = other_process("run", str(folder))
    assert said.count("ran") == len(inputs())
    assert re.match("refused embedding: index 1[25] is out of bounds for dimension 0 with size 11", said), said


def test_they_run_on_dawn(folder: Path) -> None:
    pytest.importorskip("wgpudawn")
    manifest = ROOT / ".swiftshader" / "vk_swiftshader_icd.json"
    if not manifest.exists():
        pytest.skip("SwiftShader, the adapter that Dawn runs on here, is not installed (make swiftshader)")
    environment = {"VK_DRIVER_FILES": str(manifest), "TORCH_WEBGPU_IMPLEMENTATION": "dawn"}
    assert other_process("run", str(folder), **environment).count("ran") == len(inputs())


def test_of_inputs_only_layouts_matter() -> None:
    with FakeTensorMode():
        fake = torch.empty(4, 6)
    made = [
        trace(lambda x: x.t() @ x, t, target="browser")
        for t in (torch.ones(4, 6), fake, torch.empty(4, 6, device="meta"), torch.ones(4, 6, device="webgpu"))
    ]
    assert all(plan == made[0] for plan in made)
    assert made[0] != trace(lambda x: x.t() @ x, torch.ones(6, 4).t(), target="browser")


def test_inputs_have_names_and_roles() -> None:
    plan = plans()["training_step"]
    buffers = {buffer.name: buffer.role for buffer in plan.buffers}
    assert buffers["params.0.weight"] == "weight"
    assert buffers["state.1.running_mean"] == "state"
    assert buffers["labels"] == "input"
    assert [plan.buffers[spec.buffer].role for spec in plan.outputs] == ["output"] * len(plan.outputs)


def test_nothing_of_the_programs_own_device_is_disturbed(device: torch.device) -> None:
    x = torch.arange(6.0, device=device)
    y = x * 2
    trace(lambda t: t.exp(), torch.empty(3), target="metal")
    assert torch.webgpu.current_device() == 0
    assert (y + x).tolist() == [0, 3, 6, 9, 12, 15]


def test_what_it_uses_besides_is_said() -> None:
    weight = torch.ones(3)
    with pytest.raises(TraceError, match="for the target 'browser' uses a tensor that is neither one of its inputs"):
        trace(lambda x: x + weight, torch.empty(3), target="browser")
    with pytest.raises(TraceError, match=r"values cannot be read.*for the target 'browser'"):
        trace(lambda x: x.sum().item(), torch.empty(3), target="browser")


def test_nothing_runs_on_a_target() -> None:
    leaked: list[torch.Tensor] = []
    trace(lambda x: leaked.append(x + 1) or x * 2, torch.empty(3), target="browser")
    with pytest.raises(TraceError, match="never computed"):
        leaked[0].cpu()


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'browser'"):
        trace(lambda x: x, torch.empty(3), target="brwser")


def test_what_a_plan_requires_is_checked_when_it_is_bound() -> None:
    plan = trace(lambda x: x.exp(), torch.empty(300, device="meta"))
    assert plan.requires.workgroup_threads == 256
    bind(plan)
    needs = Requirements(features=("float64",), max_buffers=1000, workgroup_bytes=1 << 20, subgroup_size=7)
    with pytest.raises(RequirementError) as error:
        bind(replace(plan, requires=needs))
    target = torch_target()
    for part in (
        f"max_buffers 1000, and it has {target.max_buffers}",
        f"workgroup_bytes 1048576, and it has {target.workgroup_bytes}",
        "subgroups of 7 threads",
    ):
        assert part in str(error.value)
    assert ("float64, which it does not have" in str(error.value)) is not target.float64


def torch_target() -> object:
    from torch_webgpu.engine.record import engine

    return engine().device(0).target


def test_a_plan_says_what_a_smaller_adapter_lacks() -> None:
    """Made for tensor cores, of which a page has none."""
    q = torch.empty(4, 25, 64, 16, dtype=torch.float16)
    fn = torch.nn.functional.scaled_dot_product_attention
    plan = trace(lambda t: fn(t, t, t, is_causal=True), q, target="h200-dawn")
    lacks = plan.requires.missing(named("browser"))
    assert any("float16" in one for one in lacks)
    assert any("16 × 16" in one for one in lacks)
    assert any(one.startswith("workgroup_bytes") for one in lacks)
    assert not plan.requires.missing(named("h200-dawn"))
    with pytest.raises(WebGPUError, match="cannot run this plan: it needs"):
        bind(plan)
