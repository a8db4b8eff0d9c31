"""What ``torch-webgpu doctor`` finds out: versions, the WebGPU implementations and what they offer, whether a small
computation on each adapter is right, which of them are used and why, and which of the libraries installed here choose
webgpu by themselves.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from torch_webgpu.config import config
from torch_webgpu.errors import FlagError, NoAdapterError
from torch_webgpu.integrations.report import LibraryCheck, libraries
from torch_webgpu.runtime.adapters import survey
from torch_webgpu.runtime.implementation import Adapter
from torch_webgpu.runtime.implementations import LOAD_ERRORS, MODULES, advice, entry, implementation, names, registered
from torch_webgpu.runtime.runtime import devices
from torch_webgpu.version import VERSION

SETTINGS = ("TORCH_WEBGPU_", "TORCH_DEVICE_BACKEND_AUTOLOAD", "VK_", "WGPU_", "PYTORCH_")
"""How variables begin that change what happens."""
TRIAL_S = 300
"""The longest that an implementation may take in a process of its own."""

INSTALL_ADVICE = (
    "No WebGPU adapter was found. Install your GPU's driver (Vulkan on Linux; Metal and D3D12 come with macOS and "
    "Windows), or a software adapter: on Debian or Ubuntu `apt install libvulkan1 mesa-vulkan-drivers`."
)


ACCELERATORS: dict[str, Callable[[], bool]] = {
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
    "xpu": torch.xpu.is_available,
}
"""PyTorch's own, and whether this machine has them."""


@dataclass
class Check:
    """One small computation on an adapter: its largest difference from the CPU's result, or why it failed."""

    name: str
    ok: bool
    detail: str


@dataclass
class AdapterReport:
    """One GPU as one backend of one implementation offers it. ``limits`` are WebGPU's, in bytes or counts.

    ``device``: the one it is; empty where it is none. ``verdict`` says why. ``matrices``: what tensor cores multiply.
    """

    device: str
    implementation: str
    verdict: str
    name: str
    backend: str
    kind: str
    driver: str
    features: list[str]
    matrices: list[str]
    limits: dict[str, int]
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


@dataclass
class ImplementationReport:
    """A WebGPU library: which, or what is ``wrong`` with it; what it ``said`` about adapters it does not offer.

    ``package``: who offers it, where that is not this package. Then its adapters are devices here only if they are
    asked for. ``others``: the adapters it offers that are no device here, tried in a process where they are.
    """

    name: str
    version: str = ""
    dialect: str = ""
    wrong: str = ""
    package: str = ""
    said: list[str] = field(default_factory=list)
    others: list[AdapterReport] = field(default_factory=list)


@dataclass
class Diagnosis:
    """The whole diagnosis."""

    versions: dict[str, str]
    implementations: list[ImplementationReport]
    adapters: list[AdapterReport]
    libraries: list[LibraryCheck] = field(default_factory=list)
    advice: str = ""

    @property
    def ok(self) -> bool:
        return bool(self.adapters) and all(adapter.ok for adapter in self.adapters)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def for_issue(report: Diagnosis) -> dict[str, Any]:
    """What a bug report needs, as JSON has it: the diagnosis, this package's settings, whether Python can use threads
    at the same time, and what plans are compiled for. Paths below the user's home begin with ``~``."""
    settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)}
    data = {
        **report.to_dict(),
        "settings": settings,
        "executable": sys.executable,
        "package": str(Path(__file__).parent),
        "free_threaded": not getattr(sys, "_is_gil_enabled", lambda: True)(),
        "encodings": {"stdout": sys.stdout.encoding, "files": sys.getfilesystemencoding()},
    }
    home = os.path.expanduser("~")
    if len(home) < len("/a/b"):  # none, or the root's
        return data
    escaped = json.dumps(home)[1:-1]
    shortened: dict[str, Any] = json.loads(json.dumps(data).replace(escaped, "~"))
    return shortened


_MISSING = "not installed"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return _MISSING


def versions() -> dict[str, str]:
    """The versions that decide behaviour, by name."""
    found = {"torch-webgpu": VERSION}
    if _version("torch-webgpu") == _MISSING:  # a checkout on the path
        found["torch-webgpu"] += f" ({_MISSING}: `import torch` does not load it)"
    found |= {name: _version(name) for name in ("torch", "wgpu", "wgpudawn", "numpy", "websockets")}
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


class _Listener(logging.Handler):
    """Keeps what is logged while it listens, however detailed."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self._logger = logging.getLogger("torch_webgpu")

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())

    def __enter__(self) -> _Listener:
        self._level, self._propagate = self._logger.level, self._logger.propagate
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        return self

    def __exit__(self, *exc: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        self._logger.propagate = self._propagate


def _implementations() -> list[ImplementationReport]:
    """Each implementation, by itself: whether it loads, and what it says about adapters."""
    reports = []
    for name in names():
        report = ImplementationReport(name)
        try:
            report.package = "" if name in MODULES else entry(name).origin
            with _Listener() as listener:
                library = implementation(name)
                library.adapters()
            report.version, report.dialect, report.said = library.version(), library.dialect, listener.heard
        except LOAD_ERRORS as error:
            report.wrong = f"does not load: {error}. {advice(name)}"
        reports.append(report)
    return reports


def _describe(adapter: Adapter, device: str, verdict: str) -> AdapterReport:
    info = adapter.info
    return AdapterReport(
        device=device,
        implementation=adapter.implementation.name,
        verdict=verdict,
        name=info["device"],
        backend=info["backend_type"],
        kind=info["adapter_type"],
        driver=info["description"],
        features=sorted(adapter.features),
        matrices=[f"{c.operand}→{c.result} {c.m}×{c.n}×{c.k}" for c in adapter.matrices],
        limits=dict(adapter.limits),
    )


def _taken(listings: list[Adapter]) -> str:
    """Why the first of a GPU's listings is used."""
    best = listings[0]
    if config().implementation != "auto":
        return "TORCH_WEBGPU_IMPLEMENTATION asks for it"
    others = {adapter.implementation.name for adapter in listings[1:]} - {best.implementation.name}
    if not others:
        return "nothing else offers this GPU"
    if best.info["backend_type"] not in {adapter.info["backend_type"] for adapter in listings[1:]}:
        return f"{best.info['backend_type']} is the best backend here"
    if best.info["adapter_type"] == "CPU":
        return f"of software adapters {best.implementation.name}'s are preferred"
    return f"{best.implementation.name} is preferred on a GPU, and its probe came out right"


def _tried(name: str) -> list[dict[str, Any]]:
    """The adapters that an implementation makes devices of in a process of its own, as its doctor sees them."""
    environment = {**os.environ, "TORCH_WEBGPU_IMPLEMENTATION": name}
    environment.pop("TORCH_WEBGPU_ADAPTER", None)
    command = [sys.executable, "-P", "-m", "torch_webgpu.cli", "doctor", "--json"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TRIAL_S, check=False, encoding="utf-8"
        )
        tried: list[dict[str, Any]] = json.loads(done.stdout)["adapters"]
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return []  # it crashed, or hangs
    return tried


def _try(others: list[AdapterReport]) -> None:
    """Fills in the checks of an implementation's adapters that are no devices here."""
    tried = _tried(others[0].implementation)
    for report in others:
        same = [one for one in tried if (one["name"], one["backend"]) == (report.name, report.backend)]
        if same:
            report.checks = [Check(**check) for check in same[0]["checks"]]
            tried.remove(same[0])
        else:
            report.checks = [Check("a process of its own", False, "has no such device: it crashed, or refused it")]


def diagnose() -> Diagnosis:
    """Looks at everything. Never raises: what goes wrong is in the report."""
    implementations = _implementations()
    report = Diagnosis(versions(), implementations, [])
    try:
        seen, usable = survey(), devices()
    except (FlagError, NoAdapterError) as error:
        report.advice = str(error)
        return report
    passed = [_describe(adapter, "", "passed over: its probe does not come out right") for adapter in seen.broken]
    theirs = registered()
    others = [one for one in usable if one.implementation in theirs]
    for one in others:
        report.adapters.append(_describe(one.adapter, f"webgpu:{one.index}", "the program has registered it"))
        report.adapters[-1].checks = check_adapter(one.index)
    local = [one.index for one in usable if one.implementation not in theirs]
    for index, listings in zip(local, seen.gpus, strict=False):  # several devices may be of one adapter
        device = f"webgpu:{index}"
        report.adapters.append(_describe(listings[0], device, _taken(listings)))
        report.adapters[-1].checks = check_adapter(index)
        passed += [_describe(adapter, "", f"{device} is the same GPU") for adapter in listings[1:]]
    for library in implementations:
        # Of one library only the best backend of a GPU is ever a device.
        used = {(one.implementation, one.name) for one in report.adapters}
        library.others = [
            one for one in passed if one.implementation == library.name and (library.name, one.name) not in used
        ]
        if library.others:
            _try(library.others)
    if not usable:
        report.advice = INSTALL_ADVICE
        return report
    report.libraries = libraries()
    if other := [name for name, is_available in ACCELERATORS.items() if is_available()]:
        report.advice = (
            f"PyTorch itself uses {other[0]} here, and it knows one accelerator a process: programs that want webgpu "
            f"import torch_webgpu before they use it, and cannot run backward passes on {other[0]} then."
        )
    if not report.ok:
        report.advice = (
            "A computation came out wrong: update the adapter's driver, or put another adapter first with "
            "TORCH_WEBGPU_ADAPTER."
        )
    return report
