"""Hugging Face Accelerate, and with it the Trainer of Transformers and ``device_map="auto"`` everywhere.

Accelerate asks a list of backends by name; what it needs instead is ``torch.accelerator``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

from torch_webgpu.api.device import device_count, get_device_properties
from torch_webgpu.api.memory import empty_cache, mem_get_info, memory_stats
from torch_webgpu.patching import Patches

from . import accelerate_distributed, random_states
from .accelerate_distributed import NEW_BACKENDS
from .choice import instead_of_cpu, webgpu_device

CUSTOM_ACCELERATORS = "https://github.com/huggingface/accelerate/pull/4278"

PATCHES = Patches(accelerate_distributed.PATCHES)


@PATCHES.add("accelerate.state", "PartialState.default_device", upstream=NEW_BACKENDS)
def default_device(plain: property) -> property:
    """``Accelerator()`` takes the first backend of a list of names that is there, else the CPU."""
    choose = plain.fget
    assert choose is not None
    return property(lambda self: instead_of_cpu(choose(self)), doc=plain.__doc__)


@PATCHES.add("accelerate.accelerator", "Accelerator.__init__", upstream=NEW_BACKENDS)
def allow_float16(plain: FunctionType) -> FunctionType:
    """``mixed_precision="fp16"`` is refused on a device whose name is not in a tuple inside of ``__init__``.

    The tuple is a constant of the function's code, and only the names in it decide: ours joins them.
    """
    code = plain.__code__
    lists = [c for c in code.co_consts if isinstance(c, tuple) and {"cuda", "xpu", "mps"} <= {*c}]
    if not lists:
        raise LookupError("the names of the devices that have fp16 are not there")
    constants = tuple((*c, "webgpu") if any(c is names for names in lists) else c for c in code.co_consts)
    return _with_code(plain, code.replace(co_consts=constants))


def _with_code(function: FunctionType, code: CodeType) -> FunctionType:
    same = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    same.__kwdefaults__ = function.__kwdefaults__
    return wraps(function)(same)  # type: ignore[return-value]


@PATCHES.add("accelerate.utils.modeling", "get_grad_scaler", upstream=NEW_BACKENDS)
def grad_scaler(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Without a backend it knows, it makes one for CUDA, which disables itself: gradients would go unscaled."""

    @wraps(plain)
    def get_grad_scaler(distributed_type: Any = None, **options: Any) -> Any:
        if webgpu_device() is None or getattr(distributed_type, "value", None) == "FSDP":
            return plain(distributed_type, **options)
        return torch.amp.GradScaler("webgpu", **options)

    return get_grad_scaler


@PATCHES.add("accelerate.utils.modeling", "get_max_memory", upstream=CUSTOM_ACCELERATORS)
def max_memory(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``device_map="auto"`` counts the memory of the backends it knows, and warns of numbers of other devices."""

    @wraps(plain)
    def get_max_memory(max_memory: dict[Any, Any] | None = None) -> dict[Any, Any]:
        if webgpu_device() is None:
            return plain(max_memory)
        if max_memory is None:
            return memory_budget(plain(None))
        # What is named by a number is ours; the rest, and the numbers of adapters that are not there, are theirs.
        numbered = {key: max_memory[key] for key in range(device_count()) if key in max_memory}
        others = plain({key: value for key, value in max_memory.items() if key not in numbered})
        to_bytes = plain.__globals__["convert_file_size_to_int"]
        found = {k: to_bytes(v) if isinstance(v, str) else v for k, v in numbered.items()} | others
        max_memory.update(found)  # callers count on the sizes becoming numbers in place
        return found

    return get_max_memory


def memory_budget(others: dict[Any, Any]) -> dict[Any, Any]:
    """Bytes for tensors by adapter, then ``others``, less the host's where an adapter computes in the host's memory.

    Adapters that do share it. A software adapter beside a GPU is left out: what is left to "cpu" computes on the GPU.
    """
    kinds = {index: get_device_properties(index).adapter_type for index in range(device_count())}
    used = [index for index, kind in kinds.items() if kind != "CPU"] or [*kinds]
    in_the_host = [index for index in used if kinds[index] in ("CPU", "IntegratedGPU")]
    budget = {index: _free(index) // (len(in_the_host) if index in in_the_host else 1) for index in used}
    return budget | {key: value for key, value in others.items() if key != "cpu" or not in_the_host}


def _free(index: int) -> int:
    """What the adapter and our pool have left; where its driver does not tell, the one buffer that is sure to fit."""
    try:
        free = mem_get_info(index)[0]
    except RuntimeError:
        free = get_device_properties(index).max_buffer_size
    return int(free + memory_stats(index)["pooled_bytes"])


@PATCHES.add("accelerate.utils.memory", "clear_device_cache", upstream=NEW_BACKENDS)
def clear_cache(plain: Callable[..., None]) -> Callable[..., None]:
    """``release_memory`` and ``find_executable_batch_size`` empty the cache of the backends it knows."""

    @wraps(plain)
    def clear_device_cache(garbage_collection: bool = False) -> None:
        plain(garbage_collection)
        if webgpu_device() is not None:
            empty_cache()

    return clear_device_cache


@PATCHES.add("accelerate.checkpointing", "save_accelerator_state", upstream=NEW_BACKENDS)
def save_random_state(plain: Callable[..., Path]) -> Callable[..., Path]:
    """Checkpoints hold the random states of the backends it knows: dropout would go on differently after a resume."""

    @wraps(plain)
    def save_accelerator_state(*args: Any, **options: Any) -> Path:
        written = plain(*args, **options)
        if webgpu_device() is not None:
            random_states.save(written, _process_index(plain, args, options))
        return written

    return save_accelerator_state


@PATCHES.add("accelerate.checkpointing", "load_accelerator_state", upstream=NEW_BACKENDS)
def load_random_state(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The other half of :func:`save_random_state`."""

    @wraps(plain)
    def load_accelerator_state(input_dir: Any, *args: Any, **options: Any) -> Any:
        found = plain(input_dir, *args, **options)
        if webgpu_device() is not None:
            random_states.load(input_dir, _process_index(plain, (input_dir, *args), options))
        return found

    return load_accelerator_state


def _process_index(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> int:
    return int(signature(function).bind(*args, **options).arguments["process_index"])
