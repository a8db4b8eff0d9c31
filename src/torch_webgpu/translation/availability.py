"""Whether a device is there: yes to the user's code, the truth to libraries.

A library that hears that CUDA is there takes paths of its own for it (kernels, other libraries); one that hears the
truth runs as it does on the device that is there. Which ones asked is remembered: they could be translated, too.
One device has one name. A program that mentions CUDA is written for CUDA, and hears the truth about the other devices,
so that "mps if there, else cuda" ends with the name that everything else is translated from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from . import callers
from .callers import MARK
from .monitor import Answer, Monitor
from .traced_answers import constant


def by_asker(
    name: str, answer: Answer, yes: Callable[..., Any], truth: Callable[..., Any], monitor: Monitor
) -> Callable[..., Any]:
    """A function that answers with ``yes``, counted, for the user's code, and with ``truth`` for everybody else."""
    counted = monitor.counted(name, answer, yes)
    of_cuda = "cuda" in name or "nccl" in name or not any(other in name for other in ("xpu", "mps", "mtia"))

    @wraps(truth)
    def asked(*args: Any, **kwargs: Any) -> Any:
        names = sys._getframe(1).f_globals
        if not callers.is_user(names):
            monitor.told_truth(str(names.get("__name__", "")).partition(".")[0])
            return truth(*args, **kwargs)
        if not of_cuda and MARK in names and names[MARK].is_for_cuda:
            return truth(*args, **kwargs)
        return counted(*args, **kwargs)

    asked._torchdynamo_inline = constant(yes)  # type: ignore[attr-defined]  # see traced
    return asked
