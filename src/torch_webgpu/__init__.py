"""PyTorch through WebGPU, in pure Python: ``device="webgpu"``.

``import torch`` is enough where PyTorch has no accelerator of its own; elsewhere, ``import torch_webgpu`` as well.
"""

from __future__ import annotations

import atexit

from .version import VERSION

__version__ = VERSION

_registered = False


def register() -> None:
    """Makes ``webgpu`` a PyTorch device. Importing this package does it; safe to repeat."""
    global _registered
    if _registered:
        return
    _registered = True
    from .collector import without_collection

    with without_collection():
        _register()


def _register() -> None:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from torch_webgpu.api import auto_compiling, host_costs, plans, torch_profiler
    from torch_webgpu.aten.dispatch import torch_abi
    from torch_webgpu.compile import register as compiler
    from torch_webgpu.engine import launch_blocking, record

    from . import api, aten, integrations, patches, plan

    _setup_privateuseone_for_python_backend("webgpu", backend_module=api, device_guard=torch_abi.DeviceGuard())
    aten.register()
    patches.apply()
    atexit.register(record.stop)  # now, so that it runs after the handlers of programs that import torch first
    plan.trace, plan.bind = plans.trace, plans.bind
    launch_blocking.register()
    compiler.register()
    auto_compiling.register()
    torch_profiler.register()
    host_costs.register()
    integrations.register()


def _raise_earlier_failure() -> None:
    """Raises what ``import torch`` could only warn of."""
    import torch_webgpu_autoload

    if torch_webgpu_autoload.failure is not None:
        raise torch_webgpu_autoload.failure


def translation_may_choose_another() -> bool:
    """Whether programs are to be translated for the best device, and there are others: PyTorch takes only one."""
    import torch_webgpu_autoload

    return torch_webgpu_autoload.translation_asked() and torch_webgpu_autoload.other_accelerator() is not None


# At the end: importing torch may load this package through its entry point (torch_webgpu_autoload), whichever of
# the two a program imports first, and every module of this package then finds torch complete.
import torch as torch  # noqa: E402

_raise_earlier_failure()
if not getattr(torch.__spec__, "_initializing", False) and not translation_may_choose_another():
    register()
