"""What PyTorch's ``torch.backends`` entry point calls at the end of ``import torch``.

It is a module of its own because loading an entry point imports its package, and importing ``torch_webgpu`` registers
the device: the decision has to come first.
"""

from __future__ import annotations

import torch


def other_accelerator() -> str | None:
    """The device type of an accelerator PyTorch itself can use on this machine, if there is one."""
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
