"""Graphs: calls of operations over numbered tensors, before anything is known of a GPU.

A *tensor* of a graph is where elements start: a storage, an offset, a dtype. Two arguments are the same elements in the
same order if their tensor is the same and they step through the iteration shape alike. Whatever else shares a storage
with a write may overlap it, and keeps its order relative to it. What a program calls, a graph has as it is: fusing it,
and leaving out what nobody sees, is the compiler's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .operation import Operation

ALIGNED = -1
"""The number of a tensor that starts where its storage does, so that nobody asks where."""


class Argument(NamedTuple):
    """One argument of a call: the number of its tensor and of its storage.

    A list of tensors has a number in place of a storage's; those that it has tensors in and that have numbers, too,
    since other arguments lie in them, are its ``members``.
    """

    tensor: int
    storage: int
    members: frozenset[int] = frozenset()

    @property
    def storages(self) -> frozenset[int]:
        """All that it touches."""
        return self.members | {self.storage}


class Call(NamedTuple):
    """One call: its operation, and an :class:`Argument` for each of the operation's."""

    op: Operation
    arguments: tuple[Argument, ...]


Origin = Literal["input", "weight", "constant", "new"]
"""Where a storage's contents come from: from whoever runs the graph (a ``weight`` is a parameter of a module), from the
graph's maker, from the graph's own calls.
"""


class Storage(NamedTuple):
    """Memory that a graph's tensors lie in.

    ``live``: it can be seen when the calls have run. ``external``: whoever runs the graph brings its memory, also that
    of a new one. ``name``: what its user calls it.
    """

    size_bytes: int
    origin: Origin = "new"
    live: bool = False
    external: bool = True
    name: str = ""


class TensorList(NamedTuple):
    """A list of tensors as one argument.

    ``storages``: those of its tensors, one after the other. ``aligned``: each starts where its storage does.
    ``common``: of the tensors whose storage other arguments lie in, too, by position: the storage's number, which is
    beyond those of the graph's single tensors and lists where none but lists use it. ``live``: whether the list can be
    seen when the calls have run.
    """

    storages: tuple[Storage, ...]
    aligned: bool
    common: Mapping[int, int]
    live: bool


class TensorView(NamedTuple):
    """A tensor in a storage, from ``byte_offset`` on. Shape and strides are in elements."""

    storage: int
    byte_offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Interface(NamedTuple):
    """What a graph of a whole function says beside its calls.

    ``inputs``, ``outputs``: its tensors, of which an input may start anywhere in its storage when the graph runs.
    ``starts``: of each tensor of the graph, lists' last, the number of the input that it lies in, or -1, and how many
    bytes after the start of that, or of its storage. ``result``: how the outputs are arranged (``plan.structure``).
    ``constants``: the contents of storages. ``random_blocks``: how much of the random stream it uses.
    """

    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]
    starts: Sequence[tuple[int, int]]
    result: Any
    constants: Mapping[int, bytes]
    random_blocks: int


@dataclass(frozen=True, eq=False)
class Graph:
    """Calls in program order.

    ``tensors``: how many single tensors there are; lists have the numbers that follow. ``storages``: of the single
    tensors; lists have the numbers that follow. ``scalars``: of each call, a number that is always the same, or a
    ``plan.Word`` that says where it comes from. ``interface``: None where whoever runs the graph brings every storage.
    ``extra``: storages that no call uses.
    """

    calls: tuple[Call, ...]
    tensors: int
    storages: tuple[Storage, ...]
    scalars: Sequence[Sequence[Any]]
    lists: tuple[TensorList, ...] = ()
    interface: Interface | None = None
    extra: tuple[Storage, ...] = ()

    @property
    def live(self) -> frozenset[int]:
        """The numbers of the storages and of the lists that can be seen when the calls have run."""
        seen = (*[storage.live for storage in self.storages], *[tensors.live for tensors in self.lists])
        return frozenset([number for number, live in enumerate(seen) if live])

    def laid_out(self, lists: Sequence[int]) -> Layout:
        """Its memory where these of its lists lie in memory and no others do."""
        storages = list(self.storages)
        members: dict[int, list[Argument]] = {self.tensors + n: [] for n in range(len(self.lists))}
        owners = [0] * self.tensors
        for call in self.calls:
            for argument in call.arguments:
                if argument.tensor < self.tensors:
                    owners[argument.tensor] = argument.storage
        known = {number: number for number in range(len(self.storages))}
        for n in lists:
            entry = self.lists[n]
            for position, storage in enumerate(entry.storages):
                name = entry.common.get(position)
                number = len(storages) if name is None else known.setdefault(name, len(storages))
                members[self.tensors + n].append(Argument(ALIGNED if entry.aligned else len(owners), number))
                is_first = number == len(storages)  # what others lie in, too, has a number of its own already
                storages.append(storage if is_first else Storage(storage.size_bytes, external=storage.external))
                if not entry.aligned:
                    owners.append(number)
        return Layout((*storages, *self.extra), tuple(owners), members)

    def __str__(self) -> str:
        """A line for each call, for people."""
        lines = []
        for number, (op, arguments) in enumerate(self.calls):
            texts = [
                f"t{a.tensor}@s{a.storage} {spec.dtype}{list(spec.shape)}"
                for a, spec in zip(arguments, op.args, strict=True)
            ]
            inputs, outputs = ", ".join(texts[: op.n_inputs]), ", ".join(texts[op.n_inputs :])
            lines.append(f"{number}: {op.name}({inputs}) -> {outputs}")
        live = ", ".join([f"s{number}" for number in sorted(self.live)])
        return "\n".join([*lines, f"live: {live}"])


class Layout(NamedTuple):
    """The storages of a graph, those of lists' tensors last; of each tensor that may start anywhere, lists' last, its
    storage; and where each tensor of its lists lies, by the lists' numbers: nowhere, for a list that is not in memory.
    """

    storages: tuple[Storage, ...]
    owners: tuple[int, ...]
    members: Mapping[int, Sequence[Argument]]

    def tensors_of(self, arguments: Iterable[Argument]) -> list[Argument]:
        """Each tensor of these arguments, those of lists one by one."""
        return [tensor for argument in arguments for tensor in self.members.get(argument.tensor, (argument,))]
