"""Which adapters there are: those of all implementations, one for each GPU, best first."""

from __future__ import annotations

import struct
from importlib import import_module

from torch_webgpu.config import config
from torch_webgpu.errors import NoAdapterError
from torch_webgpu.runtime.implementation import BUFFER, READBACK, Adapter, Implementation

MODULES = {"dawn": "torch_webgpu.runtime.dawn", "wgpu": "torch_webgpu.runtime.wgpu_native"}
"""Where the implementations are, by name, the one to be preferred on a GPU first."""
_INSTALL = {"dawn": "pip install 'torch-webgpu[dawn]'", "wgpu": "pip install wgpu"}

_TYPE_ORDER = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
_BACKEND_ORDER = ("Metal", "Vulkan", "D3D12", "Unknown", "OpenGL", "OpenGLES")

_PROBE_WORDS = 64
_PROBE = f"""\
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size({_PROBE_WORDS}) fn main(@builtin(local_invocation_index) k: u32) {{
  x[k] = 3u * x[k] + k;
}}
"""


def implementation(name: str) -> Implementation:
    """An implementation by its name. Raises ImportError or OSError, as loading its library does."""
    return import_module(MODULES[name]).IMPLEMENTATION


def adapters() -> list[Adapter]:
    """The usable adapters, software ones last, the wanted one in front; empty where there is none.

    ``TORCH_WEBGPU_IMPLEMENTATION`` says whose they are, ``TORCH_WEBGPU_ADAPTER`` puts one first; NoAdapterError when
    what they ask for is not there.
    """
    chosen = config().implementation
    found: list[Adapter] = []
    for name in MODULES if chosen == "auto" else (chosen,):
        try:
            offered = implementation(name).adapters()
        except (ImportError, OSError) as error:
            if chosen == name:
                raise NoAdapterError(f"TORCH_WEBGPU_IMPLEMENTATION={name}: {error}. Try: {_INSTALL[name]}") from None
            continue
        # Dawn is young: where there is a choice, it has to show that it works.
        found += [adapter for adapter in offered if chosen != "auto" or name != "dawn" or works(adapter)]
    best = sorted(unique(found), key=_rank)
    wanted = config().adapter
    if not wanted or not best:
        return best
    first = _choose(best, wanted)
    return [first, *(adapter for adapter in best if adapter is not first)]


def _rank(adapter: Adapter) -> int:
    return _TYPE_ORDER.index(adapter.info["adapter_type"])


def unique(found: list[Adapter]) -> list[Adapter]:
    """``found`` without the same GPU again from a lesser backend or another library.

    Two entries of one library and backend are two GPUs, each of which stands for one entry of any other.
    """
    listed: list[tuple[Adapter, set[tuple[str, str]]]] = []
    for adapter in sorted(found, key=_preference):
        source = adapter.implementation.name, adapter.info["backend_type"]
        others = (sources for one, sources in listed if source not in sources and _same_gpu(adapter, one))
        known = next(others, None)
        if known is None:
            listed.append((adapter, {source}))
        else:
            known.add(source)
    return [adapter for adapter, _ in listed]


def _preference(adapter: Adapter) -> tuple[int, bool]:
    """The best backend first; of software adapters wgpu-native's, which have 64-bit numbers."""
    software = adapter.info["adapter_type"] == "CPU"
    return _BACKEND_ORDER.index(adapter.info["backend_type"]), software and adapter.implementation.name != "wgpu"


def _same_gpu(one: Adapter, other: Adapter) -> bool:
    """Whether two listings may be the same GPU."""
    ids = [(adapter.info["vendor_id"], adapter.info["device_id"]) for adapter in (one, other)]
    names = sorted((adapter.info["device"] for adapter in (one, other)), key=len)
    return (ids[0] == ids[1] and all(ids[0])) or names[1].startswith(names[0])


def _choose(best: list[Adapter], wanted: str) -> Adapter:
    names = [adapter.info["device"] for adapter in best]
    if wanted.isdigit() and int(wanted) < len(best):
        return best[int(wanted)]
    for adapter, name in zip(best, names, strict=True):
        if wanted.lower() in name.lower():
            return adapter
    raise NoAdapterError(f"TORCH_WEBGPU_ADAPTER={wanted!r} matches none of: " + ", ".join(names))


def works(adapter: Adapter) -> bool:
    """Whether a device opens and a small kernel on it computes what it should."""
    try:
        native = adapter.open()
    except RuntimeError:
        return False
    try:
        size_bytes = 4 * _PROBE_WORDS
        buffer, staging = (native.create_buffer(size_bytes, usage) for usage in (BUFFER, READBACK))
        native.write_buffer(buffer, 0, struct.pack(f"{_PROBE_WORDS}I", *range(_PROBE_WORDS)))
        shader = native.create_shader(_PROBE, "probe", trusted=True)
        layout = native.create_layout([True], uniform=False)
        pipeline = native.create_pipeline(shader, layout, 0, "probe")
        group = native.create_bind_group(layout, [(buffer, 0, size_bytes)])
        encoder = native.create_encoder()
        compute = native.begin_pass(encoder)
        native.set_pipeline(compute, pipeline)
        native.set_bind_group(compute, 0, group, 0, native.null)
        native.dispatch_workgroups(compute, 1, 1, 1)
        native.end_pass(compute)
        native.release_pass(compute)
        native.copy_buffer(encoder, buffer, 0, staging, 0, size_bytes)
        mapped = native.map(staging, size_bytes) if native.run(encoder) else None
        return mapped is not None and list(struct.unpack(f"{_PROBE_WORDS}I", mapped)) == [
            4 * k for k in range(_PROBE_WORDS)
        ]
    finally:
        native.close()
