"""Arguments all over PyTorch that name a device: what :mod:`..alias` does not do in C++."""

from __future__ import annotations

from collections.abc import Iterator

from torch_webgpu.translation.rows import Row, by_device_type, emulated, nothing, questions, rows, same, translated

TARGET = "a name of another device stands for the target's"
NCCL = "nccl is answered by the target's backend, which is webgpu's; by gloo on the CPU for cpu and mps"


def mixed_precision() -> Iterator[Row]:
    yield from rows("torch.autocast", "__init__", translated("constructors:autocast_init", TARGET))
    yield from rows("torch.amp.GradScaler", "__init__", translated("constructors:scaler_init", TARGET))
    chosen = translated("amp:of_device_type", TARGET)
    yield from rows("torch.amp", "custom_fwd custom_bwd", chosen)
    yield from by_device_type("torch.amp", "is_autocast_available", chosen)
    yield from by_device_type("torch", "get_autocast_dtype set_autocast_dtype", chosen)
    chosen = translated("amp:{leaf}", "without a device the target's")
    yield from by_device_type("torch", "is_autocast_enabled set_autocast_enabled", chosen)
    yield from rows("torch", "get_autocast_gpu_dtype set_autocast_gpu_dtype", translated("amp:{leaf}", "the target's"))


def tensors() -> Iterator[Row]:
    yield from rows("torch.Tensor", "cuda xpu mtia", translated("tensors:to_device", TARGET))
    yield from rows("torch.Tensor", "type", translated("tensors:tensor_type", TARGET))
    yield from rows("torch.Tensor", "pin_memory is_pinned", translated("tensors:of_device", TARGET))
    order = "memory is used again in the order of the device's one queue"
    yield from rows("torch.Tensor", "record_stream", nothing(order, "streams:record_stream"))
    yield from rows("torch.nn.Module", "cuda", same("through Tensor.cuda"))
    yield from rows("torch.nn.Module", "xpu mtia", translated("tensors:module_to_device", TARGET))
    yield from rows("torch.UntypedStorage", "cuda", translated("tensors:storage_to_device", TARGET))
    yield from rows("torch.UntypedStorage", "__new__", translated("constructors:storage_new", TARGET))
    yield from rows("torch.TypedStorage", "cuda", translated("tensors:storage_to_device", TARGET))
    yield from rows("torch", "Generator", translated("tensors:generator", TARGET))
    both = "sets the default dtype and the default device"
    yield from rows("torch", "set_default_tensor_type", emulated("tensors:{leaf}", both))


def elsewhere() -> Iterator[Row]:
    yield from rows("torch", "load", translated("loading:load", "keys of map_location mean the names that were saved"))
    yield from rows("torch.serialization", "default_restore_location", translated("loading:restore_location", TARGET))
    yield from rows("torch.jit", "load", translated("loading:jit_load", TARGET))
    yield from rows("torch.accelerator", "synchronize", translated("devices:accelerator_synchronize", TARGET))
    pinned = "pin_memory_device: PyTorch pins for the accelerator that there is"
    yield from rows("torch.utils.data.DataLoader", "__init__", translated("constructors:data_loader_init", pinned))
    yield from rows("torch.random", "fork_rng", translated("random:fork_rng", TARGET))
    host = "ProfilerActivity.CUDA: the host's side is shown; GPU times are torch.webgpu.profile's"
    yield from rows("torch.profiler.profile", "__init__", emulated("constructors:profile_init", host))
    yield from questions("torch.profiler", "supported_activities", emulated("profiling:{leaf}", host))
    yield from rows("torch", "compile", same('mode="reduce-overhead": a compiled graph is one submission in any case'))


def several_processes() -> Iterator[Row]:
    named = "init_process_group new_group new_subgroups new_subgroups_by_enumeration"
    yield from rows("torch.distributed", named, translated("distributed:with_backend", NCCL))
    yield from questions("torch.distributed", "is_nccl_available", translated("distributed:is_nccl_answered", NCCL))
    yield from rows("torch.distributed", "is_backend_available", translated("distributed:{leaf}", NCCL))
    told = translated("distributed:get_backend", "the program hears nccl, libraries the truth")
    names = "get_backend get_backend_config get_default_backend_for_device"
    yield from questions("torch.distributed", names, told)
    yield from rows("torch.distributed", "init_device_mesh", translated("distributed:{leaf}", NCCL))


def all_rows() -> Iterator[Row]:
    """Every row of this file."""
    for part in (mixed_precision, tensors, elsewhere, several_processes):
        yield from part()
