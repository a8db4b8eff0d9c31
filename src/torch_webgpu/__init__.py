"""PyTorch on every GPU, through WebGPU, in pure Python. ``import torch`` is enough; ``device="webgpu"`` then works."""

from __future__ import annotations

__version__ = "0.1.0"

_registered = False


def register() -> None:
    """Makes ``webgpu`` a PyTorch device. PyTorch calls this through the ``torch.backends`` entry point; safe to repeat."""
    global _registered
    if _registered:
        return
    _registered = True
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from . import api, aten
    from .api import accelerator

    _setup_privateuseone_for_python_backend("webgpu", backend_module=api)
    aten.register()
    accelerator.register()


# At the end: importing torch first calls register(), whichever of the two a program imports first, and every module of
# this package then finds torch complete.
import torch as torch  # noqa: E402
