"""``torch.webgpu.compile_shader``: a program's own WGSL kernels, called like functions.

The spelling is that of :func:`torch.mps.compile_shader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from torch.autograd.graph import increment_version

from torch_webgpu.caches import Cache
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.record import engine, started_in
from torch_webgpu.engine.store import FIRST_DESCRIBED

from .kernel_call import Record, checked_size, recorder
from .shader_arguments import check_layouts, number_kinds, signature
from .shader_errors import check_source
from .shader_source import EntryPoint, ShaderSource
from .shader_uses import uses_of

MAX_VARIANTS = 256
"""Sets of constants and sizes of one kernel's workgroups that are kept."""


def compile_shader(source: str) -> ShaderLibrary:
    """Compiles WGSL, and returns a library whose attributes are its kernels.

    A kernel is a function with ``@compute`` and ``@workgroup_size``. Its arguments are the module's variables that it
    uses, in the order of their ``@group`` and ``@binding``: a ``var<storage>`` is a tensor, written if it is
    ``read_write``; a ``var<uniform>`` is a number (f32, f16, i32 or u32), of a vector, a matrix or a struct a sequence
    of numbers. ``x[i]`` is the i-th element of a tensor ``x``, whatever its strides and wherever it starts, and
    ``arrayLength(&x)`` the number of them. ``x_numel``, ``x_rank``, ``x_offset``, ``x_size_0``, ``x_stride_0`` … tell
    its layout, as do ``x_size(d)``, ``x_stride(d)`` and ``x_at(i)``: a kernel that reads strides gets a tensor as it
    lies in memory.

    ::

        lib = torch.webgpu.compile_shader('''
            @group(0) @binding(0) var<storage, read_write> out: array<f32>;
            @group(0) @binding(1) var<uniform> value: f32;
            @compute @workgroup_size(64)
            fn full(@builtin(global_invocation_id) id: vec3<u32>) { out[id.x] = value; }
        ''')
        x = torch.zeros(16, device="webgpu")
        lib.full(x, 3.14)

    Raises ShaderCompileError, with the line and the column, for a text that cannot be read; where the device has been
    used before, also for one that its compiler refuses, which is raised at a kernel's first call otherwise. What only
    a call decides (constants, the size of workgroups) is raised there.
    """
    if not isinstance(source, str):
        raise TypeError(f"the source of a shader is a str, not {type(source).__name__}")
    library = ShaderLibrary(ShaderSource.parse(source))
    if started_in() is not None and current_device() < FIRST_DESCRIBED:
        check_source(ShaderSource.parse(source), engine().device(current_device()))
    return library


class ShaderLibrary:
    """The kernels of a WGSL module, as attributes: see :func:`compile_shader`."""

    def __init__(self, source: ShaderSource) -> None:
        self._source = source
        for name in source.entry_points:
            entry = source.entry(name)
            uses_of(entry)  # raises what is wrong with how it uses its arguments
            number_kinds(entry)

    def __getattr__(self, name: str) -> ShaderKernel:
        if name.startswith("__") or name == "_source":
            raise AttributeError(name)
        kernel = ShaderKernel(self._source.entry(name))
        self.__dict__[name] = kernel
        return kernel

    def __dir__(self) -> list[str]:
        return sorted(self._source.entry_points)

    def __repr__(self) -> str:
        return f"<ShaderLibrary: {', '.join(self._source.entry_points)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_shader, (self._source.text,)


class ShaderKernel:
    """A kernel of a :class:`ShaderLibrary`, called with its arguments by position."""

    def __init__(self, entry: EntryPoint) -> None:
        self._entry = entry
        self._plain: Record | None = None
        self._variants: Cache[Any, Record] = Cache("variants of programs' kernels", MAX_VARIANTS)
        places = [k for k, resource in enumerate(entry.resources) if resource.is_tensor and resource.is_written]
        self._written = itemgetter(*places) if places else None
        self.__name__ = entry.name

    def __call__(
        self,
        *arguments: Any,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        """Records the kernel; it runs in order with everything else on the device.

        ``threads``: how many threads run in all, along up to three dimensions; by default one for each element of the
        first tensor. Where threads work together (barriers, subgroup operations) whole workgroups run, and a kernel
        compares with ``num_threads`` itself. ``group_size``: the threads of a workgroup along up to three dimensions,
        in place of the text's ``@workgroup_size``. ``constants``: values of override constants, by name or ``@id``.

        Gradients do not flow through it: tensors that it writes are as detached from it as after ``copy_`` under
        ``no_grad``. Raises TypeError, ValueError or ValueError for arguments that do not fit, ShaderCompileError.
        """
        record = self._plain if group_size is None and constants is None else self._variant(group_size, constants)
        if record is None:
            record = self._plain = recorder(self._entry)
        try:
            if threads is None:
                record(*arguments)
            else:
                # A list, since that is what calls can be recognised by.
                record(*arguments, threads=list(threads) if isinstance(threads, Iterable) else [threads])
        except RuntimeError:
            check_layouts(self._entry, arguments)  # of tensors that have no storage PyTorch says no more than that
            raise
        if self._written is not None:
            increment_version(self._written(arguments))

    @property
    def entry(self) -> EntryPoint:
        """What it was made of."""
        return self._entry

    def _variant(self, group_size: int | Sequence[int] | None, constants: Mapping[str, Any] | None) -> Record:
        size = None if group_size is None else checked_size("group_size", group_size, least=1)
        key = size, tuple([(name, type(value), value) for name, value in (constants or {}).items()])
        record = self._variants.get(key) or self._variants.promote(key)
        if record is None:
            record = self._variants[key] = recorder(self._entry, group_size=size, constants=constants)
        return record

    def __repr__(self) -> str:
        return f"<ShaderKernel {self._entry.name}({signature(self._entry)})>"

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (compile_shader(self._entry.text), self._entry.name)
