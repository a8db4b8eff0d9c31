"""What an operation comes down to: dispatches of kernels over its arguments, with the values of their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .expr import join_param, param_parts
from .kernel import Binding, Kernel, Param, ParamType

WORKGROUP = 256
MAX_GROUPS = 65535
ERRORS = -1
"""The binding index of the device's error buffer (see ``Launch.bindings``)."""


@dataclass(frozen=True)
class Source:
    """Where a kernel parameter comes from.

    ``kind`` "offset": the storage offset of argument ``index``; "scalar": part ``index`` of the scalars.
    """

    kind: str
    index: int


Value = int | float | Source


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


def grid_for(threads: int) -> tuple[int, int, int]:
    """Workgroups for ``threads`` threads of a kernel that numbers its groups ``wid.y * nwg.x + wid.x``."""
    return grid_of(max(1, -(-threads // WORKGROUP)))


def grid_of(groups: int) -> tuple[int, int, int]:
    """So many workgroups, at least, of such a kernel: in several rows where one may not have them all."""
    rows = -(-groups // MAX_GROUPS)
    return (-(-groups // rows), rows, 1)


class ParamList:
    """The parameters of a kernel under construction, each with the value it gets at launch."""

    def __init__(self) -> None:
        self.params: list[Param] = []
        self.values: list[Value] = []
        self._names: set[str] = set()

    def add(self, name: str, value: Value, type_: ParamType = "u32") -> str:
        """The WGSL of a parameter, which is declared when it is first asked for."""
        if name not in self._names:
            self._names.add(name)
            self.params.append(Param(name, type_))
            self.values.append(value)
        return f"P.{name}"

    def scalars(self, kinds: Sequence[str], used: Sequence[int]) -> dict[int, str]:
        """Adds the scalar arguments in ``used``; returns each one's WGSL."""
        first, texts = 0, {}
        for k, kind in enumerate(kinds):
            parts = param_parts(kind)
            if k in used:
                for j, type_ in enumerate(parts):
                    self.add(f"s{k}_{j}", Source("scalar", first + j), type_)
                texts[k] = join_param(f"s{k}", kind)
            first += len(parts)
        return texts

    def launch(self, name: str, text: str, bindings: Sequence[Binding], order: Sequence[int], threads: int) -> Launch:
        """The dispatch of a trusted kernel that has these parameters, in workgroups of ``WORKGROUP`` threads."""
        kernel = Kernel(name, text, tuple(bindings), tuple(self.params), workgroup_size=(WORKGROUP, 1, 1), trusted=True)
        return Launch(kernel, tuple(order), tuple(self.values), grid_for(threads))
