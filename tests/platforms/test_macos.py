"""What is otherwise on macOS: §3 of the audit of 23 November 2026, row by row."""

from __future__ import annotations

import os

import pytest
import torch
from tests.unit.test_doctor import Machine
from tests.webgpu_double import CheckedWebGPU

from torch_webgpu import doctor
from torch_webgpu.api import adapter_memory
from torch_webgpu.runtime import metal_memory
from torch_webgpu.runtime.adapter_target import target_of
from torch_webgpu.runtime.adapters import Survey
from torch_webgpu.runtime.device import Device
from torch_webgpu.runtime.vulkan_memory import DeviceMemory
from torch_webgpu.target import named

METAL = {"backend_type": "Metal", "device": "Apple M4", "vendor_id": 0, "device_id": 0}
GIB = 1 << 30


@pytest.mark.parametrize(("backend", "buffers"), [("Metal", 29), ("Vulkan", 31)])
def test_row_5_of_metal_s_31_buffers_naga_takes_two_for_itself(backend: str, buffers: int) -> None:
    limits = {"max-storage-buffers-per-shader-stage": 31}
    assert target_of(CheckedWebGPU().adapter(info={"backend_type": backend}, limits=limits)).max_buffers == buffers


def test_row_5_the_description_of_metal_says_the_same() -> None:
    limits = {"max-storage-buffers-per-shader-stage": 31}
    assert named("metal").max_buffers == target_of(CheckedWebGPU().adapter(info=METAL, limits=limits)).max_buffers


def test_row_5_dawn_counts_its_buffers_itself() -> None:
    library = CheckedWebGPU("dawn")
    library.dialect = "tint"
    limits = {"max-storage-buffers-per-shader-stage": 28}
    assert target_of(library.adapter(info=METAL, limits=limits)).max_buffers == 28


class Engine:
    devices = (Device(0, CheckedWebGPU().adapter(info=METAL)),)

    def device(self, index: int) -> Device:
        return self.devices[index]


def test_row_adapter_memory_21_metal_recommends_how_much_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_memory, "engine", Engine)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 12 * GIB)
    assert adapter_memory.adapter_memory(0) == DeviceMemory(12 * GIB, 12 * GIB)
    assert metal_memory.metal_memory(GIB) == DeviceMemory(11 * GIB, 12 * GIB)
    assert metal_memory.metal_memory(13 * GIB) == DeviceMemory(0, 12 * GIB)


def test_row_adapter_memory_21_without_mps_it_is_the_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 16384, "SC_PHYS_PAGES": 1 << 20}.__getitem__, raising=False)
    assert metal_memory.metal_memory(0) == DeviceMemory(16 * GIB, 16 * GIB)
    monkeypatch.delattr(os, "sysconf")
    assert metal_memory.metal_memory(0) is None


def test_row_autoload_21_the_doctor_says_what_mps_means_for_webgpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.seen = Survey(gpus=[[machine.wgpu.adapter(info=METAL)]])
    assert doctor.diagnose().advice == ""
    monkeypatch.setitem(doctor.ACCELERATORS, "mps", lambda: True)
    assert "cannot run backward passes on mps" in doctor.diagnose().advice


def test_row_dawn_113_what_others_write_on_stderr_is_seen(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    dawn = pytest.importorskip("torch_webgpu.runtime.dawn", reason="Dawn is not installed")
    with caplog.at_level("INFO", "torch_webgpu"), dawn._captured_stderr():
        os.write(2, b"said by a program\n")
        os.write(2, b"Warning: it lacks something\n - While initializing it\n    at InitializeImpl (a.cpp:257)\n")
        os.write(2, b"  and again\n")
    assert capfd.readouterr().err == "said by a program\n  and again\n"
    assert caplog.messages == [
        "Warning: it lacks something\n - While initializing it\n    at InitializeImpl (a.cpp:257)"
    ]
