"""What the doctor says of each implementation and adapter, without any."""

from __future__ import annotations

import json
import logging
import subprocess
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from tests.webgpu_double import CheckedWebGPU

from torch_webgpu import cli, config, doctor
from torch_webgpu.doctor import Check
from torch_webgpu.errors import NoAdapterError
from torch_webgpu.runtime.adapters import Survey
from torch_webgpu.runtime.implementation import Adapter
from torch_webgpu.target import MatrixConfig

CORES = (MatrixConfig("f16", "f32", 16, 8, 16, 32),)


class Machine:
    """What there is: changed by tests before they ask the doctor. ``tried``: what each subprocess says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dawn, self.wgpu = CheckedWebGPU("dawn"), CheckedWebGPU("wgpu")
        self.absent: dict[str, Exception] = {}
        self.seen: Survey | Exception = Survey()
        self.tried: dict[str, str | Exception] = {}
        self.flags: dict[str, str] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(doctor, "implementation", self.implementation)
        monkeypatch.setattr(doctor, "survey", self.survey)
        monkeypatch.setattr(doctor, "devices", self.devices)
        monkeypatch.setattr(doctor, "check_adapter", lambda index: [Check("sum", True, "exact")])
        monkeypatch.setattr(doctor, "libraries", list)
        monkeypatch.setattr(doctor, "config", lambda: config.Config(**self.flags))
        monkeypatch.setattr(subprocess, "run", self.run)

    def implementation(self, name: str) -> CheckedWebGPU:
        if name in self.absent:
            raise self.absent[name]
        if name == "dawn":
            logging.getLogger("torch_webgpu").info("Warning: that one lacks something")
        return {"dawn": self.dawn, "wgpu": self.wgpu}[name]

    def devices(self) -> list[SimpleNamespace]:
        assert isinstance(self.seen, Survey)
        return [
            SimpleNamespace(index=index, implementation=listings[0].implementation.name)
            for index, listings in enumerate(self.seen.gpus)
        ]

    def survey(self) -> Survey:
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen

    def run(self, command: list[str], env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
        name = env["TORCH_WEBGPU_IMPLEMENTATION"]
        self.asked.append(name)
        said = self.tried[name]
        if isinstance(said, Exception):
            raise said
        return subprocess.CompletedProcess(command, 0, said, "")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def saying(adapter: Adapter, ok: bool) -> str:
    """What a doctor in another process says of an adapter."""
    checks = [asdict(Check("sum", ok, "found there"))]
    return json.dumps(
        {"adapters": [{"name": adapter.info["device"], "backend": adapter.info["backend_type"], "checks": checks}]}
    )


def test_both_implementations_offer_one_gpu(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    best, other = machine.dawn.adapter(matrices=CORES), machine.wgpu.adapter()
    machine.seen, machine.tried["wgpu"] = Survey(gpus=[[best, other]]), saying(other, True)
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for line in (
        "dawn  0, compiles with naga\n  Warning: that one lacks something\nwgpu  0, compiles with naga\n",
        "webgpu:0  Checked GPU\n",
        "served by dawn: dawn is preferred on a GPU, and its probe came out right\n  right  sum",
        "subgroup matrices: f16→f32 16×8×16",
        "unused  Checked GPU\n",
        "served by wgpu: webgpu:0 is the same GPU\n  right  sum                   found there",
    ):
        assert line in text
    assert machine.asked == ["wgpu"]


@pytest.mark.parametrize("said", ["crashed", "", OSError("no"), subprocess.TimeoutExpired("doctor", 1)])
def test_an_adapter_that_failed_the_probe(machine: Machine, said: str | Exception) -> None:
    broken, good = machine.dawn.adapter(), machine.wgpu.adapter()
    machine.seen, machine.tried["dawn"] = Survey(broken=[broken], gpus=[[good]]), said
    report = doctor.diagnose()
    assert report.ok  # what is used is right
    (adapter,) = report.adapters
    assert (adapter.device, adapter.implementation, adapter.verdict) == (
        "webgpu:0", "wgpu", "nothing else offers this GPU",
    )  # fmt: skip
    (passed,) = report.implementations[0].others
    assert passed.verdict == "passed over: its probe does not come out right"
    assert [check.ok for check in passed.checks] == [False]


def test_an_implementation_that_does_not_load(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.absent["dawn"] = ImportError("No module named 'wgpudawn'")
    machine.seen = Survey(gpus=[[machine.wgpu.adapter()]])
    assert cli.main(["doctor", "--json"]) == 0
    dawn, wgpu = json.loads(capsys.readouterr().out)["implementations"]
    assert dawn["wrong"] == ("does not load: No module named 'wgpudawn'. Try: pip install 'torch-webgpu[dawn]'")
    assert (wgpu["version"], wgpu["dialect"], wgpu["wrong"]) == ("0", "naga", "")
    assert machine.asked == []


def test_the_reason_is_the_one_that_decided(machine: Machine) -> None:
    def verdict(*listings: Adapter) -> str:
        machine.seen = Survey(gpus=[list(listings)])
        machine.tried = {name: saying(listings[-1], True) for name in ("dawn", "wgpu")}
        return doctor.diagnose().adapters[0].verdict

    software, direct = {"adapter_type": "CPU"}, {"backend_type": "D3D12"}
    assert "of software adapters wgpu's" in verdict(machine.wgpu.adapter(info=software), machine.dawn.adapter())
    assert verdict(machine.wgpu.adapter(), machine.dawn.adapter(info=direct)) == "Vulkan is the best backend here"
    assert verdict(machine.wgpu.adapter(), machine.wgpu.adapter(info=direct)) == "nothing else offers this GPU"
    machine.flags = {"implementation": "wgpu"}
    assert verdict(machine.wgpu.adapter()) == "TORCH_WEBGPU_IMPLEMENTATION asks for it"


def test_nothing_there(machine: Machine) -> None:
    assert "mesa-vulkan-drivers" in doctor.diagnose().advice
    machine.seen = NoAdapterError("TORCH_WEBGPU_ADAPTER='x' matches none of: y")
    report = doctor.diagnose()
    assert not report.ok
    assert report.advice == "TORCH_WEBGPU_ADAPTER='x' matches none of: y"
