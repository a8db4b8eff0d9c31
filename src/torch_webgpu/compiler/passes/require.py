"""The requirements pass: what a plan needs of a target, read off its kernels."""

from __future__ import annotations

from math import prod

from torch_webgpu.caches import memoized
from torch_webgpu.errors import ShaderCompileError
from torch_webgpu.plan import Plan, Requirements, features_of
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Kernel
from torch_webgpu.wgsl.link import library
from torch_webgpu.wgsl.workgroup_memory import workgroup_bytes

KERNEL_CACHE_SIZE = 1024


def requirements(plan: Plan, target: Target) -> Requirements:
    """Features and limits without which the plan cannot run; ``target``: what it was compiled for.

    What linking makes up for is none: parameters in place of immediates, two words in place of 64-bit integers, bits in
    place of half precision in buffers, windows in place of large bindings.
    """
    if not plan.kernels:
        return Requirements()
    needs = [of_kernel(kernel, target) for kernel in plan.kernels]
    return Requirements(
        features=tuple(sorted({name for need in needs for name in need.features})),
        matrices=tuple(sorted({config for need in needs for config in need.matrices})),
        subgroup_size=max([need.subgroup_size for need in needs]),
        max_buffers=max([need.max_buffers for need in needs]),
        workgroup_bytes=max([need.workgroup_bytes for need in needs]),
        workgroup_threads=max([need.workgroup_threads for need in needs]),
        max_buffer_bytes=max([buffer.size_bytes for buffer in plan.buffers]),
    )


@memoized("requirements of kernels", KERNEL_CACHE_SIZE)
def of_kernel(kernel: Kernel, target: Target) -> Requirements:
    """What one kernel needs; of one whose text cannot be read, which compiling it will say, what is known without."""
    try:
        module = kernel.module
    except ShaderCompileError:
        return Requirements(max_buffers=len(kernel.bindings), workgroup_threads=prod(kernel.workgroup_size))
    sized = module.entry.attributes.get("subgroup_size") if module.entry is not None else None
    try:
        memory = workgroup_bytes(module, library(target))
    except ValueError:  # a program's own function: what it was compiled for has enough
        memory = target.workgroup_bytes
    return Requirements(
        features=tuple(features_of(kernel)),
        matrices=target.matrices if any(name.startswith("subgroup_matrix") for name in module.names) else (),
        subgroup_size=int(sized) if sized is not None else 0,
        max_buffers=len(kernel.bindings),
        workgroup_bytes=memory,
        workgroup_threads=prod(kernel.workgroup_size),
    )
