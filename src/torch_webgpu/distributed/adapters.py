"""Which adapter a process uses, that of its rank on its host (``LOCAL_RANK``), and which are used together."""

from __future__ import annotations

import os
import warnings

from torch_webgpu.api.device import device_count, get_device_properties, set_device
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.record import started_in

SHARED = (
    "{processes} processes on this host share {adapters}: its memory and its time are divided among them. "
    "--nproc-per-node webgpu starts one process for each adapter"
)


def choose_adapter() -> None:
    """Makes the adapter number LOCAL_RANK the current one, counted round, unless the program has used or chosen one.

    Where there are more processes than adapters, the host's first says so.
    """
    rank = _number("LOCAL_RANK")
    if rank is None or not (count := device_count()):
        return
    processes = _number("LOCAL_WORLD_SIZE") or 1
    if processes > count and rank == 0:
        adapters = "one adapter" if count == 1 else f"{count} adapters"
        warnings.warn(SHARED.format(processes=processes, adapters=adapters), stacklevel=6)
    if count > 1 and started_in() is None and current_device() == 0:
        set_device(rank % count)


def adapters_alike() -> list[int]:
    """The adapters of the first one's model: what is taken for "all" GPUs, with a rank or a replica on each.

    They wait for the slowest: an integrated GPU or a software adapter beside the first would only hold it up.
    """
    models = [(p.name, p.adapter_type) for p in map(get_device_properties, range(device_count()))]
    return [index for index, model in enumerate(models) if model == models[0]]


def _number(variable: str) -> int | None:
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else None
