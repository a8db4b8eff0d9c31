"""From an operation to launches: which kernels, over which arguments, with which parameter values.

A :class:`Lowered` is cached on its operation per aliasing pattern; replaying a node is then packing its offsets and
scalars into the launches' parameters.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.graph import Extern, Operation, Pointwise, Reduction
from ..wgsl.builder import Built, Source, Value, build_pointwise
from ..wgsl.kernel import Kernel
from ..wgsl.link import HostCaps
from ..wgsl.fold import Stages
from ..wgsl.reduction import build_reduction

_FORMAT = {"u32": "I", "i32": "i", "f32": "f"}
ERRORS = -1
"""The binding index of the device's error buffer (see ``Launch.bindings``)."""


@dataclass(frozen=True)
class Launch:
    """One dispatch of an operation.

    ``bindings``: for each binding of the kernel an argument's index, ``n_args + t`` for temporary ``t``, or ``ERRORS``.
    ``values``: each parameter's value, or where it comes from.
    """

    kernel: Kernel
    bindings: tuple[int, ...]
    values: tuple[Value, ...]
    grid: tuple[int, int, int]

    def __post_init__(self) -> None:
        assert len(self.values) == len(self.kernel.params), (self.kernel.name, self.values, self.kernel.params)
        assert len(self.bindings) == len(self.kernel.bindings), self.kernel.name
        packer = struct.Struct("<" + "".join(_FORMAT[p.type] for p in self.kernel.params))
        object.__setattr__(self, "_pack", packer.pack)
        fixed = None if any(isinstance(v, Source) for v in self.values) else packer.pack(*self.values)
        object.__setattr__(self, "_fixed", fixed)

    def pack(self, offsets: Sequence[int], scalars: Sequence[int | float]) -> bytes:
        """The parameters' bytes for a node's offsets and scalars."""
        fixed: bytes | None = self._fixed  # type: ignore[attr-defined]
        if fixed is not None:
            return fixed
        resolved = [
            v if v.__class__ is not Source else (offsets if v.kind == "offset" else scalars)[v.index]  # type: ignore[union-attr]
            for v in self.values
        ]
        return self._pack(*resolved)  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True)
class Lowered:
    """An operation's dispatches in order, and the sizes in bytes of the temporaries they share.

    ``cleared``: temporaries that must be zero when the first launch starts.
    """

    launches: tuple[Launch, ...]
    temporaries: tuple[int, ...] = ()
    cleared: tuple[int, ...] = ()


def from_built(built: Built) -> Lowered:
    return Lowered((Launch(built.kernel, built.bindings, built.values, built.grid),))


def from_stages(stages: Stages) -> Lowered:
    launches = tuple(Launch(b.kernel, b.bindings, b.values, b.grid) for b in stages.built)
    return Lowered(launches, stages.temporaries)


def lower(op: Operation, alias: tuple[int, ...], host: int, caps: HostCaps) -> Lowered:
    """Lowers ``op`` for host number ``host``; ``alias[k]`` is the first argument that shares argument ``k``'s storage."""
    key: tuple[Any, ...] = (alias, host)
    found = op.lowered.get(key)
    if found is None:
        found = op.lowered[key] = _lower(op, alias, caps)
    return found


def _lower(op: Operation, alias: tuple[int, ...], caps: HostCaps) -> Lowered:
    if isinstance(op.body, Pointwise):
        return from_built(build_pointwise(op, alias, caps.float16))
    if isinstance(op.body, Reduction):
        return from_stages(build_reduction(op, alias))
    assert isinstance(op.body, Extern)
    return op.body.lower(op, alias, caps)
