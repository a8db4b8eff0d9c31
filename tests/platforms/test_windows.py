"""What is otherwise on Windows: §2 of the audit of 23 November 2026, row by row."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.webgpu_double import CheckedWebGPU

from torch_webgpu import cli, doctor
from torch_webgpu.api import adapter_memory
from torch_webgpu.compile import cache
from torch_webgpu.engine import backpressure, clock
from torch_webgpu.engine.clock import Content, FlushClock
from torch_webgpu.engine.lane import Lane
from torch_webgpu.errors import NoAdapterError
from torch_webgpu.runtime import adapters, dxc, vulkan_memory, wgpu_native
from torch_webgpu.runtime.implementation import Adapter
from torch_webgpu.runtime.vulkan_memory import DeviceMemory


class Ansi(io.TextIOWrapper):
    """A file or pipe as Python opens it there."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="cp1252", newline="\n")

    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode("cp1252")


def test_row_cache_100_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def getuser() -> str:
        raise ImportError("No module named 'pwd'")

    monkeypatch.setattr(cache.getpass, "getuser", getuser)
    assert cache.folder() is None or cache.folder().name.startswith("torch_webgpu_")


def test_row_cli_what_a_code_page_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("libcst", reason="migrate needs libcst")
    program = tmp_path / "program.py"
    program.write_text('print("→ 日本")\nx.to("cuda")\n', "utf-8")
    out = Ansi()
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["migrate", str(program)]) == 0
    assert '\n print("\\u2192 \\u65e5\\u672c")\n' in out.text()


def test_row_doctor_218_its_arrows_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    report = doctor.AdapterReport("webgpu:0", "dawn", "", "GPU", "D3D12", "DiscreteGPU", "", [], ["f16→f32"], {})
    monkeypatch.setattr(cli, "diagnose", lambda: doctor.Diagnosis({}, [], [report]))
    out = Ansi()
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["doctor"]) == 0
    assert "f16\\u2192f32" in out.text()


def test_row_cli_116_whoever_reads_has_seen_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Python takes EINVAL for no broken pipe."""

    class Closed(io.StringIO):
        code = errno.EINVAL

        def flush(self) -> None:
            raise OSError(self.code, "Invalid argument")

        def fileno(self) -> int:
            return file.fileno()

    with (tmp_path / "stdout").open("w") as file:
        monkeypatch.setattr(sys, "stdout", Closed())
        assert cli.main(["compat", "torch.cuda.is_available"]) == 1
        monkeypatch.setattr(Closed, "code", errno.ENOSPC)
        with pytest.raises(OSError, match="Invalid argument"):
            cli.main(["compat", "torch.cuda.is_available"])


@pytest.mark.parametrize(
    "head", [b"", b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\r\n# \xe4\r\n"], ids=["plain", "signature", "latin-1"]
)
def test_row_migrate_106_line_ends_and_encodings_stay(
    head: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libcst", reason="migrate needs libcst")
    program = tmp_path / "program.py"
    program.write_bytes(head + b'# \x0c a form feed\r\nx.cuda()\r\ny = """a\r\nb"""\r\n')
    assert cli.main(["migrate", str(program)]) == 0
    shown = capsys.readouterr().out
    assert cli.main(["migrate", "--write", str(program)]) == 0
    after = program.read_bytes()
    assert after.startswith(head)
    assert after.count(b"\n") == after.count(b"\r\n")
    assert b'x.to(DEVICE_TYPE)\r\ny = """a\r\nb"""\r\n' in after
    assert [line for line in shown.splitlines() if line.startswith("-")][1:] == ["-x.cuda()"]


def test_row_adapter_memory_21_vulkan_tells_the_memory_of_a_gpu_under_d3d12(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    devices = [device_of(backend_type=backend, device_id=7) for backend in ("D3D12", "D3D12", "OpenGL")]
    devices.append(device_of(backend_type="D3D12", device_id=0))

    def memory_of(*identity: object) -> DeviceMemory:
        asked.append(identity)
        return DeviceMemory(1, 2)

    monkeypatch.setattr(adapter_memory, "engine", lambda: Engine(devices))
    monkeypatch.setattr(adapter_memory, "memory_of", memory_of)
    assert [adapter_memory.adapter_memory(k) for k in range(4)] == [DeviceMemory(1, 2)] * 2 + [None] * 2
    assert asked == [(1, 7, None, 0), (1, 7, None, 1)]


def test_row_adapter_memory_21_a_gpu_without_a_name_is_found_by_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loader:
        def vkEnumeratePhysicalDevices(self, instance: object, count: object, gpus: object) -> int:
            count._obj.value = 2  # type: ignore[attr-defined]
            for k in range(2 if gpus is not None else 0):
                gpus[k] = k + 1  # type: ignore[index]
            return 0

    monkeypatch.setattr(vulkan_memory, "_loader", lambda: (Loader(), 1))
    monkeypatch.setattr(vulkan_memory, "_identity", lambda loader, gpu: (1, 6 + gpu, f"Vulkan's name {gpu}"))
    monkeypatch.setattr(vulkan_memory, "_memory", lambda loader, gpu: gpu)
    assert vulkan_memory.memory_of(1, 8, None) == 2
    assert vulkan_memory.memory_of(1, 9, None) is None
    assert vulkan_memory.memory_of(1, 8, "Direct3D's name") is None


def test_row_adapters_60_a_library_that_is_missing_is_no_reason_to_miss_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """wgpu-py raises RuntimeError then."""
    dawn = CheckedWebGPU("dawn")

    def implementation(name: str) -> CheckedWebGPU:
        if name == "wgpu":
            raise RuntimeError("Could not load wgpu_native-release.dll")
        return dawn

    monkeypatch.setattr(adapters, "implementation", implementation)
    monkeypatch.setattr(doctor, "implementation", implementation)
    monkeypatch.setattr("torch_webgpu.runtime.probe.works", lambda adapter: True)
    monkeypatch.setattr(adapters, "config", lambda: Flags("auto"))
    survey = adapters.survey()
    assert [[listing.implementation for listing in gpu] for gpu in survey.gpus] == [[dawn]]
    assert survey.absent == {"wgpu": "Could not load wgpu_native-release.dll"}
    reports = {report.name: report for report in doctor._implementations()}
    assert (reports["dawn"].wrong, "pip install wgpu" in reports["wgpu"].wrong) == ("", True)
    monkeypatch.setattr(adapters, "config", lambda: Flags("wgpu"))
    with pytest.raises(NoAdapterError, match="Try: pip install wgpu"):
        adapters.survey()


def test_row_backpressure_81_waiting_ends_by_a_clock_that_ticks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """There ``time.monotonic`` moves every 16 ms before Python 3.13."""
    queue = backpressure._Queue()
    queue.marks.extend([lambda: False] * (backpressure.MAX_MARKS + 1))
    seconds = iter([0.0, 1.0, backpressure.WAIT_S + 1])
    monkeypatch.setattr(backpressure.time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(backpressure.time, "monotonic", None)
    backpressure.Backpressure._wait(queue)
    assert len(queue.marks) == backpressure.MAX_MARKS


class LockOfWindows:
    """One that cannot wait: there a time limit is a number of ticks of 16 ms, whatever was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.locked, self.release = self._lock.locked, self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        assert timeout == -1, "it waits for ticks"
        return self._lock.acquire(blocking)


def test_row_clock_16_an_idle_batch_waits_for_no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    flushed = threading.Event()
    lane = Lane(0, 0)
    lane.entries.append(None)  # type: ignore[arg-type]
    lanes = [lane]

    def flush(lane: Lane, content: Content) -> None:
        lanes.remove(lane)
        flushed.set()

    monkeypatch.setattr(clock, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(clock, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(clock, "_thread", SimpleNamespace(allocate_lock=LockOfWindows))
    timer = FlushClock(lanes.copy, lambda lane: False, flush)
    timer.arm(16.0)
    assert flushed.wait(60)
    timer.stop()
    assert slept.count(0.016 / clock.LOOKS_A_DELAY) >= clock.LOOKS_A_DELAY


def test_row_wgpu_native_44_dxc_is_looked_for_where_no_stranger_puts_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Next to wgpu's library, or on the ``PATH``, less the parts that mean the working folder."""
    resources, on_path, working = (tmp_path / name for name in ("wgpu/resources", "tools", "working"))
    for folder in (resources, on_path, working):
        folder.mkdir(parents=True)
    monkeypatch.chdir(working)
    monkeypatch.setattr(dxc.wgpu, "__file__", str(tmp_path / "wgpu" / "__init__.py"))
    monkeypatch.setenv("PATH", os.pathsep.join(["", ".", str(tmp_path / "none"), str(on_path)]))
    (working / dxc.LIBRARY).touch()
    assert dxc.dxcompiler() is None
    monkeypatch.setattr(dxc, "sys", SimpleNamespace(platform="win32"))
    assert dxc.dxcompiler() is None
    for folder in (on_path, resources):
        (folder / dxc.LIBRARY).touch()
        assert dxc.dxcompiler() == folder / dxc.LIBRARY


@pytest.mark.parametrize("is_loaded", [True, False], ids=["loaded", "too old"])
def test_row_wgpu_native_44_direct3d_compiles_with_dxc_where_it_is(
    is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wgpu-native has no Direct3D 12 where the compiler that it was told of cannot be loaded."""
    path = Path("C:/größe/dxcompiler.dll")
    asked: list[tuple[int, str]] = []

    def create(descriptor: object) -> int:
        extras = wgpu_native.ffi.cast("WGPUInstanceExtras *", descriptor.nextInChain)  # type: ignore[attr-defined]
        told = wgpu_native.ffi.buffer(extras.dxcPath.data, extras.dxcPath.length)[:] if extras.dxcPath.length else b""
        asked.append((extras.dx12ShaderCompiler, told.decode()))
        return len(asked)

    def listed(library: object, instance: int) -> list[Adapter]:
        has_direct3d = is_loaded or not asked[instance - 1][1]
        backends = ["Vulkan", "D3D12"] if has_direct3d else ["Vulkan"]
        return [CheckedWebGPU().adapter(info={"backend_type": backend}) for backend in backends]

    class Windows:
        def __getattr__(self, name: str) -> object:
            return create if name == "wgpuCreateInstance" else getattr(lib, name)

    lib = wgpu_native.lib
    monkeypatch.setattr(wgpu_native, "lib", Windows())
    monkeypatch.setattr(wgpu_native, "_instance", wgpu_native._instance.__wrapped__)
    monkeypatch.setattr(wgpu_native, "dxcompiler", lambda: path)
    monkeypatch.setattr(wgpu_native.WgpuNative, "_listed", listed)
    found = [adapter.info["backend_type"] for adapter in wgpu_native.WgpuNative().adapters()]
    assert found == ["Vulkan", "D3D12"]
    assert asked == [(2, str(path)), (0, "")][: 1 if is_loaded else 2]


def test_row_json_of_the_doctor_is_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that another process reads it, whatever the code page."""
    monkeypatch.setattr(cli, "diagnose", lambda: doctor.Diagnosis({"system": "Wíndows → 日本"}, [], []))
    out = Ansi()
    monkeypatch.setattr(sys, "stdout", out)
    cli.main(["doctor", "--json"])
    assert json.loads(out.text())["versions"]["system"] == "Wíndows → 日本"


class Flags:
    adapter = ""

    def __init__(self, implementation: str) -> None:
        self.implementation = implementation


class Engine:
    def __init__(self, devices: list[object]) -> None:
        self.devices = devices

    def device(self, index: int) -> object:
        return self.devices[index]


def device_of(**info: object) -> object:
    """What is asked of a device whose GPU is described so."""
    from torch_webgpu.runtime.device import Device

    return Device(0, CheckedWebGPU().adapter(info=info))
