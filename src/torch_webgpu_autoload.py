"""What PyTorch's ``torch.backends`` entry point calls at the end of ``import torch``.

It is a module of its own because loading an entry point imports its package, and importing ``torch_webgpu`` registers
the device: the decision has to come first. It imports torch in functions only: it may be imported before torch, by the
``torch-webgpu`` command, and has to be complete when torch looks for its entry point.

Nothing here fails ``import torch``, which is also programs' that have no use for the device: what goes wrong is one
warning, and the device's absence an error of its own words where it is used.
"""

from __future__ import annotations

import os
import sys
import warnings
from types import ModuleType
from typing import Any, NoReturn

OFF = ("", "0", "off", "false", "no")
"""What ``TORCH_WEBGPU_TRANSLATE`` says where nothing is to be translated."""
TESTED_TORCH = "2.11 to 2.14"
"""The releases of PyTorch that this package is tested with; pyproject.toml has the same."""
failure: Exception | None = None
"""Why the device could not be registered, if it could not."""


def other_accelerator() -> str | None:
    """The device type of an accelerator PyTorch itself can use on this machine, if there is one."""
    import torch

    built_for = torch._C._accelerator_getAccelerator()
    if built_for is None or built_for.type == "webgpu":
        return None
    return built_for.type if torch.get_device_module(built_for.type).device_count() > 0 else None


def autoload() -> None:
    """Loads torch_webgpu, unless that would break the accelerator PyTorch has. Raises nothing: see :func:`refuse`.

    PyTorch knows one accelerator per process and prefers a registered backend to CUDA, XPU or MPS, whose backward
    passes then fail an assertion (https://github.com/pytorch/pytorch/issues/161129). Where such a device is present,
    webgpu waits for an explicit ``import torch_webgpu``.
    """
    is_alone = False
    try:
        is_alone = other_accelerator() is None
        if is_alone:
            import torch_webgpu

            torch_webgpu.register()
    except Exception as error:  # noqa: BLE001 of whatever is not as it was in the tested releases of PyTorch
        refuse(error, is_alone)
        return
    if translation_asked():
        _translate()


def _translate() -> None:
    """Begins what ``TORCH_WEBGPU_TRANSLATE`` asks for. Raises nothing but SystemExit, for a wrong value of it."""
    try:
        from torch_webgpu.translation import launch

        launch.begin()
    except Exception as error:  # noqa: BLE001 as above
        warnings.warn(
            f"TORCH_WEBGPU_TRANSLATE: programs written for CUDA run as they are, since translating them does not work "
            f"with torch {_torch_version()}: {type(error).__name__}: {error}. It is tested with torch {TESTED_TORCH}.",
            stacklevel=3,
        )


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def refuse(error: Exception, is_alone: bool) -> None:
    """Makes one warning of an error in loading the device, and raises it again where the device is used.

    That is ``device="webgpu"`` and whatever is asked of ``torch.webgpu``, except the questions that PyTorch asks of
    every registered device in programs for the CPU. ``import torch_webgpu`` raises it, too. Where PyTorch may have
    another accelerator (not ``is_alone``), no device is registered beside it, and PyTorch knows no "webgpu".
    """
    global failure
    import torch

    failure = error
    sys.modules.pop("torch_webgpu", None)  # so that it is not there for who imports it
    warnings.warn(
        f"torch-webgpu could not load its device ({type(error).__name__}: {error}). It is tested with torch "
        f"{TESTED_TORCH}; this is torch {_torch_version()}. Everything else works; TORCH_DEVICE_BACKEND_AUTOLOAD=0 "
        "leaves the device out, and this warning.",
        stacklevel=3,
    )
    module = _refusing_module(error)
    if is_alone:
        try:
            _register_refusals(error, module)
        except Exception as second:  # noqa: BLE001 as above
            error.add_note(f"nor could a device be registered that says so: {type(second).__name__}: {second}")
    torch.webgpu = sys.modules["torch.webgpu"] = module  # type: ignore[attr-defined]


def _raise(error: Exception) -> NoReturn:
    raise RuntimeError(
        f"the webgpu device could not be loaded when torch was imported: {type(error).__name__}: {error}"
    ) from error


def _refusing_module(error: Exception) -> ModuleType:
    """``torch.webgpu`` of a device that cannot be used."""

    def refused(name: str) -> Any:
        if name.startswith("__"):  # which Python and PyTorch ask of modules
            raise AttributeError(name)
        _raise(error)

    module = ModuleType("torch.webgpu")
    harmless = {"is_available": lambda: False, "device_count": lambda: 0, "current_device": lambda: 0}
    seeding = {"_is_in_bad_fork": lambda: False, "manual_seed_all": lambda seed: None, "_lazy_init": lambda: None}
    vars(module).update(harmless | seeding, _initialized=True, __getattr__=refused)
    return module


def _register_refusals(error: Exception, module: ModuleType) -> None:
    """A device by our name, all of whose operators raise ``error``."""
    import torch
    from torch.utils import backend_registration

    def refused(op: Any, *args: Any, **kwargs: Any) -> NoReturn:
        _raise(error)

    if hasattr(torch, "webgpu"):  # registered before something failed, perhaps with operators that work
        runtime = sys.modules.get("torch_webgpu.runtime.runtime")
        if runtime is not None:
            vars(runtime)["refusal"] = error
    else:
        backend_registration._setup_privateuseone_for_python_backend("webgpu", backend_module=module)
    library = torch.library.Library("_", "IMPL")
    vars(module)["_library"] = library  # which takes its registrations along when it dies
    library.fallback(refused, "PrivateUse1")


def translation_asked() -> bool:
    """Whether the environment asks to translate programs written for CUDA."""
    return os.environ.get("TORCH_WEBGPU_TRANSLATE", "").strip().lower() not in OFF


def command() -> int:
    """The ``torch-webgpu`` command. To run programs, it leaves the choice among this machine's accelerators open."""
    if sys.argv[1:2] == ["run"]:
        os.environ.setdefault("TORCH_WEBGPU_TRANSLATE", "auto")
        os.environ["TORCH_WEBGPU_TRANSLATE_PROCESS"] = str(os.getpid())
    from torch_webgpu.cli import main

    return main()
