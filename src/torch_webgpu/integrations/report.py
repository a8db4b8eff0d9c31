"""Which device the libraries of this environment choose by themselves, by asking them: for ``torch-webgpu doctor``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch_webgpu.config import config

from .choice import webgpu_device


@dataclass
class LibraryCheck:
    """An installed library. ``device`` is what it chooses, or "" if asking failed; ``advice`` what to do then."""

    name: str
    version: str
    device: str
    finds_webgpu: bool
    advice: str = ""


@dataclass(frozen=True)
class _Question:
    """How to ask a library, by its distribution's name, and how to tell it the device."""

    distribution: str
    ask: Callable[[], Any]
    tell: str
    instead_of: str = ""


def _from(module: str) -> Any:
    return importlib.import_module(module)


def _accelerate() -> Any:
    state = _from("accelerate.state").PartialState
    return state.default_device.fget(state.__new__(state))


def _lightning(package: str) -> Callable[[], Any]:
    def choose() -> Any:
        return _from(f"{package}.connector")._Connector._choose_auto_accelerator()

    return choose


QUESTIONS = (
    _Question("accelerate", _accelerate, "set ACCELERATE_TORCH_DEVICE=webgpu"),
    _Question(
        "transformers",
        lambda: _from("transformers").TrainingArguments("trainer_output").device,
        'set ACCELERATE_TORCH_DEVICE=webgpu for the Trainer, and pass device="webgpu" to pipeline()',
    ),
    _Question("peft", lambda: _from("peft.utils.other").infer_device(), 'pass torch_device="webgpu"'),
    _Question("diffusers", lambda: _from("diffusers.utils.torch_utils").get_device(), 'call pipeline.to("webgpu")'),
    _Question(
        "sentence-transformers", lambda: _from("sentence_transformers.util").get_device_name(), 'pass device="webgpu"'
    ),
    _Question("lightning", _lightning("lightning.fabric"), 'pass accelerator="webgpu"'),
    _Question("pytorch-lightning", _lightning("lightning_fabric"), 'pass accelerator="webgpu"', "lightning"),
    _Question(
        "stable-baselines3", lambda: _from("stable_baselines3.common.utils").get_device(), 'pass device="webgpu"'
    ),
)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def why_not() -> str:
    """Why no library is expected to choose webgpu here, "" if they are."""
    if not config().integrations:
        return "TORCH_WEBGPU_INTEGRATIONS=0 leaves it alone"
    return "" if webgpu_device() is not None else "PyTorch has an accelerator of its own here, or there is no adapter"


def ask(question: _Question, version: str) -> LibraryCheck:
    """The library's answer. Never raises: a library that cannot be imported is reported."""
    try:
        device = str(question.ask())
    except Exception as error:
        message = str(error).splitlines()[0] if str(error) else ""
        return LibraryCheck(question.distribution, version, "", False, f"{type(error).__name__}: {message}")
    finds = device.partition(":")[0] == "webgpu"
    reason = why_not() or "this version of it is not known to torch-webgpu"
    return LibraryCheck(question.distribution, version, device, finds, "" if finds else f"{reason}; {question.tell}")


def libraries() -> list[LibraryCheck]:
    """Those installed, each imported and asked."""
    asked = [(q, _version(q.distribution)) for q in QUESTIONS if not q.instead_of or _version(q.instead_of) is None]
    return [ask(question, version) for question, version in asked if version is not None]
