"""What PyTorch's ``torch.backends`` entry point calls at the end of ``import torch``.

It is a module of its own because loading an entry point imports its package, and importing ``torch_webgpu`` registers
the device: the decision has to come first. It imports torch in functions only: it may be imported before torch, by the
``torch-webgpu`` command, and has to be complete when torch looks for its entry point.
"""

from __future__ import annotations

import os
import sys

OFF = ("", "0", "off", "false", "no")
"""What ``TORCH_WEBGPU_TRANSLATE`` says where nothing is to be translated."""


def other_accelerator() -> str | None:
    """The device type of an accelerator PyTorch itself can use on this machine, if there is one."""
    import torch

    built_for = torch._C._accelerator_getAccelerator()
    if built_for is None or built_for.type == "webgpu":
        return None
    return built_for.type if torch.get_device_module(built_for.type).device_count() > 0 else None


def autoload() -> None:
    """Loads torch_webgpu, unless that would break the accelerator PyTorch has.

    PyTorch knows one accelerator per process and prefers a registered backend to CUDA, XPU or MPS, whose backward
    passes then fail an assertion (https://github.com/pytorch/pytorch/issues/161129). Where such a device is present,
    webgpu waits for an explicit ``import torch_webgpu``.
    """
    if other_accelerator() is None:
        import torch_webgpu

        torch_webgpu.register()
    if translation_asked():
        from torch_webgpu.translation import launch

        launch.begin()


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
