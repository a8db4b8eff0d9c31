"""How an entry point uses its arguments: what of its text stands for a tensor's element, length, sizes or strides.

A tensor argument ``x`` is an array of which ``x[i]`` is the i-th element, wherever the tensor starts in its storage.
So every index is rewritten, and brought into the tensor's range on the way, and ``arrayLength(&x)`` is the tensor's.
The names that tell its layout (``shader_source.LAYOUT_NAMES``) are declared where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_webgpu.caches import memoized
from torch_webgpu.wgsl.kernel import ERROR_FLAGS
from torch_webgpu.wgsl.module import Module
from torch_webgpu.wgsl.tokens import is_trivia, last_name, next_index, tokens
from torch_webgpu.wgsl.types import Names, UnknownTypeError, is_runtime_array, members, parts, resolved

from .shader_source import EntryPoint, Resource, compile_error, layout_name, names_in

CACHE_SIZE = 256
THREADS = "num_threads"
"""How many threads were asked for, a ``vec3<u32>``."""


class LayoutName(NamedTuple):
    """A name that a kernel uses and that tells something of a tensor: number ``tensor``, by what is asked of it."""

    tensor: int
    what: str
    dimension: int


@dataclass
class TensorUse:
    """How a tensor argument is used.

    ``type``: the variable's. ``element``: the type of its elements, of a variable that is no array its own.
    ``member``: of a struct that ends in an array, whose elements are meant, that member. ``length``: the one that its
    type has, as written. ``is_whole``: the variable is used other than by index, so that it must be where its storage
    starts. ``names``: what is used of its layout.
    """

    resource: Resource
    type: str
    element: str
    member: str = ""
    length: str = ""
    is_array: bool = True
    is_whole: bool = False
    names: set[str] = field(default_factory=set)
    dimensions: int = 0

    @property
    def reads_strides(self) -> bool:
        """Whether the kernel finds elements by their strides; others see them one after another."""
        return any(name.startswith(("stride", "at")) for name in self.names)


class Slot(NamedTuple):
    """Tokens of the text that stand for something of an argument.

    ``kind``: "index" (the brackets at ``token`` and ``end``), "length" (all from ``token`` to ``end``), "variable",
    "uniform", "layout" or "threads" (the one at ``token``).
    """

    kind: str
    token: int
    end: int
    argument: int
    name: str = ""


@dataclass(frozen=True, eq=False)
class Uses:
    """An entry point's module under names that are its own, and where its arguments are used in it.

    ``tokens`` are the text's. ``variables``: the names of the arguments' variables. ``tensors``: uses of tensor
    arguments, by their place among the arguments.
    """

    entry: EntryPoint
    module: Module
    tokens: tuple[str, ...]
    variables: tuple[str, ...]
    types: tuple[str, ...]
    tensors: dict[int, TensorUse]
    slots: tuple[Slot, ...]

    @property
    def names(self) -> Names:
        return self.module.by_name


@memoized("uses of arguments in programs' kernels", CACHE_SIZE)
def uses_of(entry: EntryPoint) -> Uses:
    """Raises ShaderCompileError for a use that a tensor cannot serve."""
    original = entry.source.module
    taken = set(names_in(tokens(original.text)))

    def fresh(name: str) -> str:
        while name in taken or name in ("P", "Params"):
            name += "_"
        taken.add(name)
        return name

    resources = entry.resources
    # `errors_…` are functions of the linker's.
    variables = [fresh(f"{'own_' * r.name.startswith(ERROR_FLAGS.name)}{r.name}_") for r in resources]
    renamed = dict(zip([resource.name for resource in resources], variables))
    layout_names = {fresh(f"{name}_"): found for name, found in _layout_names(entry)}
    renamed |= {_name_of(found, resources): marker for marker, found in layout_names.items()}
    threads = fresh(f"{THREADS}_")
    if THREADS in entry.undeclared:
        renamed[THREADS] = threads
    # The linker declares `P`, `Params`; pipelines start `main`.
    renamed |= {name: fresh(name) for name in ("P", "Params") if name in original.declared - renamed.keys()}
    if entry.name != "main" and "main" in original.declared:
        renamed["main"] = fresh("main_")
    taken.discard("main")
    if entry.name != "main":
        renamed[entry.name] = "main"
    text = _renamed(original, renamed)
    module = Module.parse(text)
    types = [_type_of(module, variable) for variable in variables]
    tensors = {
        k: _tensor_use(entry, resource, types[k], module.by_name)
        for k, resource in enumerate(resources)
        if resource.is_tensor
    }
    walk = _Walk(entry, tokens(text), variables, tensors, layout_names, threads)
    slots = tuple(walk.slots())
    return Uses(entry, module, tuple(walk.sequence), tuple(variables), tuple(types), tensors, slots)


def _renamed(module: Module, names: dict[str, str]) -> str:
    """The module's text; no token moves. The new name of the entry point may be the old one of something else."""
    *gaps, last = module.gaps
    return "".join([*[gap + d.renamed(names) for gap, d in zip(gaps, module.declarations)], last])


def _layout_names(entry: EntryPoint) -> Iterator[tuple[str, LayoutName]]:
    tensors = {r.name: k for k, r in enumerate(entry.resources) if r.is_tensor}
    for name in sorted(entry.undeclared):
        found = layout_name(name)
        if found is not None and found[0] in tensors:
            yield name, LayoutName(tensors[found[0]], *found[1:])


def _name_of(found: LayoutName, resources: tuple[Resource, ...]) -> str:
    number = f"_{found.dimension}" if found.dimension >= 0 else ""
    return f"{resources[found.tensor].name}_{found.what}{number}"


def _type_of(module: Module, variable: str) -> str:
    """The type of a variable of a module, without blanks."""
    sequence = [token for token in tokens(module.by_name[variable].text) if not is_trivia(token)]
    return "".join(sequence[sequence.index(":", sequence.index(variable)) + 1 : -1])


def _tensor_use(entry: EntryPoint, resource: Resource, type_: str, names: Names) -> TensorUse:
    """What the type says; the rest is found in the text."""
    try:
        type_ = resolved(type_, names)
        name, arguments = parts(type_)
        if name == "array" and arguments:
            return TensorUse(resource, type_, arguments[0], length=arguments[1] if len(arguments) > 1 else "")
        declaration = names.get(type_)
        if declaration is not None and declaration.kind == "struct":
            last = members(declaration, names)[-1]
            last_type = resolved(last.type, names)
            if is_runtime_array(last_type):
                return TensorUse(resource, type_, parts(last_type)[1][0], member=last.name, is_whole=True)
    except (UnknownTypeError, IndexError, ValueError) as error:
        raise entry.source.error(resource.name, f"the type of {resource.name}: {error}") from None
    return TensorUse(resource, type_, type_, is_array=False, is_whole=True)


class _Walk:
    """Finds the slots of a text."""

    def __init__(
        self,
        entry: EntryPoint,
        sequence: list[str],
        variables: list[str],
        tensors: dict[int, TensorUse],
        layout_names: dict[str, LayoutName],
        threads: str,
    ) -> None:
        self.entry, self.sequence, self.tensors = entry, sequence, tensors
        self.numbers = {variable: k for k, variable in enumerate(variables)}
        self.layout_names, self.threads = layout_names, threads

    def slots(self) -> Iterator[Slot]:
        for k, token in enumerate(self.sequence):
            if token in self.layout_names:
                tensor, what, dimension = self.layout_names[token]
                name = f"{what}_{dimension}" if dimension >= 0 else what
                use = self.tensors[tensor]
                use.names.add(name)
                use.dimensions = max(use.dimensions, dimension + 1)
                yield Slot("layout", k, k, tensor, name)
            elif token == self.threads:
                yield Slot("threads", k, k, -1)
            elif token in self.numbers and not self._is_declared(k):
                argument = self.numbers[token]
                yield self._tensor(k, argument) if argument in self.tensors else Slot("uniform", k, k, argument)

    def _is_declared(self, k: int) -> bool:
        """Whether a variable is declared here, and not used."""
        after = next_index(self.sequence, k + 1)
        return (
            self.sequence[after] == ":" and self._before(k) is not None and ">" in self.sequence[self._before(k) or 0]
        )

    def _before(self, k: int) -> int | None:
        """The token before this one."""
        return next((j for j in range(k - 1, -1, -1) if not is_trivia(self.sequence[j])), None)

    def _tensor(self, k: int, argument: int) -> Slot:
        use, sequence = self.tensors[argument], self.sequence
        after = next_index(sequence, k + 1)
        if use.member and sequence[after][0] == "." and last_name(sequence[after]) == use.member:
            after = next_index(sequence, after + 1)
        elif use.member or not use.is_array:
            return Slot("variable", k, k, argument)
        if sequence[after] == "[":
            return Slot("index", after, self._closing(after), argument, str(k))
        start = self._length_call(k, after)
        if start is not None:
            return Slot("length", start, after, argument)
        if not use.length:
            raise compile_error(
                self.entry.text,
                k,
                f"{use.resource.name} is used as a whole here. A tensor may start anywhere in its storage: use its "
                f"elements, {use.resource.name}[i] or &{use.resource.name}[i], and arrayLength(&{use.resource.name})",
            )
        use.is_whole = True
        return Slot("variable", k, k, argument)

    def _length_call(self, k: int, after: int) -> int | None:
        """Where ``arrayLength(&x)`` begins, if ``x`` stands in one."""
        places, at = [], k
        for _ in range(3):
            before = self._before(at)
            if before is None:
                return None
            places.append(self.sequence[before])
            at = before
        is_call = places == ["&", "(", "arrayLength"] and self.sequence[after] == ")"
        return at if is_call else None

    def _closing(self, opened: int) -> int:
        depth = 0
        for k in range(opened, len(self.sequence)):
            depth += (self.sequence[k] == "[") - (self.sequence[k] == "]")
            if depth == 0:
                return k
        raise compile_error(self.entry.text, opened, "'[' is not closed")
