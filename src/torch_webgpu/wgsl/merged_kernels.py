"""Kernels side by side: one whose workgroups do what those of several independent ones do.

The parts' workgroups follow each other along x, and a workgroup finds its part by comparing its number with where parts
end. Each part keeps its parameters; what equal parts declare alike is there once. A workgroup runs one part, so that
different parts share workgroup memory, too: arrays of one type are one array, as long as the longest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from torch_webgpu.caches import memoized

from .kernel import ERROR_FLAGS, Binding, Kernel, Param
from .module import Declaration, Module

KERNEL_CACHE_SIZE = 512

PARAMS = "P"
_ACCESSES = frozenset("load load4 load_word load_words4 store store4 store_word".split())
# What a part's entry point is given; the grid is a row.
_GIVEN = {
    "workgroup_id": "vec3<u32>(wid.x - {begin}, 0u, 0u)",
    "num_workgroups": "vec3<u32>({end} - {begin}, 1u, 1u)",
    "local_invocation_index": "lid",
    "subgroup_id": "subgroup",
}
_NAME = re.compile(r"\w+")
_ARRAY = re.compile(r"var<workgroup>\s+\w+\s*:\s*array\s*<(?P<type>.+),\s*(?P<count>\d+)u?\s*>\s*;?", re.DOTALL)


@memoized("kernels that can be fused horizontally", KERNEL_CACHE_SIZE)
def can_be_part(kernel: Kernel) -> bool:
    """Whether its entry point is given nothing that :func:`together` cannot give it."""
    entry = kernel.module.entry if kernel.trusted else None
    if entry is None or entry.signature is None:
        return False
    return all(parameter.builtin in _GIVEN for parameter in entry.signature.parameters)


@memoized("kernels with workgroup memory", KERNEL_CACHE_SIZE)
def has_workgroup_memory(kernel: Kernel) -> bool:
    return bool(_workgroup_variables(kernel))


@memoized("kernels with subgroup matrices", KERNEL_CACHE_SIZE)
def has_matrices(kernel: Kernel) -> bool:
    return "subgroup_matrix_result" in kernel.module.names


@memoized("kernels whose workgroup memory others can share", KERNEL_CACHE_SIZE)
def can_share_memory(kernel: Kernel) -> bool:
    """Whether what workgroup memory it has can be memory of different kernels as well: arrays of WGSL's own types."""
    arrays = [_ARRAY.fullmatch(text) for text in _workgroup_variables(kernel).values()]
    declared = kernel.module.declared
    return all(found is not None and declared.isdisjoint(_NAME.findall(found["type"])) for found in arrays)


def _workgroup_variables(kernel: Kernel) -> dict[str, str]:
    """Texts by name."""
    declarations = kernel.module.without_comments().declarations
    return {d.name: d.text.strip() for d in declarations if d.address_space == "workgroup"}


def _shared_memory(parts: Iterable[Kernel]) -> tuple[list[dict[str, str]], list[str]]:
    """For each of different kernels the names that its arrays have together, and the text that declares these."""
    names: list[dict[str, str]] = []
    lengths: dict[tuple[str, int], int] = {}
    for part in parts:
        own: dict[str, str] = {}
        seen: Counter[str] = Counter()
        for name, text in _workgroup_variables(part).items():
            found = _ARRAY.fullmatch(text)
            assert found is not None, "see can_share_memory"
            place = found["type"], seen[found["type"]]
            lengths[place] = max(lengths.get(place, 0), int(found["count"]))
            seen[found["type"]] += 1
            own[name] = f"shared_{list(lengths).index(place)}"
        names.append(own)
    arrays = enumerate(lengths.items())
    return names, [f"var<workgroup> shared_{k}: array<{type_}, {length}>;" for k, ((type_, _), length) in arrays]


@memoized("horizontally fused kernels", KERNEL_CACHE_SIZE)
def together(parts: tuple[Kernel, ...], owners: tuple[tuple[int, ...], ...]) -> Kernel:
    """The kernel of several. ``owners[p][k]``: the number of its binding that is part ``p``'s binding ``k``.

    Its parameters are the numbers of workgroups after which parts end, for all but the last part, then the parts' own.
    It runs on a row of as many workgroups as the parts have in all.
    """
    equal = len(set(parts)) == 1
    memory, arrays = ([{}] * len(parts), []) if equal else _shared_memory(parts)
    texts = [_renamed(part, p, owners[p], equal, memory[p]) for p, part in enumerate(parts)]
    bindings: dict[int, Binding] = {}
    for part, numbers in zip(parts, owners, strict=True):
        for binding, number in zip(part.bindings, numbers, strict=True):
            name = binding.name if binding.name == ERROR_FLAGS.name else f"b{number}"
            bindings[number] = Binding(name, binding.dtype, binding.access, binding.mode)
    ends = [Param(f"end_{p}") for p in range(len(parts) - 1)]
    own = [Param(f"{param.name}_{p}", param.type) for p, part in enumerate(parts) for param in part.params]
    shared = dict.fromkeys([*arrays, *(text for declared, _ in texts for text in declared)])
    size = parts[0].workgroup_size
    takes = ["@builtin(local_invocation_index) lid: u32"]
    if any("subgroup_id" in builtins for _, builtins in texts):
        takes.append("@builtin(subgroup_id) subgroup: u32")
    # All parts of one host that ask for a size of their subgroups ask for the same.
    sized = next(filter(None, [_sized(part) for part in parts]), "")
    main = [
        f"@compute @workgroup_size({', '.join(map(str, size))}){sized}",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
        f"        {', '.join(takes)}) {{",
    ]
    for p, (_, builtins) in enumerate(texts):
        begin, end = "0u" if p == 0 else f"P.end_{p - 1}", f"P.end_{p}" if p + 1 < len(parts) else "nwg.x"
        arguments = ", ".join([_GIVEN[name].format(begin=begin, end=end) for name in builtins])
        condition = f"if (wid.x < {end}) " if p + 1 < len(parts) else ""
        main.append(f"  {'} else ' if p else ''}{condition}{{ main_{p}({arguments});")
    body = "\n".join([*shared, *main, "  }", "}", ""])
    name = "+".join([part.name for part in parts])
    ordered = tuple([bindings[number] for number in sorted(bindings)])
    return Kernel(name, body, ordered, (*ends, *own), size, trusted=True)


def _sized(part: Kernel) -> str:
    """How a part's entry point asks for a size of its subgroups, if it does."""
    size = _entry(part.module).attributes.get("subgroup_size")
    return "" if size is None else f" @subgroup_size({size})"


def _entry(module: Module) -> Declaration:
    assert module.entry is not None
    return module.entry


def _renamed(
    part: Kernel, p: int, owners: Sequence[int], equal: bool, memory: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """The part's declarations in names that no other part has, and what its entry point takes. ``equal``: parts share
    what depends on neither parameters nor buffers. ``memory``: the names of what is declared for several.
    """
    module = part.module.without_comments()
    entry = _entry(module)
    assert entry.signature is not None
    takes = entry.signature.parameters
    parameters = ", ".join([f"{parameter.name}: {parameter.type}" for parameter in takes])
    (function,) = Module.parse(f"fn main({parameters}) {entry.body}").declarations
    declarations = [function if d is entry else d for d in module.declarations if d.name not in memory]
    accessors = _accessors(declarations, [binding.name for binding in part.bindings])
    own = _own(declarations, accessors.keys()) if equal else {declaration.name for declaration in declarations}
    names = {name: f"{name}_{p}" for name in [*own, *[f"{PARAMS}.{param.name}" for param in part.params]]}
    names.update(memory)
    for name, k in accessors.items():
        if part.bindings[k].name != ERROR_FLAGS.name:
            names[name] = f"b{owners[k]}{name.removeprefix(part.bindings[k].name)}"
    return [declaration.renamed(names) for declaration in declarations], [t.builtin for t in takes]


def _accessors(declarations: Sequence[Declaration], bindings: Sequence[str]) -> dict[str, int]:
    """The functions that access buffers and are used, each with the number of its binding."""
    used = frozenset().union(*[declaration.mentions for declaration in declarations])
    return {
        name: k
        for k, binding in enumerate(bindings)
        for name in sorted(used - {declaration.name for declaration in declarations})
        if name.startswith(f"{binding}_") and _is_access(name.removeprefix(f"{binding}_"))
    }


def _is_access(name: str) -> bool:
    return name in _ACCESSES or name.startswith("atomic_")


def _own(declarations: Sequence[Declaration], accessors: Set[str]) -> Set[str]:
    """The entry point, and what depends on parameters or buffers."""
    depends = {PARAMS, "main", *accessors}
    size = 0
    while len(depends) > size:
        size = len(depends)
        depends |= {declaration.name for declaration in declarations if not depends.isdisjoint(declaration.mentions)}
    return depends & {declaration.name for declaration in declarations}
