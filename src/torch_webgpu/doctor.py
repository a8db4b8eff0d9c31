"""What ``torch-webgpu doctor`` finds out: versions, adapters, whether a small computation on each is right, and which
of the libraries installed here choose webgpu by themselves.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from .engine.record import engine
from .integrations.report import Library, libraries
from .runtime.runtime import devices

INSTALL_ADVICE = (
    "No WebGPU adapter was found. Install your GPU's driver (Vulkan on Linux; Metal and D3D12 come with macOS and "
    "Windows), or a software adapter: on Debian or Ubuntu `apt install libvulkan1 mesa-vulkan-drivers`."
)


@dataclass
class Check:
    """One small computation on an adapter: its largest difference from the CPU's result, or why it failed."""

    name: str
    ok: bool
    detail: str


@dataclass
class AdapterReport:
    """One adapter. ``limits`` are WebGPU's, in bytes or counts."""

    device: str
    name: str
    backend: str
    kind: str
    driver: str
    features: list[str]
    limits: dict[str, int]
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


@dataclass
class Report:
    """The whole diagnosis."""

    versions: dict[str, str]
    adapters: list[AdapterReport]
    libraries: list[Library] = field(default_factory=list)
    advice: str = ""

    @property
    def ok(self) -> bool:
        return bool(self.adapters) and all(adapter.ok for adapter in self.adapters)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def versions() -> dict[str, str]:
    """The versions that decide behaviour, by name."""
    found = {name: _version(name) for name in ("torch-webgpu", "torch", "wgpu", "numpy")}
    try:
        from wgpu.backends.wgpu_native import lib_version_info

        found["wgpu-native"] = ".".join(map(str, lib_version_info))
    except (ImportError, OSError) as error:
        found["wgpu-native"] = f"does not load: {error}"
    found["python"] = sys.version.split()[0]
    found["system"] = f"{platform.system()} {platform.release()} ({platform.machine()})"
    return found


def _matmul(device: str) -> torch.Tensor:
    a = torch.linspace(-1, 1, 48 * 32).reshape(48, 32).to(device)
    return a @ a.t()


def _elementwise(device: str) -> torch.Tensor:
    x = torch.linspace(-4, 4, 1000).to(device)
    return (x.sigmoid() * x + x.exp()).tanh()


def _reduction(device: str) -> torch.Tensor:
    return torch.linspace(0, 1, 64 * 257).reshape(64, 257).to(device).softmax(-1).var(0)


def _int64(device: str) -> torch.Tensor:
    x = torch.arange(1, 200).to(device)
    return (x * 1_000_000_007 + x**3) // 7 % 1_000_003


def _training_step(device: str) -> torch.Tensor:
    weight = torch.linspace(-0.5, 0.5, 8 * 3 * 9).reshape(8, 3, 3, 3).to(device).requires_grad_()
    image = torch.linspace(0, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8).to(device)
    torch.nn.functional.conv2d(image, weight, padding=1).relu().mean().backward()
    assert weight.grad is not None
    return weight.grad


CHECKS = {
    "matrix product": _matmul,
    "elementwise": _elementwise,
    "softmax and variance": _reduction,
    "64-bit integers": _int64,
    "convolution gradient": _training_step,
}


def check_adapter(index: int) -> list[Check]:
    """Runs :data:`CHECKS` on ``webgpu:index`` against the CPU; an exception is a failed check, never raised."""
    results = []
    for name, compute in CHECKS.items():
        try:
            expected, actual = compute("cpu"), compute(f"webgpu:{index}").cpu()
            torch.testing.assert_close(actual, expected)
            difference = (actual.double() - expected.double()).abs().max().item()
            results.append(Check(name, True, f"largest difference {difference:.1e}"))
        except Exception as error:
            results.append(Check(name, False, f"{type(error).__name__}: {str(error).splitlines()[0]}"))
    return results


def diagnose() -> Report:
    """Looks at everything. Never raises: what goes wrong is in the report."""
    found = devices()
    if not found:
        return Report(versions(), [], advice=INSTALL_ADVICE)
    reports = []
    for device in engine().devices:
        info = device.info
        reports.append(
            AdapterReport(
                device=f"webgpu:{device.index}",
                name=device.name,
                backend=info.get("backend_type", ""),
                kind=info.get("adapter_type", ""),
                driver=info.get("description", ""),
                features=sorted(device.features),
                limits=dict(device.limits),
                checks=check_adapter(device.index),
            )
        )
    report = Report(versions(), reports, libraries())
    if not report.ok:
        report.advice = (
            "A computation came out wrong: update the adapter's driver, or put another adapter first with "
            "TORCH_WEBGPU_ADAPTER."
        )
    return report
