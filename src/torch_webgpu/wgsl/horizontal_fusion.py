"""Kernels side by side: one whose workgroups do what those of several independent ones do.

The parts' workgroups follow each other along x, and a workgroup finds its part by comparing its number with where parts
end. Each part keeps its parameters; what equal parts declare alike, workgroup memory above all, is there once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache

from .kernel import Binding, Kernel, Param

KERNEL_CACHE_SIZE = 512
ERRORS = "errors"
"""The binding that library functions know by its name, so that it keeps it."""

_TOKEN = re.compile(r"\bP\.(\w+)|\b[A-Za-z_]\w*")
_COMMENT = re.compile(r"[ \t]*//.*")
_DECLARATION = re.compile(r"^(?:fn|const|alias|struct|var<\w+>)\s+(\w+)", re.MULTILINE)
_ENTRY = re.compile(
    r"^@compute\s+@workgroup_size\([^()]*\)(?P<sized>\s*@subgroup_size\(\d+\))?"
    r"\s*fn main\((?P<given>(?:[^()]|\([^()]*\))*)\)",
    re.MULTILINE,
)
_BUILTIN = re.compile(r"@builtin\((\w+)\)\s*(\w+)\s*:\s*([^,]+)")
_ACCESSOR = re.compile(r"(\w+?)_(?:load4?|load_words?4?|store4?|store_word|atomic_\w+)")
_SWIZZLE = re.compile(r"[xyzw]{1,4}|[rgba]{1,4}")
# What a part's entry point is given; the grid is a row.
_GIVEN = {
    "workgroup_id": "vec3<u32>(wid.x - {begin}, 0u, 0u)",
    "num_workgroups": "vec3<u32>({end} - {begin}, 1u, 1u)",
    "local_invocation_index": "lid",
}


@lru_cache(maxsize=KERNEL_CACHE_SIZE)
def can_be_part(kernel: Kernel) -> bool:
    """Whether it is written as :func:`together` can read it."""
    body = _COMMENT.sub("", kernel.body)
    entry = _ENTRY.search(body)
    if not kernel.trusted or entry is None or any(map(_SWIZZLE.fullmatch, _DECLARATION.findall(body))):
        return False
    return all(name in _GIVEN for name, _, _ in _BUILTIN.findall(entry["given"]))


def has_workgroup_memory(kernel: Kernel) -> bool:
    return "var<workgroup>" in kernel.body


@lru_cache(maxsize=KERNEL_CACHE_SIZE)
def together(parts: tuple[Kernel, ...], owners: tuple[tuple[int, ...], ...]) -> Kernel:
    """The kernel of several. ``owners[p][k]``: the number of its binding that is part ``p``'s binding ``k``.

    Its parameters are the numbers of workgroups after which parts end, for all but the last part, then the parts' own.
    It runs on a row of as many workgroups as the parts have in all.
    """
    equal = len(set(parts)) == 1
    texts = [_renamed(part, p, owners[p], equal) for p, part in enumerate(parts)]
    bindings: dict[int, Binding] = {}
    for part, numbers in zip(parts, owners, strict=True):
        for binding, number in zip(part.bindings, numbers, strict=True):
            name = binding.name if binding.name == ERRORS else f"b{number}"
            bindings[number] = Binding(name, binding.dtype, binding.access, binding.mode)
    ends = [Param(f"end_{p}") for p in range(len(parts) - 1)]
    own = [Param(f"{param.name}_{p}", param.type) for p, part in enumerate(parts) for param in part.params]
    shared = dict.fromkeys([text for declared, _ in texts for text in declared])
    size = parts[0].workgroup_size
    # All parts of one host that ask for a size of their subgroups ask for the same.
    sized = next(filter(None, [_sized(part) for part in parts]), "")
    main = [
        f"@compute @workgroup_size({', '.join(map(str, size))}){sized}",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
        "        @builtin(local_invocation_index) lid: u32) {",
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
    entry = _ENTRY.search(part.body)
    assert entry is not None
    return entry["sized"] or ""


def _renamed(part: Kernel, p: int, owners: Sequence[int], equal: bool) -> tuple[list[str], list[str]]:
    """The part's declarations in names that no other part has, and what its entry point takes. ``equal``: parts share
    what depends on neither parameters nor buffers.
    """
    body = _COMMENT.sub("", part.body)
    entry = _ENTRY.search(body)
    assert entry is not None
    builtins = _BUILTIN.findall(entry["given"])
    signature = ", ".join([f"{name}: {type_.strip()}" for _, name, type_ in builtins])
    body = f"{body[: entry.start()]}fn main({signature}){body[entry.end() :]}"
    found = list(_DECLARATION.finditer(body))
    ends = [match.start() for match in found[1:]] + [len(body)]
    texts = {match[1]: body[match.start() : end].strip() for match, end in zip(found, ends, strict=True)}
    buffers = {binding.name: owner for binding, owner in zip(part.bindings, owners, strict=True)}
    own = _own(texts, buffers) if equal else texts.keys()

    def rename(match: re.Match[str]) -> str:
        name = match[0]
        if match[1] is not None or name in own:
            return f"{name}_{p}"
        buffer = None if name in texts else _buffer(name, buffers)
        return name if buffer in (None, ERRORS) else f"b{buffers[buffer]}{name[len(buffer) :]}"

    return [_TOKEN.sub(rename, text) for text in texts.values()], [name for name, _, _ in builtins]


def _buffer(name: str, buffers: Mapping[str, int]) -> str | None:
    """The buffer that this function accesses."""
    match = _ACCESSOR.fullmatch(name)
    return match[1] if match is not None and match[1] in buffers else None


def _own(texts: Mapping[str, str], buffers: Mapping[str, int]) -> Set[str]:
    """The entry point, and what depends on parameters or buffers."""
    mentioned = {name: [match[0] for match in _TOKEN.finditer(text)] for name, text in texts.items()}
    own, size = {"main"}, 0
    while len(own) > size:
        size = len(own)
        for name, tokens in mentioned.items():
            if any(t.startswith("P.") or t in own or (t not in texts and _buffer(t, buffers)) for t in tokens):
                own.add(name)
    return own
