"""The function that a pipeline starts: a program's entry point, in which only as many threads go on as are wanted.

WebGPU runs whole workgroups, and at most 65,535 of them along a dimension. Metal, whose calls these are
(``dispatchThreads``), runs exactly the threads that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_webgpu.wgsl.module import Declaration, Parameter
from torch_webgpu.wgsl.tokens import is_trivia, tokens

# What all threads of a workgroup must reach, or a subgroup's threads do together.
_TOGETHER = ("workgroupBarrier", "storageBarrier", "textureBarrier", "workgroupUniformLoad", "subgroup", "quad")
_THREAD, _GROUP, _GROUPS, _LOCAL = "global_invocation_id", "workgroup_id", "num_workgroups", "local_invocation_id"


def works_together(reached: Sequence[Declaration]) -> bool:
    """Whether threads wait for each other or exchange values, so that none may leave before the others."""
    return any(name.startswith(_TOGETHER) for d in reached for name in d.names)


@dataclass(frozen=True)
class Grid:
    """How many threads a workgroup has; WGSL for how many there are in all along a dimension, and for how many
    workgroups along x. ``in_rows``: these are several rows of the grid that is dispatched.
    """

    size: tuple[int, int, int]
    threads: Callable[[int], str]
    groups: Callable[[], str]
    in_rows: bool


def started(entry: Declaration, reached: Sequence[Declaration], grid: Grid) -> str:
    """The text of the entry point ``main`` in place of the program's own."""
    return _Entry(entry, reached, grid).text()


class _Entry:
    def __init__(self, entry: Declaration, reached: Sequence[Declaration], grid: Grid) -> None:
        assert entry.signature is not None
        self._entry, self._reached, self._grid = entry, reached, grid
        self._parameters = entry.signature.parameters
        self._taken = {token for d in reached for token in tokens(d.text)}
        self._names = {p.builtin: p.name for p in self._parameters if p.builtin}
        self._listed = [_declared(p) for p in self._parameters]
        self._prologue: list[str] = []

    def text(self) -> str:
        if self._grid.in_rows:
            self._number_rows()
        if not works_together(self._reached):
            self._leave_beyond()
        sized = self._entry.attributes.get("subgroup_size")
        size = ", ".join(map(str, self._grid.size))
        attributes = f"@compute @workgroup_size({size})" + (f" @subgroup_size({sized})" if sized else "")
        lines = "".join([f"\n  {line}" for line in self._prologue])
        assert self._entry.body is not None
        return f"{attributes}\nfn main({', '.join(self._listed)}) {{{lines}{self._entry.body[1:]}"

    def _fresh(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def _number_rows(self) -> None:
        """Numbers threads and workgroups as if the rows of the grid were one."""
        given = {name: self._fresh(f"{name}_of_grid") for name in (_GROUP, _GROUPS)}
        local = self._names.get(_LOCAL) or self._fresh("local")
        self._listed = [_declared(p) for p in self._parameters if p.builtin not in (_THREAD, _GROUP, _GROUPS)]
        self._listed += [f"@builtin({name}) {new}: vec3<u32>" for name, new in given.items()]
        if _LOCAL not in self._names:
            self._listed.append(f"@builtin({_LOCAL}) {local}: vec3<u32>")
        group, groups = self._fresh("group"), self._grid.groups()
        thread = self._names.setdefault(_THREAD, self._fresh("thread"))
        self._prologue += [
            f"let {group} = {given[_GROUP]}.y * {given[_GROUPS]}.x + {given[_GROUP]}.x;",
            f"if ({group} >= {groups}) {{ return; }}",
            f"let {thread} = vec3<u32>({group} * {self._grid.size[0]}u, 0u, 0u) + {local};",
        ]
        for name, value in ((_GROUP, f"vec3<u32>({group}, 0u, 0u)"), (_GROUPS, f"vec3<u32>({groups}, 1u, 1u)")):
            if name in self._names:
                self._prologue.append(f"let {self._names[name]} = {value};")

    def _leave_beyond(self) -> None:
        """Threads beyond the number that is wanted do nothing."""
        thread = self._names.get(_THREAD) or self._member()
        if thread is None:
            thread = self._fresh("thread")
            self._listed.append(f"@builtin({_THREAD}) {thread}: vec3<u32>")
        size = self._grid.size
        beyond = [f"{thread}.{'xyz'[d]} >= {self._grid.threads(d)}" for d in range(3) if size[d] > 1 or d == 0]
        self._prologue.append(f"if ({' || '.join(beyond)}) {{ return; }}")

    def _member(self) -> str | None:
        """WGSL for the thread's number where a struct among the parameters has it."""
        structs = {d.name: d for d in self._reached if d.kind == "struct"}
        for parameter in self._parameters:
            declaration = structs.get(parameter.type)
            if declaration is not None:
                sequence = [token for token in tokens(declaration.text) if not is_trivia(token)]
                if _THREAD in sequence:
                    k = sequence.index(_THREAD)
                    return f"{parameter.name}.{sequence[sequence.index(':', k) - 1]}"
        return None


def _declared(parameter: Parameter) -> str:
    builtin = f"@builtin({parameter.builtin}) " if parameter.builtin else ""
    return f"{builtin}{parameter.name}: {parameter.type}"
