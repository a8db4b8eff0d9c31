"""Bounds checks in a program's own WGSL, for compilers that add none: every index is brought into its range.

Dawn checks the indices of all shaders of a device or of none, and this package's own kernels have to be without. So
``x[i]`` becomes ``x[min(u32(i), last)]``, as in Tint's own robustness transform
(https://dawn.googlesource.com/dawn, ``src/tint/lang/core/ir/transform/robustness.cc``). What the last index of ``x``
is follows from its type, which is inferred where it is not written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch_webgpu.errors import ShaderCompileError, ShaderSyntaxError

from .kernel import Kernel
from .module import Declaration, Module
from .tokens import is_integer, is_name, is_number, is_operator, is_trivia, last_name, syntax_error, tokens
from .types import (
    UnknownTypeError,
    constant,
    is_runtime_array,
    layout,
    matrix_shape,
    members,
    parts,
    resolved,
    vector_length,
)

_OPERATOR = re.compile(r"<<=|>>=|[-+*/%&|^<>=!]=|&&|\|\||<<|>>|\+\+|--|->|.")
_PRECEDENCE = {
    **dict.fromkeys(["*", "/", "%"], 6), **dict.fromkeys(["+", "-"], 5), **dict.fromkeys(["<<", ">>"], 4),
    **dict.fromkeys(["<", ">", "<=", ">=", "==", "!="], 3), **dict.fromkeys(["&", "|", "^"], 2),
    **dict.fromkeys(["&&", "||"], 1),
}  # fmt: skip
_COMPARISONS = frozenset("< > <= >= == != && ||".split())
_GENERATORS = re.compile(r"vec[234]|mat[234]x[234]|array|bitcast|ptr|atomic|subgroup\w*")
_STATEMENT_WORDS = frozenset(
    "if else for while loop switch case default return continuing break continue discard const_assert".split()
)
# Functions whose result has the type of their first argument.
_LIKE_FIRST = frozenset(
    "abs acos acosh asin asinh atan atan2 atanh ceil clamp cos cosh countLeadingZeros countOneBits countTrailingZeros "
    "cross degrees exp exp2 extractBits faceForward firstLeadingBit firstTrailingBit floor fma fract insertBits "
    "inverseSqrt ldexp log log2 max min mix normalize pow quantizeToF16 radians reflect refract reverseBits round "
    "saturate select sign sin sinh smoothstep sqrt step tan tanh trunc subgroupAdd subgroupMul subgroupMin subgroupMax "
    "subgroupAnd subgroupOr subgroupXor subgroupInclusiveAdd subgroupExclusiveAdd subgroupInclusiveMul "
    "subgroupExclusiveMul subgroupBroadcast subgroupBroadcastFirst subgroupShuffle subgroupShuffleXor "
    "subgroupShuffleUp subgroupShuffleDown quadBroadcast quadSwapX quadSwapY quadSwapDiagonal".split()
)
_RESULTS = {
    "unpack4x8snorm": "vec4<f32>", "unpack4x8unorm": "vec4<f32>", "unpack4xI8": "vec4<i32>",
    "unpack4xU8": "vec4<u32>", "unpack2x16snorm": "vec2<f32>", "unpack2x16unorm": "vec2<f32>",
    "unpack2x16float": "vec2<f32>", "subgroupBallot": "vec4<u32>",
}  # fmt: skip

Type = str | None
"""A resolved type, ``ptr<…,T>`` of a pointer to T; None where it is not known, or a number's."""


def bounded(kernel: Kernel) -> str:
    """The kernel's body with every index in range. ShaderCompileError where a type cannot be inferred."""
    module = kernel.module
    variables = {binding.name: binding.type for binding in kernel.variables}
    try:
        return bounded_module(module, variables)
    except (ShaderSyntaxError, UnknownTypeError) as error:
        raise ShaderCompileError(f"kernel {kernel.name}: {error}") from None


def bounded_module(module: Module, variables: Mapping[str, str]) -> str:
    """A module's text with every index in range. ``variables``: the types of what it uses and does not declare."""
    types = _ModuleTypes(module, variables)
    texts, before = [], ""
    for gap, declaration in zip(module.gaps, module.declarations):
        before += gap
        try:
            text = declaration.text if declaration.kind != "fn" else _Function(declaration, types).text()
        except ShaderSyntaxError as error:
            raise _in_module(module, before, error) from None
        texts += [gap, text]
        before += declaration.text
    return "".join([*texts, module.gaps[-1]])


def _in_module(module: Module, before: str, error: ShaderSyntaxError) -> ShaderSyntaxError:
    """An error in a declaration, which has a text ``before`` it, by its place in the module."""
    problem, line, column, _ = error.args
    first = before.count("\n")
    column += len(before) - before.rfind("\n") - 1 if line == 1 else 0
    return ShaderSyntaxError(problem, first + line, column, module.text.split("\n")[first + line - 1])


class _Argument(NamedTuple):
    """An argument of a call: its first token, the one after its last, its type."""

    first: int
    end: int
    type: Type


class _ModuleTypes:
    """The types of what is declared at module scope."""

    def __init__(self, module: Module, variables: Mapping[str, str]) -> None:
        self.names = module.by_name
        self._types: dict[str, Type] = {name: resolved(type_, self.names) for name, type_ in variables.items()}

    def resolved(self, type_: str) -> Type:
        try:
            return resolved(type_, self.names)
        except UnknownTypeError:
            return None

    def of(self, name: str) -> Type:
        if name not in self._types:
            self._types[name] = None  # of what is declared by itself, which does not compile
            declaration = self.names.get(name)
            if declaration is not None and declaration.kind in ("var", "const", "override"):
                self._types[name] = _Function(declaration, self).declared_type()
        return self._types[name]

    def pointee(self, type_: Type) -> Type:
        """What a pointer points to."""
        name, arguments = parts(type_) if type_ is not None else ("", ())
        return self.resolved(arguments[1]) if name == "ptr" and len(arguments) > 1 else None

    def dereferenced(self, type_: Type) -> Type:
        """A type, of a pointer that of what it points to."""
        return self.pointee(type_) if type_ is not None and parts(type_)[0] == "ptr" else type_

    def result(self, name: str) -> Type:
        """Of a function, or of a type's constructor."""
        declaration = self.names.get(name)
        if declaration is not None and declaration.kind == "fn" and declaration.signature is not None:
            return self.resolved(declaration.signature.result)
        return self.resolved(name) if declaration is not None else None

    def member(self, type_: str, name: str) -> Type:
        if length := vector_length(type_):
            element = parts(type_)[1]
            own = element[0] if element else "f32"
            return own if len(name) == 1 and length else f"vec{len(name)}<{own}>"
        declaration = self.names.get(type_)
        if declaration is None or declaration.kind != "struct":
            return None
        return next((self.resolved(m.type) for m in members(declaration, self.names) if m.name == name), None)


def _split(text: str) -> list[str]:
    """Tokens, and each operator by itself."""
    result: list[str] = []
    for token in tokens(text):
        result += _OPERATOR.findall(token) if is_operator(token) else [token]
    return result


class _Function:
    """One declaration, whose expressions are parsed in the order of their text; indices change as they are found."""

    def __init__(self, declaration: Declaration, types: _ModuleTypes) -> None:
        self._declaration, self._types = declaration, types
        self._tokens = _split(declaration.text)
        self._original = [*self._tokens]
        self._k = 0
        self._scopes: list[dict[str, Type]] = [{}]
        self._loops: list[int] = []  # the numbers of scopes in which a `for` began

    # Tokens

    def _skip(self) -> None:
        while self._k < len(self._tokens) and is_trivia(self._original[self._k]):
            self._k += 1

    def _peek(self) -> str:
        self._skip()
        return self._original[self._k] if self._k < len(self._original) else ""

    def _next(self) -> str:
        token = self._peek()
        self._k += 1
        return token

    def _wrong(self, k: int, problem: str) -> ShaderSyntaxError:
        return syntax_error(self._original, k, problem)

    def _template(self) -> tuple[str, ...]:
        """The arguments of a template list that begins here, if one does."""
        if self._peek() != "<":
            return ()
        start, depth = self._k, 0
        while self._k < len(self._original):
            token = self._original[self._k]
            if token[0] == ">" and len(token) > 1:  # `>>` ends two lists, `>=` one
                self._original[self._k : self._k + 1] = [">", token[1:]]
                self._tokens[self._k : self._k + 1] = [">", token[1:]]
                token = ">"
            depth += (token == "<") - (token == ">")
            self._k += 1
            if depth == 0:
                break
        return parts("_" + "".join([t for t in self._original[start : self._k] if not is_trivia(t)]))[1]

    # Declarations

    def text(self) -> str:
        signature = self._declaration.signature
        assert signature is not None
        self._scopes[0] = {p.name: self._types.resolved(p.type) for p in signature.parameters}
        body = self._original.index("(", self._original.index("fn"))
        depth = 0
        while True:  # to the end of the parameters, then to the body
            depth += (self._original[body] == "(") - (self._original[body] == ")")
            body += 1
            if depth == 0:
                break
        self._k = self._original.index("{", body)
        while self._peek():
            self._statement()
        return "".join(self._tokens)

    def declared_type(self) -> Type:
        """Of a variable or constant."""
        self._k = self._original.index(self._declaration.kind)
        return self._declared()[1]

    def _declared(self) -> tuple[str, Type]:
        """The name and the type of what is declared here."""
        self._next()
        self._template()
        name, type_ = self._next(), None
        if self._peek() == ":":
            self._next()
            type_ = self._types.resolved(self._next() + self._template_text())
        if self._peek() == "=":
            self._next()
            initial = self._expression()
            type_ = type_ or initial
        return name, type_

    def _template_text(self) -> str:
        arguments = self._template()
        return f"<{','.join(arguments)}>" if arguments else ""

    def _statement(self) -> None:
        token = self._peek()
        if token == "{":
            self._scopes.append({})
            self._next()
        elif token == "}":
            self._next()
            self._scopes.pop()
            if self._loops and self._loops[-1] == len(self._scopes):
                self._loops.pop()
                self._scopes.pop()
        elif token == "for":
            self._next()
            self._scopes.append({})
            self._loops.append(len(self._scopes))
            self._next()  # its bracket
        elif token in ("let", "var", "const"):
            name, type_ = self._declared()
            self._scopes[-1][name] = type_
        elif token in _STATEMENT_WORDS or token[0] == "@":
            self._next()
            if token[0] == "@" and self._peek() == "(":
                self._brackets(lambda: None)
        elif self._begins_expression(token):
            self._expression()
        else:
            self._next()

    @staticmethod
    def _begins_expression(token: str) -> bool:
        return token in ("(", "-", "!", "~", "*", "&") or is_name(token) or is_number(token)

    # Expressions

    def _expression(self, least: int = 0) -> Type:
        left = self._unary()
        while True:
            operator = self._peek()
            precedence = _PRECEDENCE.get(operator, 0)
            if precedence <= least:
                return left
            self._next()
            left = _combined(operator, left, self._expression(precedence))

    def _unary(self) -> Type:
        token = self._peek()
        if token in ("-", "!", "~"):
            self._next()
            return self._unary()
        if token in ("&", "*", "&&", "--"):
            self._next()
            if token == "--":
                return self._unary()
            type_ = self._unary()
            if token == "*":
                return self._types.pointee(type_)
            return None if type_ is None else f"ptr<_,{type_}>"
        start = self._k
        return self._postfix(start, self._primary())

    def _primary(self) -> Type:
        token = self._next()
        if token == "(":
            type_ = self._expression()
            self._expect(")")
            return type_
        if not is_name(token):
            return None
        arguments = self._template() if _GENERATORS.fullmatch(token) else ()
        if self._peek() == "(":
            return self._call(token, arguments)
        for scope in reversed(self._scopes):
            if token in scope:
                return scope[token]
        return self._types.of(token)

    def _call(self, name: str, template: tuple[str, ...]) -> Type:
        arguments: list[_Argument] = []
        self._brackets(lambda: arguments.append(self._argument()))
        given = [argument.type for argument in arguments]
        if name in ("subgroupMatrixLoad", "subgroupMatrixStore"):
            return self._bound_matrix(name, template, arguments)
        if name.startswith("subgroupMatrixMultiply"):
            return given[-1] if len(given) == len(("left", "right", "sums")) else None
        if template:
            return self._types.resolved(template[0] if name == "bitcast" else f"{name}<{','.join(template)}>")
        if name in self._types.names:
            return self._types.result(name)
        if name in _RESULTS:
            return _RESULTS[name]
        if name in _LIKE_FIRST:
            return given[0] if given else None
        if name == "workgroupUniformLoad":
            return self._types.pointee(given[0]) if given else None
        if name == "transpose" and given and given[0]:
            columns, rows = matrix_shape(given[0])
            return f"mat{rows}x{columns}<{parts(given[0])[1][0]}>" if columns else None
        short = self._types.resolved(name)
        if short is not None and (vector_length(short) or matrix_shape(short)[0]):
            return short if "<" in short else f"{short}<f32>"
        if name == "array" and given:
            return f"array<{given[0] or 'f32'},{len(given)}>"
        return None

    def _bound_matrix(self, name: str, template: Sequence[str], given: Sequence[_Argument]) -> Type:
        """Keeps a subgroup's matrix within the array that it is loaded from or stored to: the type of the matrix.

        Lines of ``width`` elements lie ``stride`` apart. First the stride is brought into its range, then where the
        first line starts.
        """
        is_load = name == "subgroupMatrixLoad"
        k = given[0].first if given else self._k - 1
        if len(given) != (3 if is_load else 4) or len(template) != (2 if is_load else 1):
            raise self._wrong(k, f"{name} takes other arguments")
        matrix = self._types.resolved(template[0]) if is_load else given[2].type
        shape = parts(matrix)[1] if matrix else ()
        pointee = self._types.pointee(given[0].type)
        kind, array = parts(pointee) if pointee else ("", ())
        if (
            not matrix
            or len(shape) != len(("scalar", "columns", "rows"))
            or kind != "array"
            or len(array) != len(("element", "length"))
        ):
            raise self._wrong(
                k, f"{name} is bounded for matrices of a known type, and arrays in workgroup memory: &tile"
            )
        names = self._types.names
        columns, rows = constant(shape[1], names), constant(shape[2], names)
        lines, width = (rows, columns) if template[-1] == "row_major" else (columns, rows)
        total = constant(array[1], names) * layout(array[0], names).size // layout(shape[0], names).size
        if total < lines * width:
            raise self._wrong(k, f"{pointee} is smaller than a {matrix}")
        start, stride = given[1], given[-1]
        stride_text = f"min(u32({self._text(stride)}), {(total - width) // max(lines - 1, 1)}u)"
        start_text = f"min(u32({self._text(start)}), {total - width}u - {lines - 1}u * {stride_text})"
        for argument, text in ((start, start_text), (stride, stride_text)):
            self._tokens[argument.first : argument.end] = [text, *[""] * (argument.end - argument.first - 1)]
        return matrix if is_load else None

    def _text(self, argument: _Argument) -> str:
        return "".join(self._tokens[argument.first : argument.end])

    def _argument(self) -> _Argument:
        self._skip()
        first = self._k
        type_ = self._expression()
        return _Argument(first, self._k, type_)

    def _brackets(self, item: Callable[[], object]) -> None:
        """What stands between round brackets, with commas between the items."""
        self._expect("(")
        while self._peek() not in (")", ""):
            before = self._k
            item()
            if self._k == before:
                self._next()
            if self._peek() == ",":
                self._next()
        self._expect(")")

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise self._wrong(min(self._k - 1, len(self._original) - 1), f"{token!r} was expected here")

    def _postfix(self, start: int, type_: Type) -> Type:
        while True:
            token = self._peek()
            if token == "[":
                type_ = self._indexed(start, type_)
            elif token[:1] == ".":
                self._next()
                base = self._types.dereferenced(type_)
                type_ = None if base is None else self._types.member(base, last_name(token))
            else:
                return type_

    def _indexed(self, start: int, type_: Type) -> Type:
        """The type of an element; brings the index that stands here into range."""
        self._peek()
        opened = self._k
        base_text = "".join(self._tokens[start:opened]).strip()
        self._next()
        self._peek()
        first = self._k
        self._expression()
        self._expect("]")
        closed = self._k - 1
        base = self._types.dereferenced(type_)
        if base is None:
            raise self._wrong(
                opened,
                f"the type of {base_text} cannot be inferred, so that its index cannot be kept in range. Write the "
                "type where it is declared (let row: vec4<f32> = …)",
            )
        index = [token for token in self._original[first:closed] if not is_trivia(token)]
        is_literal = len(index) == 1 and is_integer(index[0])
        element, last = self._range_of(base)
        if last is None:
            last = f"arrayLength({base_text if base != type_ else '&' + base_text}) - 1u"
            is_literal = False
        if not is_literal:
            self._tokens[opened] = "[min(u32("
            self._tokens[closed] = f"), {last})]"
        return element

    def _range_of(self, type_: str) -> tuple[Type, str | None]:
        """The type of an element, and WGSL for the last index; None where the buffer decides that."""
        name, arguments = parts(type_)
        if length := vector_length(type_):
            return (arguments[0] if arguments else None), f"{length - 1}u"
        columns, rows = matrix_shape(type_)
        if columns:
            return f"vec{rows}<{arguments[0] if arguments else 'f32'}>", f"{columns - 1}u"
        if is_runtime_array(type_):
            return self._types.resolved(arguments[0]), None
        if name == "array" and len(arguments) == 2:
            return self._types.resolved(arguments[0]), f"(u32({arguments[1]}) - 1u)"
        raise self._wrong(self._k - 1, f"a {type_} has no elements")


def _combined(operator: str, left: Type, right: Type) -> Type:
    """The type of an operation's result, as far as it can be indexed."""
    shapes = [matrix_shape(t)[0] if t else 0 for t in (left, right)]
    lengths = [vector_length(t) if t else 0 for t in (left, right)]
    if operator in _COMPARISONS:
        length = max(lengths)
        return f"vec{length}<bool>" if length else None
    if operator in ("<<", ">>") or left == right:
        return left
    if operator == "*" and any(shapes) and left and right:
        return _product(left, right)
    # A number and a vector or a matrix, or two vectors of which one has an element type that is still open.
    wide = [t for t, shape, length in zip((left, right), shapes, lengths) if shape or length]
    return wide[0] if wide and (len(wide) == 1 or lengths[0] == lengths[1]) else None


def _product(left: str, right: str) -> Type:
    (left_columns, left_rows), (right_columns, _) = matrix_shape(left), matrix_shape(right)
    element = (parts(left)[1] or ("f32",))[0]
    if left_columns and right_columns:
        return f"mat{right_columns}x{left_rows}<{element}>"
    if left_columns:
        return f"vec{left_rows}<{element}>" if vector_length(right) else left
    return f"vec{right_columns}<{element}>" if vector_length(left) else right
