"""What an operation comes down to: dispatches of kernels over its arguments, with the values of their parameters."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from .builder import Source, Value
from .kernel import Kernel

_FORMAT = {"u32": "I", "i32": "i", "f32": "f"}
ERRORS = -1
"""The binding index of the device's error buffer (see ``Launch.bindings``)."""


@dataclass(frozen=True)
class Launch:
    """One dispatch of an operation.

    ``bindings``: for each binding of the kernel an argument's index, ``n_args + t`` for temporary ``t``, or ``ERRORS``.
    ``values``: each parameter's value, or where it comes from.
    ``fixed``: the parameters' bytes where they are always the same.
    """

    kernel: Kernel
    bindings: tuple[int, ...]
    values: tuple[Value, ...]
    grid: tuple[int, int, int]
    fixed: bytes | None = field(init=False)
    _last: tuple[Sequence[int] | None, bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert len(self.values) == len(self.kernel.params), (self.kernel.name, self.values, self.kernel.params)
        assert len(self.bindings) == len(self.kernel.bindings), self.kernel.name
        packer = struct.Struct("<" + "".join(_FORMAT[p.type] for p in self.kernel.params))
        object.__setattr__(self, "_pack", packer.pack)
        fixed = None if any(isinstance(v, Source) for v in self.values) else packer.pack(*self.values)
        object.__setattr__(self, "fixed", fixed)
        object.__setattr__(self, "_last", (None, b""))

    def pack(self, offsets: Sequence[int], scalars: Sequence[int | float]) -> bytes:
        """The parameters' bytes for a node's offsets and scalars."""
        if self.fixed is not None:
            return self.fixed
        if not scalars:  # mostly: all of them 0, time and again
            known, packed = self._last
            if offsets == known:
                return packed
        resolved = [
            v if v.__class__ is not Source else (offsets if v.kind == "offset" else scalars)[v.index]
            for v in self.values
        ]
        packed = self._pack(*resolved)  # type: ignore[attr-defined]
        if not scalars:
            object.__setattr__(self, "_last", (offsets, packed))
        return packed


@dataclass(frozen=True)
class Lowered:
    """An operation's dispatches in order, and the sizes in bytes of the temporaries they share.

    ``cleared``: temporaries that must be zero when the first launch starts.
    """

    launches: tuple[Launch, ...]
    temporaries: tuple[int, ...] = ()
    cleared: tuple[int, ...] = ()
