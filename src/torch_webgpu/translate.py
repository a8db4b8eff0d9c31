"""CUDA scripts on whatever GPU is there. ``import torch_webgpu.translate`` as a script's first line translates it.

The same without touching the script: ``torch-webgpu run script.py``, or ``TORCH_WEBGPU_TRANSLATE=1 python script.py``.
"""

from __future__ import annotations

from torch_webgpu.translation import programs as _programs
from torch_webgpu.translation import report as _report
from torch_webgpu.translation import session as _session
from torch_webgpu.translation.report import Report
from torch_webgpu.translation.session import disable, enable

__all__ = ["Report", "disable", "enable", "report"]


def report() -> Report:
    """What was translated so far, how, and where; ``print`` shows it. RuntimeError if translation is off."""
    begun = _session.active()
    if begun is None:
        raise RuntimeError("nothing is being translated: enable() begins")
    return _report.report(begun)


if _session.active() is None:
    _begun = _session.enable_as_asked()
    _report.at_exit(_report.asked())
    _programs.continue_main(_begun)
