"""What an operation comes down to: dispatches of kernels over its arguments, with the values of their parameters."""

from __future__ import annotations

from dataclasses import dataclass

from .builder import Value
from .kernel import Kernel

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


@dataclass(frozen=True)
class Lowered:
    """An operation's dispatches in order, and the sizes in bytes of the temporaries they share.

    ``cleared``: temporaries that must be zero when the first launch starts.
    """

    launches: tuple[Launch, ...]
    temporaries: tuple[int, ...] = ()
    cleared: tuple[int, ...] = ()
