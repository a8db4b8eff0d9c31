"""Hugging Face Accelerate with several processes: its launcher, its process group, DistributedDataParallel and FSDP.

A process of several whose device is in none of Accelerate's lists of names counts as the only one: each would train by
itself, without a word.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from torch_webgpu.api.device import device_count, set_device
from torch_webgpu.distributed.adapters import adapters_alike
from torch_webgpu.patching import Patches

from .answering import Answering
from .choice import webgpu_device

NEW_BACKENDS = "https://github.com/huggingface/accelerate/issues/2968"

PATCHES = Patches()


@PATCHES.add("accelerate.state", "PartialState._prepare_backend", upstream=NEW_BACKENDS)
def process_group(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A process that a launcher has started (``LOCAL_RANK``) makes a process group if its device is in a list of names.

    As one of several GPUs: the word that goes with ``cuda`` is the one that all of Accelerate's lists have.
    """

    @wraps(plain)
    def _prepare_backend(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> Any:
        found, kind = plain(self, cpu, sagemaker_dp, backend)
        if cpu or kind.value != "NO" or "LOCAL_RANK" not in os.environ or webgpu_device() is None:
            return found, kind
        return backend or "webgpu", type(kind).MULTI_GPU

    return _prepare_backend


@PATCHES.add("accelerate.state", "PartialState.set_device", upstream=NEW_BACKENDS)
def device_of_rank(plain: Callable[..., None]) -> Callable[..., None]:
    """One of several GPUs is one of CUDA's. Here it is the adapter of the rank; with too few, ranks share them."""

    @wraps(plain)
    def set_device(self: Any) -> None:
        if self.device is None and self.distributed_type.value == "MULTI_GPU" and webgpu_device() is not None:
            self.device = adapter_of(self.local_process_index)
        plain(self)

    return set_device


def adapter_of(local_rank: int) -> torch.device:
    """The adapter that a rank uses, counted round; it becomes the current one."""
    device = torch.device("webgpu", local_rank % device_count())
    set_device(device)
    return device


@PATCHES.add("accelerate.accelerator", "Accelerator.prepare_model", upstream=NEW_BACKENDS)
def device_of_ddp(plain: Callable[..., Any]) -> Callable[..., Any]:
    """DistributedDataParallel gets the number of the process for a device, which where ranks share is not there."""

    @wraps(plain)
    def prepare_model(self: Any, *args: Any, **options: Any) -> Any:
        is_ours = self.device.type == "webgpu"  # DDP is told the index as its device's
        return plain(Answering(self, local_process_index=self.device.index) if is_ours else self, *args, **options)

    return prepare_model


@PATCHES.add("accelerate.utils.dataclasses", "FullyShardedDataParallelPlugin.__post_init__", upstream=NEW_BACKENDS)
def empty_weights(plain: Callable[..., None]) -> Callable[..., None]:
    """``sync_module_states`` makes weights that have no memory on the current device of a list of names, else raises.

    It does so last.
    """

    @wraps(plain)
    def __post_init__(self: Any) -> None:  # noqa: N807
        try:
            plain(self)
        except RuntimeError as error:
            device = webgpu_device()
            if device is None or "no available devices" not in f"{error}":
                raise
            self.param_init_fn = lambda module: module.to_empty(device=device, recurse=False)

    return __post_init__


@PATCHES.add("accelerate.commands.launch", "_validate_launch_command", upstream=NEW_BACKENDS)
def launched_processes(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``accelerate launch --num_processes 2`` starts one process if there are not several GPUs of a list of names.

    Without a number it starts one for each GPU: here for each adapter that is like the first.
    """

    @wraps(plain)
    def _validate_launch_command(args: argparse.Namespace) -> Any:
        if args.cpu or args.tpu or webgpu_device() is None:
            return plain(args)
        unasked = args.num_processes is None
        checked = plain(args)
        args = checked[0]
        if unasked and not args.num_processes:  # nor did a file say
            args.num_processes = len(adapters_alike())
        by_another = args.use_cpu or args.use_deepspeed or args.use_fsdp or args.use_megatron_lm or args.tpu
        if args.num_processes and args.num_processes > 1 and not by_another:
            args.multi_gpu = True
        return checked

    return _validate_launch_command
