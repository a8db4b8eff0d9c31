"""Kernels and devices for tests on the double: what a kernel's WGSL says, its Python computes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.webgpu_double import CheckedWebGPU

from torch_webgpu.runtime.buffers import Buffer
from torch_webgpu.runtime.commands import Dispatch
from torch_webgpu.runtime.device import Device
from torch_webgpu.wgsl.kernel import Binding, Kernel, Param

WORKGROUP = 64
MANY = 20
"""Parameters that are no immediates on the double: it takes 16."""

_HEAD = f"@compute @workgroup_size({WORKGROUP}) fn main(@builtin(global_invocation_id) g: vec3<u32>) {{\n"
ADD = Kernel(
    "add",
    _HEAD + "  if (g.x < P.n) { y_store(g.x, x_load(g.x) + P.s); }\n}",
    (Binding("x", "u32"), Binding("y", "u32", "read_write")),
    (Param("n"), Param("s")),
    workgroup_size=(WORKGROUP, 1, 1),
)
ADD_LAST = Kernel(
    "add_last",
    _HEAD + f"  if (g.x < P.n) {{ y_store(g.x, x_load(g.x) + P.s{MANY - 1}); }}\n}}",
    ADD.bindings,
    (Param("n"), *(Param(f"s{k}") for k in range(1, MANY))),
    workgroup_size=(WORKGROUP, 1, 1),
)
DOUBLE = Kernel(
    "double",
    _HEAD + "  y_store(g.x, 2u * y_load(g.x));\n}",
    (Binding("y", "u32", "read_write"),),
    workgroup_size=(WORKGROUP, 1, 1),
)
REFUSED = Kernel("refused", DOUBLE.body + "\n", DOUBLE.bindings, workgroup_size=DOUBLE.workgroup_size)
"""For ``Faults.refused``."""


def _add(parts: Sequence[np.ndarray], n: int, added: int) -> None:
    """Either buffer may be bound in windows; those of the second can be written."""
    sources = [part.view(np.uint32) for part in parts if not part.flags.writeable]
    result = np.concatenate(sources)[:n] + np.uint32(added)
    done = 0
    for part in parts:
        if part.flags.writeable:
            target = part.view(np.uint32)[: n - done]
            target[:] = result[done : done + target.size]
            done += target.size


def compute_add(parts: Sequence[np.ndarray], params: bytes, grid: tuple[int, int, int]) -> None:
    n, added = struct.unpack_from("2I", params)
    assert n <= grid[0] * WORKGROUP
    _add(parts, n, added)


def compute_add_last(parts: Sequence[np.ndarray], params: bytes, grid: tuple[int, int, int]) -> None:
    n, *added = struct.unpack_from(f"{MANY}I", params)
    assert n <= grid[0] * WORKGROUP
    _add(parts, n, added[-1])


def compute_double(parts: Sequence[np.ndarray], params: bytes, grid: tuple[int, int, int]) -> None:
    parts[0].view(np.uint32)[: grid[0] * WORKGROUP] *= 2


def webgpu() -> CheckedWebGPU:
    """An implementation that computes the kernels above."""
    made = CheckedWebGPU()
    made.kernels = {"add": compute_add, "add_last": compute_add_last, "double": compute_double}
    return made


def device(implementation: CheckedWebGPU | None = None, **adapter: Any) -> Device:
    """A device of it; further arguments are :meth:`CheckedWebGPU.adapter`'s."""
    return Device(0, (implementation or webgpu()).adapter(**adapter))


def native(of: Device) -> Any:
    """The double behind an open device."""
    return of._opened.native


def groups(n: int) -> tuple[int, int, int]:
    return (-(-n // WORKGROUP), 1, 1)


def add(x: Buffer, y: Buffer, n: int, added: int) -> Dispatch:
    """``y[k] = x[k] + added`` for ``k < n``."""
    return Dispatch(ADD, (x, y), struct.pack("2I", n, added), groups(n))


def add_last(x: Buffer, y: Buffer, n: int, added: int) -> Dispatch:
    """:func:`add` with more parameters than an adapter takes as immediates."""
    return Dispatch(ADD_LAST, (x, y), struct.pack(f"{MANY}I", n, *[0] * (MANY - 2), added), groups(n))


def double(y: Buffer, n: int) -> Dispatch:
    """Twice the first ``n`` words, a multiple of the workgroup."""
    return Dispatch(DOUBLE, (y,), b"", groups(n))


def words(of: Device, buffer: Buffer, n: int) -> list[int]:
    """The first ``n`` words of a buffer."""
    return of.download([(buffer, 0, 4 * n)])[0].view(np.uint32).tolist()


def filled(of: Device, values: Sequence[int]) -> Buffer:
    """A buffer that begins with these words."""
    buffer = of.allocate(4 * len(values))
    of.upload(buffer, 0, np.array(values, np.uint32))
    return buffer
