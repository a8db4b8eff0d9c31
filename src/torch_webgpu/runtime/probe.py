"""Whether an adapter computes at all: a small kernel, by the way that all others take."""

from __future__ import annotations

import numpy as np

from torch_webgpu.wgsl.kernel import Binding, Kernel

from .commands import Dispatch
from .device import Device
from .implementation import Adapter

_WORDS = 64
_KERNEL = Kernel(
    "probe",
    f"@compute @workgroup_size({_WORDS}) fn main(@builtin(local_invocation_index) k: u32) {{\n"
    "  x_store(k, 3u * x_load(k) + k);\n}",
    (Binding("x", "u32", "read_write"),),
    workgroup_size=(_WORDS, 1, 1),
    trusted=True,
)


def works(adapter: Adapter) -> bool:
    """Whether a device opens and the kernel on it computes what it should."""
    device = Device(0, adapter)
    uploaded = np.arange(_WORDS, dtype=np.uint32)
    try:
        buffer = device.allocate(uploaded.nbytes)
        device.upload(buffer, 0, uploaded.tobytes())
        device.submit([Dispatch(_KERNEL, (buffer,), b"", (1, 1, 1))])
        (downloaded,) = device.download([(buffer, 0, uploaded.nbytes)])
    except RuntimeError:  # all that a device raises
        return False
    finally:
        device.close()
    return np.array_equal(downloaded.view(np.uint32), 4 * uploaded)
