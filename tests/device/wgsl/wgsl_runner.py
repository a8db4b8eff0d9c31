"""Runs linked kernels through wgpu directly, so that a fault of the WGSL library is not mistaken for the runtime's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch
import wgpu

from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding, Kernel, Param
from torch_webgpu.wgsl.link import link

FEATURES = ("shader-f16", "shader-int64", "shader-f64", "immediates", "shader-float32-atomic")
NATIVE = Target(
    int64=True, float16=True, float64=True, immediates_bytes=128, max_binding_bytes=1 << 27, rounds_f16=True
)
EMULATED = replace(NATIVE, int64=False, float16=False, float64=False, immediates_bytes=0)


@cache
def device() -> wgpu.GPUDevice:
    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    limits = {"max-storage-buffer-binding-size": adapter.limits["max-storage-buffer-binding-size"]}
    features = [name for name in FEATURES if name in adapter.features]
    if "immediates" in features:
        limits["max-immediate-size"] = 128
    return adapter.request_device_sync(required_features=features, required_limits=limits)


def supported(target: Target) -> bool:
    needs = {"shader-int64": target.int64, "shader-f16": target.float16, "shader-f64": target.float64}
    return all(name in device().features for name, needed in needs.items() if needed)


def native() -> Target:
    """What the adapter has of ``NATIVE``."""
    has = device().features
    return replace(
        NATIVE,
        int64="shader-int64" in has,
        float16="shader-f16" in has,
        float64="shader-f64" in has,
        immediates_bytes=NATIVE.immediates_bytes if "immediates" in has else 0,
    )


def run_kernel(
    kernel: Kernel,
    arrays: list[np.ndarray],
    invocations: int,
    target: Target | None = None,
    windows: tuple[int, ...] = (),
    params: bytes = b"",
) -> list[np.ndarray]:
    """Run ``kernel`` over ``invocations`` threads and return the arrays of its read_write bindings, in order.

    Without a ``target`` with whatever the adapter has.
    """
    target = target or native()
    linked = link(kernel, target, windows)
    gpu = device()
    windows = windows or (1,) * len(arrays)
    layouts, entries, written = [], [], []
    for binding, array, count in zip(kernel.bindings, arrays, windows, strict=True):
        data = array.tobytes()
        data += b"\0" * (-len(data) % 8)
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        buffer = gpu.create_buffer_with_data(data=data or b"\0" * 8, usage=usage)
        if binding.access == "read_write":
            written.append((buffer, array))
        for k in range(count):
            start = k * target.window_bytes if count > 1 else 0
            size = min(target.window_bytes, buffer.size - start) if count > 1 else buffer.size
            kind = "read-only-storage" if binding.access == "read" else "storage"
            layouts.append({"binding": len(layouts), "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}})
            entries.append({"binding": len(entries), "resource": {"buffer": buffer, "offset": start, "size": size}})
    if linked.param_bytes and not linked.uses_immediates:
        uniform = gpu.create_buffer_with_data(data=params, usage=wgpu.BufferUsage.UNIFORM)
        layouts.append({"binding": len(layouts), "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": "uniform"}})
        entries.append({"binding": len(entries), "resource": {"buffer": uniform, "offset": 0, "size": len(params)}})
    layout = gpu.create_bind_group_layout(entries=layouts)
    pipeline = gpu.create_compute_pipeline(
        layout=gpu.create_pipeline_layout(
            bind_group_layouts=[layout], immediate_size=linked.param_bytes if linked.uses_immediates else 0
        ),
        compute={"module": gpu.create_shader_module(code=linked.source), "entry_point": "main"},
    )
    encoder = gpu.create_command_encoder()
    compute_pass = encoder.begin_compute_pass()
    compute_pass.set_pipeline(pipeline)
    compute_pass.set_bind_group(0, gpu.create_bind_group(layout=layout, entries=entries))
    if linked.uses_immediates:
        compute_pass.set_immediates(0, bytearray(params), 0, len(params))
    compute_pass.dispatch_workgroups(-(-invocations // kernel.workgroup_size[0]))
    compute_pass.end()
    gpu.queue.submit([encoder.finish()])
    results = []
    for buffer, array in written:
        data = bytes(gpu.queue.read_buffer(buffer))[: array.nbytes]
        results.append(np.frombuffer(data, array.dtype).reshape(array.shape))
    return results


MAIN = """@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  let i = id.x;
  if (i >= P.n) {{ return; }}
  {}
}}"""


def kernel_over(statements: str, *bindings: Binding) -> Kernel:
    """One thread an element: ``statements`` see the element's index ``i``, and ``P.n``, how many there are."""
    return Kernel("test", MAIN.format(statements), bindings, (Param("n"),), workgroup_size=(64, 1, 1))


def length(n: int) -> bytes:
    return int(n).to_bytes(4, "little")


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor: NumPy has no bfloat16."""
    return tensor.contiguous().view(torch.uint8).numpy() if tensor.numel() else np.zeros(0, np.uint8)


def as_torch(data: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(data.copy()).view(dtype)


def call(function: str, *operands: np.ndarray, result: str = "f32", target: Target | None = None) -> np.ndarray:
    """``function`` of the library, element by element; ``result`` is the dtype of what it returns."""
    names = {"float32": "f32", "int32": "i32", "uint32": "u32", "int64": "i64", "complex64": "c64", "float64": "f64"}
    bindings = [Binding(f"x{k}", names[str(operand.dtype)]) for k, operand in enumerate(operands)]
    arguments = ", ".join(f"{binding.name}_load(i)" for binding in bindings)
    stored = f"select(0, 1, {function}({arguments}))" if result == "bool" else f"{function}({arguments})"
    bindings.append(Binding("out", "i32" if result == "bool" else result, "read_write"))
    count = operands[0].size
    kinds = {"bool": np.int32} | {ours: np.dtype(numpys) for numpys, ours in names.items()}
    output = np.zeros(count, kinds[result])
    return run_kernel(
        kernel_over(f"out_store(i, {stored});", *bindings), [*operands, output], count, target, params=length(count)
    )[0]
