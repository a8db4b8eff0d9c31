"""Arguments all over PyTorch that name a device: what :mod:`.alias` does not do in C++."""

from __future__ import annotations

from collections.abc import Iterator

from torch_webgpu.translation.answers import Row, emulated, nothing, questions, rows, same

TARGET = "a name of another device stands for the target's"
GLOO = "nccl is answered by gloo, on the CPU; several processes on the device come later"


def mixed_precision() -> Iterator[Row]:
    yield from rows("torch.autocast", "__init__", emulated("amp:autocast_init", TARGET))
    yield from rows("torch.amp.GradScaler", "__init__", emulated("amp:scaler_init", TARGET))
    yield from rows("torch.amp", "custom_fwd custom_bwd is_autocast_available", emulated("amp:of_device_type", TARGET))
    yield from rows("torch", "get_autocast_dtype set_autocast_dtype", emulated("amp:of_device_type", TARGET))
    yield from rows(
        "torch", "is_autocast_enabled set_autocast_enabled", emulated("amp:{leaf}", "without a device the target's")
    )
    yield from rows("torch", "get_autocast_gpu_dtype set_autocast_gpu_dtype", emulated("amp:{leaf}", "the target's"))


def tensors() -> Iterator[Row]:
    yield from rows("torch.Tensor", "cuda xpu mtia", emulated("tensors:to_device", TARGET))
    yield from rows("torch.Tensor", "type", emulated("tensors:tensor_type", TARGET))
    yield from rows("torch.Tensor", "pin_memory is_pinned", emulated("tensors:of_device", TARGET))
    order = "memory is used again in the order of the device's one queue"
    yield from rows("torch.Tensor", "record_stream", nothing(order, "streams:record_stream"))
    yield from rows("torch.nn.Module", "cuda", same("through Tensor.cuda"))
    yield from rows("torch.nn.Module", "xpu mtia", emulated("tensors:module_to_device", TARGET))
    yield from rows("torch.UntypedStorage", "cuda", emulated("tensors:storage_to_device", TARGET))
    yield from rows("torch.TypedStorage", "cuda", emulated("tensors:storage_to_device", TARGET))
    both = "sets the default dtype and the default device"
    yield from rows("torch", "set_default_tensor_type", emulated("tensors:{leaf}", both))


def elsewhere() -> Iterator[Row]:
    yield from rows("torch", "load", emulated("loading:load", "keys of map_location mean the names that were saved"))
    yield from rows("torch.serialization", "default_restore_location", emulated("loading:restore_location", TARGET))
    yield from rows("torch.jit", "load", emulated("loading:jit_load", TARGET))
    pinned = "pin_memory_device: PyTorch pins for the accelerator that there is"
    yield from rows("torch.utils.data.DataLoader", "__init__", emulated("loading:data_loader_init", pinned))
    yield from rows("torch.random", "fork_rng", emulated("random:fork_rng", TARGET))
    host = "ProfilerActivity.CUDA: the host's side is shown; GPU times are torch.webgpu.profile's"
    yield from rows("torch.profiler.profile", "__init__", emulated("profiling:profile_init", host))
    yield from questions("torch.profiler", "supported_activities", emulated("profiling:{leaf}", host))
    yield from rows("torch", "compile", same('mode="reduce-overhead": a compiled graph is one submission in any case'))


def several_processes() -> Iterator[Row]:
    yield from rows("torch.distributed", "init_process_group", emulated("distributed:with_backend", GLOO))
    yield from rows("torch.distributed", "new_group", emulated("distributed:new_group", GLOO))
    yield from questions("torch.distributed", "is_nccl_available", emulated("distributed:is_available_as_gloo", GLOO))
    yield from rows("torch.distributed", "init_device_mesh", emulated("distributed:{leaf}", GLOO))


def all_rows() -> Iterator[Row]:
    """Every row of this file."""
    for part in (mixed_precision, tensors, elsewhere, several_processes):
        yield from part()
