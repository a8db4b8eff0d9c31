"""Several processes: the target's own backend takes NCCL's place; gloo does, on the CPU, for targets without one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import torch

from torch_webgpu.on_import import when_imported

from .target import HERE, Around, local_name

BACKENDS = {"webgpu": "webgpu", "xpu": "xccl", "cuda": "nccl"}
"""Target → its backend of collectives. Those of other targets are on the CPU, in gloo."""
NCCL = "nccl"


def has_backend() -> bool:
    """Whether process groups take the target's tensors."""
    return HERE.type in BACKENDS


def backend_here(backend: Any) -> Any:
    """The backend that is here: "nccl" → "webgpu", "cpu:gloo,cuda:nccl" → "cpu:gloo,webgpu:webgpu"; the rest as it is.

    Where the target has none: "gloo", "cpu:gloo".
    """
    if not isinstance(backend, str):
        return backend
    parts = [_part_here(part) for part in backend.lower().split(",")]
    named = ",".join(dict.fromkeys(part for part in parts if part))
    return backend if named == backend.lower() else named or "gloo"


def _part_here(part: str) -> str:
    """Of "device:backend", or of a backend alone; "" for a device that has none."""
    here = BACKENDS.get(HERE.type, "gloo")
    device, separator, backend = part.strip().rpartition(":")
    backend = here if backend == NCCL else backend
    if not separator:
        return backend
    device = str(local_name(device))
    if device != "cpu" and not has_backend():
        return ""
    return f"{device}:{backend}" if device != "cpu" or backend in ("gloo", "mpi", "fake") else "cpu:gloo"


def backend_asked(backend: str) -> str:
    """The other way round, as a program for CUDA expects it: "webgpu" → "nccl", "webgpu:webgpu" → "cuda:nccl"."""
    if not has_backend() or HERE.type == "cuda":
        return backend
    own = BACKENDS[HERE.type]

    def asked(part: str) -> str:
        device, separator, name = part.rpartition(":")
        return f"{'cuda' if device == HERE.type else device}{separator}{NCCL if name == own else name}"

    return ",".join(dict.fromkeys(map(asked, backend.split(","))))


@Around
def with_backend(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function with an argument ``backend``, and perhaps ``device_id``."""
    names = inspect.signature(plain).parameters

    @wraps(plain)
    def named(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args)) | kwargs
        if len(given) != len(args) + len(kwargs):
            return plain(*args, **kwargs)  # which says what is wrong with them
        if "backend" in given:
            given["backend"] = backend_here(given["backend"])
        if "device_id" in given:
            given["device_id"] = local_name(given["device_id"]) if has_backend() else None
        return plain(**given)

    return named


@Around
def get_backend(plain: Callable[..., str]) -> Callable[..., str]:
    """The backend of a group, of a device, or a group's configuration: "nccl" where the program asked for it."""

    @wraps(plain)
    def named(*args: Any, **kwargs: Any) -> str:
        return backend_asked(plain(*args, **kwargs))

    return named


@Around
def is_backend_available(plain: Callable[[str], bool]) -> Callable[[str], bool]:
    """``is_backend_available("nccl")``"""

    @wraps(plain)
    def is_backend_available(backend: str) -> bool:
        return plain(backend_here(backend))

    return is_backend_available


@Around
def all_to_all(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Tensors for, and from, each rank, of any sizes as in NCCL: parts of one tensor in groups of gloo.

    gloo's own takes one size, and came with PyTorch 2.12.
    """
    from torch import distributed

    class Copied(distributed.Work):
        """The work of an exchange whose result is copied into tensors once somebody waits for it."""

        def __init__(self, work: distributed.Work, copy: Callable[[], None]) -> None:
            super().__init__()
            self.work, self.copy = work, copy
            self.is_copied = False

        def wait(self, *args: Any) -> bool:
            done = self.work.wait(*args)
            if not self.is_copied:
                self.copy()
                self.is_copied = True
            return done

        def is_completed(self) -> bool:
            return self.work.is_completed()

    @wraps(plain)
    def all_to_all(
        output_tensor_list: list[torch.Tensor],
        input_tensor_list: list[torch.Tensor],
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        if distributed.get_rank(group) < 0 or distributed.get_backend(group) != "gloo":
            return plain(output_tensor_list, input_tensor_list, group, async_op)
        sizes, given = ([t.numel() for t in tensors] for tensors in (output_tensor_list, input_tensor_list))
        received = output_tensor_list[0].new_empty(sum(sizes))
        sent = torch.cat([t.reshape(-1) for t in input_tensor_list])
        work = distributed.all_to_all_single(received, sent, sizes, given, group, async_op=True)

        def copy() -> None:
            with torch.no_grad():
                for t, part in zip(output_tensor_list, received.split(sizes)):
                    t.copy_(part.view(t.shape))

        copied = Copied(work, copy)
        return copied if async_op else copied.wait() and None

    return all_to_all


@Around
def init_device_mesh(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A mesh of the target's devices, or of the CPU, where the collectives are."""

    @wraps(plain)
    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        device_type = local_name(device_type)
        if not has_backend() and device_type == HERE.type:
            device_type = "cpu"
        if "backend_override" in kwargs:
            kwargs["backend_override"] = _override_here(kwargs["backend_override"])
        return plain(device_type, *args, **kwargs)

    return init_device_mesh


def _override_here(override: Any) -> Any:
    """``backend_override`` of a mesh: a backend, or a pair of it and options, by dimension."""
    if not isinstance(override, dict):
        return override
    return {
        key: (backend_here(one[0]), *one[1:]) if isinstance(one, tuple) else backend_here(one)
        for key, one in override.items()
    }


def count_devices_in_torchrun(module: Any) -> None:
    """``torchrun --nproc-per-node gpu``: as many processes as the target has devices, while translation is on.

    ``module``: torch.distributed.run, which is loaded by torchrun alone, and late.
    """
    plain = module.determine_local_world_size

    @wraps(plain)
    def determine_local_world_size(nproc_per_node: str) -> int:
        if HERE.type and nproc_per_node == "gpu":
            return HERE.count
        number: int = plain(nproc_per_node)
        return number

    module.determine_local_world_size = determine_local_world_size


count_in_torchrun = cache(partial(when_imported, "torch.distributed.run", count_devices_in_torchrun))
"""Sees to it once in a process."""


def is_nccl_answered() -> bool:
    """Whether "nccl" is answered: where gloo is, which the target's backend uses."""
    from torch import distributed

    return distributed.is_available() and (HERE.type == "xpu" or distributed.is_gloo_available())
