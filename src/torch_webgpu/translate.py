"""CUDA scripts on whatever GPU is there. ``import torch_webgpu.translate`` as a script's first line translates it.

The same without touching the script: ``torch-webgpu run script.py``, or ``TORCH_WEBGPU_TRANSLATE=1 python script.py``.
"""

from __future__ import annotations

from .translation import programs as _programs
from .translation import session as _session
from .translation.session import active, disable, enable

__all__ = ["active", "disable", "enable"]

if _session.active() is None:
    _programs.continue_main(_session.enable_as_asked())
