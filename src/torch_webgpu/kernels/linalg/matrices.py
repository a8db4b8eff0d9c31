"""Kernels over batches of matrices, a workgroup for each matrix or for some of its columns."""

from __future__ import annotations

from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.points import Draft, wgsl_source
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, grid_for

from .numbers import numbers

MATRIX = ("batch", "row", "column")


class MatrixKernel(Draft):
    """A kernel under construction whose text speaks of elements as ``a_load(a_at(batch, row, column))``."""

    def __init__(self, dtype: str) -> None:
        super().__init__(MATRIX)
        self.add(numbers(dtype))

    def matrix(self, name: str, arg: int, spec: Spec, *, written: bool = True) -> None:
        """Argument ``arg`` of shape (batch, rows, columns)."""
        self.binding(Binding(name, spec.dtype, "read_write" if written else "read"), arg)
        self.locate(name, arg, spec)

    def vector(self, name: str, arg: int, spec: Spec, *, written: bool = True) -> None:
        """Argument ``arg`` of shape (batch, n), or (batch,): element i is ``name_at(batch, i, 0)``."""
        fill = 3 - len(spec.shape)
        column = spec._replace(shape=spec.shape + (1,) * fill, strides=spec.strides + (0,) * fill)
        self.matrix(name, arg, column, written=written)

    def launch(self, name: str, groups: int, threads: int) -> Launch:
        """The dispatch of ``kernels/linalg/<name>.wgsl`` in ``groups`` workgroups, which is the parameter too."""
        self.add(f"const THREADS = {threads}u;")
        body = wgsl_source(f"linalg/{name}").replace("@workgroup_size(THREADS)", f"@workgroup_size({threads})")
        return self.launch_text(name, body, groups, threads)

    def launch_text(self, name: str, body: str, groups: int, threads: int) -> Launch:
        """The same of a text that is rendered already."""
        self.param("groups", groups)
        return self.build(f"linalg_{name}", [body], threads, grid_for(groups * WORKGROUP))


def power_above(n: int, least: int = 1) -> int:
    """The least power of two that is not below ``n`` and ``least``."""
    return max(least, 1 << (n - 1).bit_length())
