"""The Kernel value: a compute shader that has not met a device yet.

A kernel's ``body`` is WGSL without bindings, parameters or directives. It reaches the world through names
that :mod:`torch_webgpu.wgsl.link` declares for the host at hand:

* ``P.name`` for each :class:`Param`;
* for each :class:`Binding` ``x``: ``x_load(i: u32) -> T`` and, if writable, ``x_store(i: u32, v: T)``, where ``i``
  counts elements from the start of the buffer and ``T`` is the compute type of its dtype (``dtypes.COMPUTE_TYPE``);
* for types of up to 32 bits also ``x_load4(g: u32) -> vec4<T>`` and ``x_store4(g: u32, v: vec4<T>)``: elements ``4g``
  to ``4g + 3`` in one access, for buffers whose size is a multiple of 16 bytes; ``x_load`` works beside them;
* for types of up to 16 bits also ``x_load_words4(g: u32) -> vec4<u32>``: words 4g to 4g + 3, as they lie in memory;
* with ``mode="word"``: also ``x_load_word(w: u32) -> u32`` and ``x_store_word(w: u32, v: u32)`` for packed sub-word
  types;
* with ``mode="atomic"``: the buffer is ``array<atomic<u32>>``; loads and stores are atomic on the containing word, and
  ``x_atomic_add/mul/min/max/set(i, v)`` exist for 32-bit and sub-word dtypes, ``x_atomic_add`` for i64 and c64;
* the functions of ``kernels/lib`` that it mentions.

A binding with a ``type`` is a variable instead: the body reads and writes ``x`` itself, as WGSL that people write does.
Where the host's compiler adds no bounds checks, the linker does (:mod:`.bounds`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch_webgpu.errors import ShaderCompileError, ShaderSyntaxError

from .module import Module

Access = Literal["read", "read_write"]
Mode = Literal["plain", "word", "atomic"]
ParamType = Literal["u32", "i32", "f32"]


@dataclass(frozen=True)
class Binding:
    """A storage buffer as the kernel names it. ``dtype`` is a name of ``dtypes.BY_NAME``.

    ``type``: of a variable that the body uses itself its type in WGSL, which may be one that the body declares.
    """

    name: str
    dtype: str
    access: Access = "read"
    mode: Mode = "plain"
    type: str = field(default="", repr=False)


ERROR_FLAGS = Binding("errors", "u32", "read_write", "atomic")
"""How every kernel binds the buffer in which it raises flags; library functions know it by this name."""


@dataclass(frozen=True)
class Param:
    """A 4-byte scalar passed with each dispatch: sizes, strides, offsets, scalar arguments."""

    name: str
    type: ParamType = "u32"


@dataclass(frozen=True)
class Kernel:
    """A compute shader: what it is called in profiles, its text, and what it must be given.

    ``workgroup_size`` repeats what the body's ``@workgroup_size`` says, for the grid arithmetic of callers.
    ``trusted`` promises that every index is in range, so that the host may leave bounds checks out.
    """

    name: str
    body: str
    bindings: tuple[Binding, ...]
    params: tuple[Param, ...] = ()
    workgroup_size: tuple[int, int, int] = (256, 1, 1)
    trusted: bool = False

    @cached_property
    def key(self) -> str:
        """A digest of everything that decides the compiled pipeline; stable across processes."""
        parts = [self.body, repr(self.bindings), repr(self.params), repr(self.trusted)]
        if self.variables:
            parts.append(repr([binding.type for binding in self.bindings]))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    @property
    def variables(self) -> tuple[Binding, ...]:
        """The bindings that are variables."""
        return tuple([binding for binding in self.bindings if binding.type])

    @property
    def module(self) -> Module:
        """The body, parsed. Raises ShaderCompileError, which says where it cannot be read."""
        try:
            return Module.parse(self.body)
        except ShaderSyntaxError as error:
            raise ShaderCompileError(f"kernel {self.name} does not compile:\n{error}") from None

    def __hash__(self) -> int:
        return hash(self.key)
