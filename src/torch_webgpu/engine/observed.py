"""Flushes that somebody looks at: a device's observer, ``torch.profiler``, or a person.

Nothing here runs otherwise; results are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from torch.autograd import profiler

from torch_webgpu.config import print_stage
from torch_webgpu.runtime.observer import Observer

from .flush import run

if TYPE_CHECKING:
    from torch_webgpu.runtime.device import Device

    from .flush_reason import Cause
    from .plan_cache import CachedPlan
    from .recording import Recording

    LookUp = Callable[[Recording, Device], CachedPlan]

_torch_profiler_observer: list[Callable[[Device], Observer]] = [Observer]


def show_torch_profiler(observer: Callable[[Device], Observer]) -> None:
    """``observer(device)`` shows our work to ``torch.profiler`` from now on. It takes unstable parts of PyTorch, which
    higher layers know.
    """
    _torch_profiler_observer[:] = [observer]


def print_recording(recording: Recording, device: Device, cause: Cause) -> None:
    """Shows what is about to be planned."""
    calls = [f"  {op.name} {op.args} {offsets} {params}" for op, _, offsets, params in recording.nodes()]
    print_stage("record", f"{len(calls)} operations on webgpu:{device.index}, now because {cause}", *calls)


def run_watched(device: Device, recording: Recording, cause: Cause, look_up: LookUp) -> None:
    """Plans and runs a recording, telling the observers."""
    nodes = recording.nodes()
    with _torch_profiler_observer[0](device) if profiler._is_profiler_enabled else nullcontext():
        observer = device.observer
        assert observer is not None
        with observer.span("flush", f"because {cause}"):
            cached = look_up(recording, device)
            observer.planned(nodes, cached.compilation, cause)
            run(device, cached, recording)
