"""Points PyTorch's harnesses of distributed tests at the device: what they ask of "the GPU" is asked of webgpu.

They know CUDA, XPU and HPU by name. It is imported before a test file, here and in each rank's process. Ranks are
started by a fork server that has imported it: a test starts four processes, and importing PyTorch takes seconds.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch

import torch_webgpu
from torch_webgpu.translation import session

from .kept_ranks import METHOD, KeptProcess
from .names import COPIED

DEVICE = BACKEND = "webgpu"


@contextmanager
def adapters_not_counted() -> Iterator[None]:
    """As many are there as the runner asked for, as long as this lasts: counting opens what a fork cannot use."""
    webgpu: Any = torch.webgpu
    plain = webgpu.device_count, webgpu.is_available
    count = int(os.environ["TORCH_WEBGPU_COPIES"])
    webgpu.device_count, webgpu.is_available = (lambda: count), (lambda: True)
    try:
        yield
    finally:
        webgpu.device_count, webgpu.is_available = plain


torch_webgpu.register()
with adapters_not_counted():
    from torch.testing._internal import common_distributed, common_fsdp, common_utils
    from torch.testing._internal.distributed._tensor import common_dtensor


def point_at_device() -> None:
    """Replaces what harnesses believe of the machine. Opens no adapter: those of a fork server are of no use."""
    start_ranks_from_a_fork_server()
    count_devices()
    _common_dtensor()
    _common_fsdp()


def start_ranks_from_a_fork_server() -> None:
    """Also where a harness asks for processes that are spawned."""
    multiprocessing.set_start_method(METHOD, force=True)
    multiprocessing.set_forkserver_preload([__name__])
    torch.multiprocessing.active_children = list  # which are ended one by one, if they are

    def spawn_processes(self: Any) -> None:
        self._start_processes(KeptProcess)

    common_distributed.MultiProcessTestCase._spawn_processes = spawn_processes


def count_devices() -> None:
    """The conditions of tests that are skipped, and the names of backends."""
    harness: Any = common_distributed
    harness.HAS_ACCELERATOR = True
    harness.ACCELERATOR_DIST_BACKENDS.append(BACKEND)
    harness.DDP_RANK_DEVICES.append(DEVICE)
    harness.at_least_x_gpu = lambda count: torch.webgpu.device_count() >= count
    harness.init_multigpu_helper = lambda world_size, backend: {rank: [rank] for rank in range(world_size)}
    harness.skip_if_lt_x_gpu = skip_if_fewer_devices
    harness.skip_if_no_gpu = lambda function: function
    harness.requires_accelerator_dist_backend = lambda backends=None: lambda function: function
    harness.DistributedTestBase.backend = lambda self, device: BACKEND if DEVICE in str(device) else "gloo"
    harness.DistTestCases.backend_feature["gpu"].add(BACKEND)
    harness.DistTestCases.backend_feature["ddp"].add(BACKEND)
    harness.DistTestCases.backend_feature["subgroup"].add(BACKEND)


def skip_if_fewer_devices(count: int, *, allow_cpu: bool = False) -> Callable[..., Any]:
    """``skip_if_lt_x_gpu``: webgpu's devices are counted."""

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if torch.webgpu.device_count() >= count:
                return function(*args, **kwargs)
            skip = common_distributed.TEST_SKIPS[f"multi-gpu-{count}"]
            if not common_distributed._maybe_handle_skip_if_lt_x_gpu(args, skip.message):
                sys.exit(skip.exit_code)
            return None

        return wrapper

    return decorator


def _common_dtensor() -> None:
    base: Any = common_dtensor.DTensorTestBase

    def backend(self: Any) -> str:
        """A name of those that ``init_pg`` knows."""
        return f"cpu:gloo,{DEVICE}:{BACKEND}" if self.device_type == DEVICE else "gloo"

    base.backend = property(backend)


def _common_fsdp() -> None:
    harness: Any = common_fsdp
    harness.DEVICE_TYPE, harness.DISTRIBUTED_BACKEND = DEVICE, BACKEND
    harness.DEVICE_COUNT = common_dtensor.DEVICE_COUNT
    harness.TEST_XPU = True  # of accelerators that are not CUDA it sets the current device on this condition


def translate_if_asked() -> None:
    """``test_distributed_spawn.py`` asks for ``distributed_test`` of PyTorch, which says ``.cuda(rank)``.

    It is translated in each process by itself: that looks for adapters, which a fork server cannot hand on.
    """
    if not os.environ.get(COPIED):
        return
    copy = Path(os.environ[COPIED])
    if multiprocessing.parent_process() is None:
        forkserver.ensure_running()  # before the environment says that all is translated
    session.enable(DEVICE)
    name = "torch.testing._internal.distributed.distributed_test"
    common: Any = common_utils
    common.TEST_CUDA = True
    sys.path.insert(0, str(copy.parent))
    module = sys.modules[name] = importlib.import_module(copy.stem)  # by name, which translation hears of
    for named in ("PROFILING_SUPPORTED_BACKENDS", "CUDA_PROFILING_SUPPORTED_BACKENDS"):
        getattr(module, named).clear()  # profilers see collectives of the device under names of its own
    module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()


point_at_device()
