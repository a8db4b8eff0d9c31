"""A shader module as a value: its declarations by name, what each of them mentions, and its entry point.

Names are resolved as WGSL does it. A parameter or a local variable hides the declaration of the same name, from where
it is declared to the end of its block; members and attributes have names of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import NamedTuple

from torch_webgpu.caches import memoized
from torch_webgpu.errors import ShaderSyntaxError

from .tokens import (
    is_comment,
    is_name,
    is_trivia,
    last_name,
    next_index,
    significant_tokens,
    syntax_error,
    tokens,
    without_comments,
)

CACHE_SIZE = 1024
"""Modules that are kept by their text. A kernel's is asked for a few times while its plan is made, then no more."""

_KINDS = frozenset("fn struct const alias var override const_assert".split())
_DIRECTIVES = frozenset("enable requires diagnostic".split())
_LOCAL_KINDS = frozenset("let var const".split())
_KEYWORDS = _KINDS | _DIRECTIVES | _LOCAL_KINDS | frozenset(
    "_ break case continue continuing default discard else false for if loop return switch true while".split()
)  # fmt: skip
_BRACKETS = {")": "(", "]": "[", "}": "{"}
_OPENING = frozenset(_BRACKETS.values())
_ENDS = {"fn": "}", "struct": "}"}
_LABELLED = _LOCAL_KINDS | {":"}
_MARKS = frozenset("()[]{};") | _LABELLED
_SCOPES = frozenset({"{", "}", ";", "for"})
# Attributes whose arguments are names that only they know.
_CONTEXTS = frozenset("builtin diagnostic interpolate".split())


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function, with its type as written. ``builtin``: which one it is of an entry point's."""

    name: str
    type: str
    builtin: str = ""


@dataclass(frozen=True)
class Signature:
    """What a function takes, and the type of its result: empty where it has none."""

    parameters: tuple[Parameter, ...]
    result: str


@dataclass(frozen=True)
class Declaration:
    """One declaration of a module.

    ``kind`` is its keyword; a ``const_assert`` has an empty name. ``attributes``: those before the keyword, each with
    its arguments as written. ``address_space``: a variable's.
    """

    text: str
    kind: str = field(compare=False)
    name: str = field(compare=False)
    attributes: Mapping[str, str] = field(compare=False)
    address_space: str = field(compare=False)

    @cached_property
    def _used(self) -> _Names:
        sequence = significant_tokens(self.text)
        return _Names.of(sequence, _marks(sequence), {self.name})

    @property
    def names(self) -> frozenset[str]:
        """The names that it uses, predeclared and local ones among them."""
        return self._used.names

    @cached_property
    def mentions(self) -> frozenset[str]:
        """The names that it uses at module scope, and predeclared ones."""
        sequence = tokens(self.text)
        hidden, elsewhere = _resolved(sequence, self.kind)
        return self.names - {sequence[k] for k in hidden} | elsewhere - {self.name}

    def mentions_of(self, names: Set[str]) -> Set[str]:
        """Which of ``names`` are its ``mentions``: less work where none of them can be local."""
        used = self.names & names
        return used if used.isdisjoint(self._used.labels) else used & self.mentions

    @cached_property
    def signature(self) -> Signature | None:
        """A function's; None for what is none."""
        if self.kind != "fn":
            return None
        sequence = tokens(self.text)
        opened = sequence.index("(", sequence.index("fn"))
        closed = _closing(sequence, opened)
        results = comma_separated(sequence[closed + 1 : sequence.index("{", closed)])
        parameters = tuple(map(_parameter, comma_separated(sequence[opened + 1 : closed])))
        return Signature(parameters, results[0].removeprefix("->").strip() if results else "")

    @property
    def body(self) -> str | None:
        """A function's, in its braces; None for what is none."""
        if self.kind != "fn":
            return None
        sequence = tokens(self.text)
        return "".join(sequence[sequence.index("{", _closing(sequence, sequence.index("(", sequence.index("fn")))) :])

    def renamed(self, names: Mapping[str, str]) -> str:
        """Its text with other names; see :meth:`Module.renamed`."""
        sequence = tokens(self.text)
        owners = {name.partition(".")[0] for name in names} & set(sequence)
        new = {new for name, new in names.items() if name.partition(".")[0] in owners}
        if clashes := (new & set(sequence)) - names.keys():
            raise ValueError(f"{self.kind} {self.name} has the names {', '.join(sorted(clashes))} already")
        hidden, _ = _resolved(sequence, self.kind)
        for k in [k for k, token in enumerate(sequence) if token in owners and k not in hidden]:
            end = next_index(sequence, k + 1)
            path = f"{sequence[k]}.{last_name(sequence[end])}" if sequence[end : end + 1] else ""
            if path in names and sequence[end][0] == ".":
                sequence[k : end + 1] = [names[path], *[""] * (end - k)]
            else:
                sequence[k] = names.get(sequence[k], sequence[k])
        return "".join(sequence)


@dataclass(frozen=True)
class Module:
    """A text of WGSL. ``declared``: the names of its declarations."""

    text: str
    declared: frozenset[str] = field(compare=False)
    _used: _Names = field(compare=False, repr=False)

    @staticmethod
    def parse(text: str) -> Module:
        """Raises ShaderSyntaxError for a text without tokens, with brackets that are not closed, or with statements at
        module scope that declare nothing."""
        return _parsed(text)

    @property
    def names(self) -> frozenset[str]:
        """The names that it uses and does not declare, predeclared and local ones among them."""
        return self._used.names

    @property
    def attributes(self) -> frozenset[str]:
        """The names of all attributes in it."""
        return self._used.attributes

    def mentions_of(self, names: Set[str]) -> Set[str]:
        """Which of ``names`` it uses at module scope without declaring them."""
        used = self.names & names
        if used.isdisjoint(self._used.labels):
            return used
        return frozenset().union(*[declaration.mentions_of(used) for declaration in self.declarations])

    @cached_property
    def _parts(self) -> _Parts:
        return _Parts.of(tokens(self.text))

    @property
    def declarations(self) -> tuple[Declaration, ...]:
        """In the order of the text."""
        return self._parts.declarations

    @property
    def gaps(self) -> tuple[str, ...]:
        """What stands before each declaration, and after the last one; directives are there."""
        return self._parts.gaps

    @property
    def directives(self) -> tuple[str, ...]:
        return self._parts.directives

    @cached_property
    def by_name(self) -> dict[str, Declaration]:
        return {declaration.name: declaration for declaration in self.declarations if declaration.name}

    @cached_property
    def entry(self) -> Declaration | None:
        """The function that a compute pipeline starts."""
        return next((d for d in self.declarations if "compute" in d.attributes), None)

    def reachable(self, names: Iterable[str]) -> list[Declaration]:
        """The declarations that ``names`` lead to, each once and in the module's order."""
        return reachable(names, self.by_name)

    def renamed(self, names: Mapping[str, str]) -> Module:
        """The module with other names for what ``names`` has at module scope, or predeclared, and nothing else.

        A key ``variable.member`` stands for that member of a variable. Raises ValueError for a new name that is there.
        """
        if clashes := self.declared.intersection(names.values()) - names.keys():
            raise ValueError(f"the module declares {', '.join(sorted(clashes))} already")
        *gaps, last = self.gaps
        texts = [gap + declaration.renamed(names) for gap, declaration in zip(gaps, self.declarations)]
        return Module.parse("".join([*texts, last]))

    def without_comments(self) -> Module:
        return Module.parse(without_comments(self.text))


def reachable(names: Iterable[str], table: Mapping[str, Declaration]) -> list[Declaration]:
    """The declarations of ``table`` that ``names`` lead to, each once and in the order of the table."""
    reached: set[str] = set()
    pending = [name for name in names if name in table]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += table[name].mentions_of(table.keys()) - reached
    return [declaration for name, declaration in table.items() if name in reached]


# Parsing


@memoized("parsed WGSL", CACHE_SIZE)
def _parsed(text: str) -> Module:
    try:
        sequence = significant_tokens(text)
        marks = _marks(sequence)
        declared = frozenset([head.name for head, _, _ in _heads(sequence, marks)])
    except ShaderSyntaxError:
        _Parts.of(tokens(text))  # raises the same, with the position
        raise
    return Module(text, declared - {""}, _Names.of(sequence, marks, declared))


def _marks(sequence: Sequence[str]) -> list[int]:
    return list(compress(range(len(sequence)), map(_MARKS.__contains__, sequence)))


@dataclass(frozen=True)
class _Names:
    """The names in a sequence of tokens but for some, and the ones of which some may be local."""

    names: frozenset[str]
    labels: frozenset[str]
    attributes: frozenset[str]

    @classmethod
    def of(cls, sequence: list[str], marks: Iterable[int], without: Set[str]) -> _Names:
        """Of a sequence without blanks and comments."""
        used = set(sequence)
        names = frozenset(filter(str.isidentifier, used)) - _KEYWORDS - without
        attributes = [token for token in used if token[0] == "@"]
        labelled = [k for k in marks if sequence[k] in _LABELLED]
        labels = {sequence[k - 1 if sequence[k] == ":" else k + 1] for k in labelled}
        if "<" in labels:
            labels.update([sequence[_name_index(sequence, k)] for k in labelled])
        labels.update([sequence[k] for k in _context_names(sequence, attributes)])
        return cls(names, names & labels, frozenset(map(last_name, attributes)))


@dataclass(frozen=True)
class _Parts:
    """A module taken apart. ``gaps``: what stands before each declaration, and after the last; directives are there."""

    declarations: tuple[Declaration, ...]
    directives: tuple[str, ...]
    gaps: tuple[str, ...]

    @classmethod
    def of(cls, sequence: Sequence[str]) -> _Parts:
        declarations, directives, gaps = [], [], []
        done = 0
        for head, first, end in _heads(sequence, _marks(sequence)):
            text = "".join(sequence[first:end])
            if head.kind in _DIRECTIVES:
                directives.append(text)
            else:
                declarations.append(Declaration(text, *head))
                gaps.append("".join(sequence[done:first]))
                done = end
        return cls(tuple(declarations), tuple(directives), (*gaps, "".join(sequence[done:])))


class _Head(NamedTuple):
    """How a directive or a declaration begins."""

    kind: str
    name: str
    attributes: Mapping[str, str]
    address_space: str


def _heads(sequence: Sequence[str], marks: Iterable[int]) -> Iterator[tuple[_Head, int, int]]:
    """What a module has: each with where it starts and ends."""
    start = 0
    for end in _ends(sequence, marks):
        first = next_index(sequence, start)
        if sequence[first] != ";":
            yield _head(sequence, first, end), first, end
        start = end
    if next_index(sequence, start) < len(sequence):
        raise syntax_error(sequence, next_index(sequence, start), "this declaration does not end")


def _ends(sequence: Sequence[str], marks: Iterable[int]) -> Iterator[int]:
    """Where directives and declarations end."""
    opened: list[int] = []
    for k in marks:
        token = sequence[k]
        if token in _OPENING:
            opened.append(k)
        elif token in _BRACKETS:
            if not opened:
                raise syntax_error(sequence, k, f"{token!r} closes nothing")
            if sequence[opened[-1]] != _BRACKETS[token]:
                break
            opened.pop()
            if token == "}" and not opened:
                yield k + 1
        elif token == ";" and not opened:
            yield k + 1
    if opened:
        raise syntax_error(sequence, opened[-1], f"{sequence[opened[-1]]!r} is not closed")


def _head(sequence: Sequence[str], start: int, end: int) -> _Head:
    attributes, k = _attributes(sequence, start)
    kind = sequence[k]
    if kind in _DIRECTIVES:
        return _Head(kind, "", attributes, "")
    if kind not in _KINDS:
        raise syntax_error(sequence, k, "no declaration begins like this")
    name = space = ""
    at = _name_index(sequence, k)
    if kind != "const_assert":
        if at >= end or not is_name(sequence[at]):
            raise syntax_error(sequence, k, f"this {kind} has no name")
        name, space = sequence[at], next(filter(is_name, sequence[k + 1 : at]), "") if kind == "var" else ""
    if sequence[end - 1] != _ENDS.get(kind, ";") or (kind == "fn" and sequence[next_index(sequence, at + 1)] != "("):
        raise syntax_error(sequence, k, f"this is not how a {kind} is declared")
    return _Head(kind, name, attributes, space)


def _attributes(sequence: Sequence[str], k: int) -> tuple[dict[str, str], int]:
    """The attributes that stand at ``k``, and where they end."""
    attributes = {}
    while k < len(sequence) and sequence[k][0] == "@":
        name, arguments, k = last_name(sequence[k]), "", next_index(sequence, k + 1)
        if sequence[k : k + 1] == ["("]:
            closed = _closing(sequence, k)
            arguments, k = "".join(sequence[k + 1 : closed]).strip(), next_index(sequence, closed + 1)
        attributes[name] = arguments
    return attributes, k


def _closing(sequence: Sequence[str], opened: int) -> int:
    """Where the bracket at ``opened`` is closed."""
    depth = 0
    for k in range(opened, len(sequence)):
        depth += (sequence[k] == sequence[opened]) - (_BRACKETS.get(sequence[k]) == sequence[opened])
        if depth == 0:
            return k
    raise syntax_error(sequence, opened, f"{sequence[opened]!r} is not closed")


def comma_separated(sequence: Sequence[str]) -> list[str]:
    """The texts between commas of a list of parameters or types, where all `<` are brackets; without comments."""
    texts, depth = [""], 0
    for token in sequence:
        if token == "," and depth == 0:
            texts.append("")
        elif not is_comment(token):
            texts[-1] += token
            depth += token in _OPENING
            depth -= token in _BRACKETS
            depth += (token.count("<") - token.count(">")) * (token != "->")
    return [text for text in map(str.strip, texts) if text]


def _parameter(text: str) -> Parameter:
    sequence = tokens(text)
    attributes, k = _attributes(sequence, 0)
    name, _, type_ = "".join(sequence[k:]).partition(":")
    return Parameter(name.strip(), type_.strip(), attributes.get("builtin", ""))


# Scopes


def _resolved(sequence: list[str], kind: str) -> tuple[set[int], set[str]]:
    """Where a declaration has names that are not the module's, and which of these names are the module's elsewhere."""
    hidden = _context_names(sequence, [token for token in set(sequence) if token[0] == "@"])
    body = sequence.index("{", sequence.index(kind)) if kind in ("fn", "struct") else 0
    parameters: set[str] = set()
    declared: set[int] = set()
    if kind == "struct":
        hidden |= _labels(sequence, {":"})
    elif kind == "fn":
        labels = _labels(sequence[:body], {":"})
        parameters = {sequence[k] for k in labels}
        declared = _labels(sequence, _LOCAL_KINDS)
        hidden |= labels | declared
    names = {sequence[k] for k in hidden}
    uses = [k for k, token in enumerate(sequence) if token in names and k not in hidden]
    if kind == "fn":
        scopes = [k for k, token in enumerate(sequence) if token in _SCOPES and k >= body]
        hidden |= _shadowed(sequence, sorted([*uses, *scopes, *declared]), declared, parameters)
    return hidden, {sequence[k] for k in uses if k not in hidden}


def _context_names(sequence: list[str], attributes: Iterable[str]) -> set[int]:
    """The names in the arguments of those ``attributes`` that give them a meaning of their own."""
    names: set[int] = set()
    for attribute in attributes:
        k = -1
        for _ in range(sequence.count(attribute) if last_name(attribute) in _CONTEXTS else 0):
            k = sequence.index(attribute, k + 1)
            opened = next_index(sequence, k + 1)
            if sequence[opened : opened + 1] == ["("]:
                names.update([j for j in range(opened, _closing(sequence, opened)) if is_name(sequence[j])])
    return names


def _labels(sequence: Sequence[str], marks: Set[str]) -> set[int]:
    """The names that are declared at ``marks``."""
    indices = {_name_index(sequence, k) for k, token in enumerate(sequence) if token in marks}
    return {k for k in indices if is_name(sequence[k]) and sequence[k] not in _KEYWORDS}


def _name_index(sequence: Sequence[str], k: int) -> int:
    """Where the name is that is declared at ``k``: before a colon, or after a keyword and its template list."""
    if sequence[k] == ":":
        return next((j for j in range(k - 1, -1, -1) if not is_trivia(sequence[j])), k)
    k = next_index(sequence, k + 1)
    if sequence[k][0] == "<":
        k = next((j for j in range(k, len(sequence) - 1) if ">" in sequence[j]), k)
        k = next_index(sequence, k + 1)
    return k


def _shadowed(sequence: Sequence[str], events: Sequence[int], declared: set[int], parameters: set[str]) -> set[int]:
    """Which of ``events``, the ends of scopes and statements and uses of local names, use what is local there."""
    shadowed = set()
    visible: dict[str, int] = {}
    scopes: list[list[str]] = []
    headers: list[int] = []
    pending = ""
    for k in events:
        token = sequence[k]
        if token == "{":
            if not scopes:
                visible.update(dict.fromkeys(parameters, 1))
            scopes.append([])
        elif token == "for":
            # What its header declares is there in its block, too.
            scopes.append([])
            headers.append(len(scopes))
        elif token == "}":
            ended = scopes.pop()
            if headers and headers[-1] == len(scopes):
                headers.pop()
                ended += scopes.pop()
            for name in ended:
                visible[name] -= 1
        elif token == ";":
            # A name is there after the statement that declares it.
            if pending:
                scopes[-1].append(pending)
                visible[pending] = visible.get(pending, 0) + 1
                pending = ""
        elif k in declared:
            pending = token
        elif visible.get(token):
            shadowed.add(k)
    return shadowed
