"""The target that an adapter is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torch_webgpu.config import config
from torch_webgpu.dtypes import WORD_BITS
from torch_webgpu.errors import FlagError
from torch_webgpu.target import Target, named

if TYPE_CHECKING:
    from .implementation import Adapter
METAL_BUFFERS = 31
"""The buffers of a Metal shader's table: https://developer.apple.com/metal/Metal-Feature-Set-Tables.pdf"""
NAGA_BUFFERS = 2
"""Those that naga's Metal shaders bind besides: the sizes of the others, and the parameters. wgpu counts them only when
a kernel has too many, and then speaks of memory."""
_LLVMPIPE = re.compile(r"llvmpipe \(LLVM [\d.]+, (\d+) bits\)")
"""Its vectors of 32-bit numbers are subgroups:
https://gitlab.freedesktop.org/mesa/mesa/-/blob/main/src/gallium/frontends/lavapipe/lvp_device.c."""
NVIDIA = 0x10DE
"""The vendor, as PCI has it."""
NVIDIA_SUBGROUP = 32
"""The threads of all its subgroups."""


def target_of(adapter: Adapter) -> Target:
    """The target of an adapter, less what the environment tells us to pretend away."""
    flags, features, limits = config(), adapter.features, adapter.limits
    binding_bytes: Any = limits["max-storage-buffer-binding-size"]
    buffers: Any = _storage_buffers(adapter)
    target = Target(
        int64="shader-int64" in features and not flags.emulate_int64,
        float16="shader-f16" in features and not flags.emulate_float16,
        float64="shader-f64" in features and flags.float64,
        immediates_bytes=limits["max-immediate-size"] if "immediates" in features and flags.immediates else 0,
        max_binding_bytes=min(binding_bytes, flags.max_binding_bytes or binding_bytes),
        max_buffers=min(buffers, flags.max_buffers or buffers),
        float32_atomics="shader-float32-atomic" in features,
        subgroups="subgroup" in features,
        software=adapter.info["adapter_type"] == "CPU",
        dialect=adapter.implementation.dialect,
        matrices=adapter.matrices,
        subgroup_sizes="subgroup-size-control" in features,
        subgroup_size=subgroup_size(adapter),
        workgroup_bytes=int(limits["max-compute-workgroup-storage-size"]),
        workgroup_threads=int(limits["max-compute-invocations-per-workgroup"]),
        max_buffer_bytes=int(limits["max-buffer-size"]),
        rounds_f16=rounds_f16(adapter),
        name=adapter.info["device"],
    )
    if not flags.target:
        return target
    try:
        return target.within(named(flags.target))
    except ValueError as error:
        raise FlagError(f"TORCH_WEBGPU_TARGET={flags.target!r}: {error}") from None


def _storage_buffers(adapter: Adapter) -> int:
    """How many storage buffers a kernel may bind."""
    most = int(adapter.limits["max-storage-buffers-per-shader-stage"])
    if adapter.implementation.dialect == "naga" and adapter.info.get("backend_type") == "Metal":
        return min(most, METAL_BUFFERS - NAGA_BUFFERS)
    return most


def rounds_f16(adapter: Adapter) -> bool:
    """Whether ``pack2x16float`` rounds as PyTorch does. Seen on NVIDIA's Vulkan driver, with all 2**32 numbers."""
    return adapter.info.get("vendor_id") == NVIDIA and adapter.info.get("backend_type") == "Vulkan"


def subgroup_size(adapter: Adapter) -> int:
    """How many threads a subgroup has where a kernel asks for so many, or always; 0 where there are several.

    An adapter may name a range that its driver does not keep to (on NVIDIA 4 to 128, where all have 32): what its
    matrices take is certain, and what llvmpipe computes side by side.
    """
    if "subgroup" not in adapter.features:
        return 0
    if "subgroup-size-control" not in adapter.features:
        if adapter.info.get("vendor_id") == NVIDIA:
            return NVIDIA_SUBGROUP
        bits = _LLVMPIPE.match(adapter.info["device"])
        return int(bits[1]) // WORD_BITS if bits else 0
    sizes = {matrix.subgroup_size for matrix in adapter.matrices}
    sizes = sizes or {adapter.info["subgroup_min_size"], adapter.info["subgroup_max_size"]}
    return int(sizes.pop()) if len(sizes) == 1 else 0
