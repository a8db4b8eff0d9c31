"""TORCH_WEBGPU_DEBUG: every stage prints what it does, and one that there is not is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.device.processes import run_script

from torch_webgpu.api.host_costs import HostCost, advice
from torch_webgpu.config import DEBUG_STAGES, PRINTED_STAGES

PROGRAM = """
    x = torch.ones(4, 4, device="webgpu")
    for _ in range(2):
        (x * 2 + 1).sum().item()
    torch._foreach_add([x, x], 1.0)[0].cpu()
    torch.linalg.eigvals(x.to(torch.complex128))
"""
SAYS = {
    "record": ["operations on webgpu:0, now because a value was read", "aten.mul"],
    "fuse": ["operations become", "mul+add+sum", "← "],
    "passes": ["match_and_fuse, of", "match_and_fuse, made", "lower, made", "share_memory, changed nothing"],
    "wgsl": ["windows ()", "1 | struct Params", "fn main"],
    "plan": ["of 3 operations on webgpu:0", "mul+add+sum (1, 1, 1) x0=b0"],
    "fallback": ["_linalg_eigvals", "no kernel computes with a dtype among its arguments"],
    "host": ["flush because a value was read", "plan of 3 operations", "fallback _linalg_eigvals: no kernel"],
}


@pytest.mark.parametrize("stage", [stage for stage in PRINTED_STAGES if stage != "compile"])
def test_a_stage_is_printed_and_no_other(stage: str) -> None:
    done = run_script(PROGRAM, TORCH_WEBGPU_DEBUG=stage, TORCH_WEBGPU_FALLBACK="silent")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert all(text in done.stderr for text in SAYS[stage]), done.stderr
    assert {line.split("]")[0] for line in done.stderr.splitlines() if line.startswith("[")} == {f"[webgpu {stage}"}


def test_the_stage_compile_says_what_became_of_modules_once() -> None:
    program = """
        class Reads(torch.nn.Module):
            def forward(self, x):
                return x * x.sum().tolist()
        x = torch.ones(4, 4, device="webgpu")
        with torch.webgpu.auto_compile(after=2), torch.no_grad():
            for module in (torch.nn.Tanh(), Reads()):
                for _ in range(6):
                    module(x)
    """
    done = run_script(program, TORCH_WEBGPU_DEBUG="compile")
    assert done.returncode == 0, done.stderr
    first, second = (line for line in done.stderr.splitlines() if line.startswith("[webgpu compile]"))
    assert first == "[webgpu compile] Tanh is compiled after 2 calls alike"
    assert second.startswith("[webgpu compile] Reads stays eager, its parts are looked at instead: ")


@pytest.mark.parametrize("auto", [False, True])
def test_eager_programs_whose_host_is_late_are_told_of_compilation(auto: bool) -> None:
    program = """
        module = torch.nn.Linear(4, 4).to("webgpu")
        x = torch.ones(4, 4, device="webgpu")
        with torch.no_grad():
            for _ in range(120):
                y = module(x)
                torch.webgpu.flush_batch()
    """
    done = run_script(program, TORCH_WEBGPU_DEBUG="host", TORCH_WEBGPU_AUTO_COMPILE=str(int(auto)))
    assert done.returncode == 0, done.stderr
    assert ("TORCH_WEBGPU_AUTO_COMPILE=1" in done.stderr) != auto, done.stderr


def test_programs_that_wait_or_flush_seldom_are_not() -> None:
    flushes, waits = HostCost("flush", "", "", 200, 1e5), HostCost("wait", "", "", 10, 3e6)
    assert "200 flushes" in advice([flushes, waits], 10.0)
    assert "in 30 % of the time" in advice([flushes, waits], 10.0)
    assert not advice([flushes, waits], 5.0)
    assert not advice([replace(flushes, count=20), waits], 10.0)


def test_stages_can_be_combined() -> None:
    done = run_script(PROGRAM, TORCH_WEBGPU_DEBUG="fuse, plan", TORCH_WEBGPU_FALLBACK="silent")
    assert "[webgpu fuse]" in done.stderr
    assert "[webgpu plan]" in done.stderr


def test_a_stage_that_there_is_not_is_an_error() -> None:
    done = run_script(PROGRAM, TORCH_WEBGPU_DEBUG="fuse,wgls")
    assert done.returncode
    assert f"there is no stage wgls, only {', '.join(DEBUG_STAGES)}" in done.stderr
