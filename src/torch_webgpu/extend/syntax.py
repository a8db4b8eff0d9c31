"""The syntax of operators' WGSL expressions: a recursive-descent parser, and the tree that it makes.

The grammar is WGSL's for expressions of scalars (https://www.w3.org/TR/WGSL/#expression-grammar), so that what is
accepted here is what WGSL accepts: ``a < b < c`` or ``a && b || c`` need parentheses there, and here. Before the
expression there may be ``let name = …;``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from torch_webgpu.errors import ShaderSyntaxError, did_you_mean
from torch_webgpu.wgsl.tokens import (
    is_integer,
    is_name,
    is_number,
    is_operator,
    is_trivia,
    syntax_error,
    tokens,
)

OPERATORS = ("&&", "||", "==", "!=", "<=", ">=", "<<", ">>", "--", "++", *"+-*/%<>=!&|^~")
RELATIONAL = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
ADDITIVE = {"+": "add", "-": "sub"}
MULTIPLICATIVE = {"*": "mul", "/": "div", "%": "rem"}
SHIFTS = {"<<": "shl", ">>": "shr"}
BITWISE = {"&": "and", "|": "or", "^": "xor"}
LOGICAL = {"&&": "logical_and", "||": "logical_or"}
UNARY = {"-": "neg", "!": "not", "~": "complement"}
BINARY = ADDITIVE | MULTIPLICATIVE | SHIFTS | BITWISE | LOGICAL | RELATIONAL
RESERVED = frozenset("let var const fn return if else for while loop true false".split())


MEANT = {
    "?": "WGSL has no ?: operator: write select(if_false, if_true, condition)",
    "@": "an expression computes elements: @ of matrices is torch.matmul's",
    ",": "an expression has one value: return a tuple of strings for several outputs",
    "=": "an expression assigns nothing: == compares, and `let name = …;` comes first",
    "[": "arguments are single elements: an expression cannot index them",
    ".": "arguments are single numbers, which have no members",
}
"""What other languages mean by what WGSL's expressions have not, by its first character."""


class ExpressionError(ShaderSyntaxError, ValueError):
    """A WGSL expression that cannot be read, or means nothing: line, column, and a caret below them."""


@dataclass(frozen=True)
class Place:
    """Where something stands in the text of an expression: the text, and the first character's number."""

    text: str
    offset: int

    def error(self, problem: str) -> ExpressionError:
        found = syntax_error([self.text[: self.offset], self.text[self.offset :]], 1, problem)
        return ExpressionError(*found.args)


@dataclass(frozen=True)
class Literal:
    value: float | int | bool
    place: Place


@dataclass(frozen=True)
class Name:
    name: str
    place: Place


@dataclass(frozen=True)
class Call:
    """An operator, named as in ``BINARY`` and ``UNARY``, or a function, with its operands."""

    function: str
    operands: tuple[Tree, ...]
    place: Place
    is_operator: bool = False


@dataclass(frozen=True)
class Let:
    """``value`` under a name for the tree that follows."""

    name: str
    value: Tree
    rest: Tree
    place: Place


Tree = Literal | Name | Call | Let


@dataclass(frozen=True)
class Token:
    text: str
    place: Place


def significant(text: str) -> list[Token]:
    """The tokens but for blanks and comments, operators that touch apart."""
    try:
        sequence = tokens(text)
    except ShaderSyntaxError as error:
        problem, line, column, source = error.args
        raise ExpressionError(MEANT.get(source[column - 1 : column], problem), line, column, source) from None
    if sequence and sequence[-1].startswith("//"):
        raise Place(text, len(text) - len(sequence[-1])).error(
            "// begins a comment, which has no end here. Integers are divided by /, other numbers by floor(x / y)"
        )
    result, offset = [], 0
    for token in sequence:
        if not is_trivia(token):
            parts = split_operators(token) if is_operator(token) else [token]
            at = offset
            for part in parts:
                result.append(Token(part, Place(text, at)))
                at += len(part)
        offset += len(token)
    return result


def split_operators(text: str) -> list[str]:
    """The longest operators that a run of them begins with, as WGSL reads it."""
    parts = []
    while text:
        part = next(operator for operator in OPERATORS if text.startswith(operator))
        parts.append(part)
        text = text[len(part) :]
    return parts


def parse(text: str, names: Sequence[str]) -> Tree:
    """The tree of an expression over these names. ExpressionError for what is none."""
    parser = Parser(text, names)
    tree = parser.body()
    if parser.here.text:
        parser.refuse_rest()
    return tree


class Parser:
    """The state of one parse: the tokens, the next one's number, and the names that are known."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text = text
        self.names = list(names)
        self.tokens = [*significant(text), Token("", Place(text, len(text.rstrip())))]
        self.at = 0
        self.unclosed: list[Token] = []

    @property
    def here(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.here
        self.at += 1
        return token

    def error(self, problem: str) -> ExpressionError:
        return self.here.place.error(problem)

    def expect(self, text: str, where: str) -> Token:
        if self.here.text != text:
            raise self.error(f"expected {text!r} {where}, found {self.shown()}")
        return self.take()

    def shown(self) -> str:
        return repr(self.here.text) if self.here.text else "the end of the expression"

    def refuse_rest(self) -> NoReturn:
        """Says what may be meant by what follows a whole expression."""
        token = self.here.text
        if token in ("and", "or", "if", "else", "not"):
            meant = {"and": "&&", "or": "||", "not": "!"}.get(token, "select(if_false, if_true, condition)")
            raise self.error(f"{token!r} is Python's: in WGSL write {meant}")
        if token[0] in MEANT and token != "==":
            raise self.error(MEANT[token[0]])
        if token in BINARY:
            raise self.error(f"WGSL wants parentheses where {token!r} meets what stands before it")
        raise self.error(f"expected the end of the expression, found {token!r}")

    def body(self) -> Tree:
        """``let`` statements, then an expression, which may end with a semicolon."""
        if self.here.text != "let":
            tree = self.expression()
            if self.here.text == ";" and not self.tokens[self.at + 1].text:
                self.take()
            return tree
        self.take()
        name = self.take()
        if not is_name(name.text) or name.text in RESERVED:
            raise name.place.error(f"expected a name after let, found {name.text!r}")
        if name.text in self.names:
            raise name.place.error(f"{name.text!r} is the name of an argument already")
        self.expect("=", f"after let {name.text}")
        value = self.expression()
        self.expect(";", f"after the value of {name.text}")
        self.names.append(name.text)
        return Let(name.text, value, self.body(), name.place)

    def expression(self) -> Tree:
        start = self.at
        left = self.relational()
        token = self.here.text
        if token in LOGICAL:
            return self.chain(left, token, self.relational)
        if token in BITWISE:
            if not self.is_unary(start):
                raise self.error(f"WGSL wants parentheses where {token!r} meets what stands before it")
            return self.chain(left, token, self.unary)
        return left

    def is_unary(self, start: int) -> bool:
        """Whether what was read from token ``start`` on is one unary expression."""
        end, self.at = self.at, start
        self.unary()
        same, self.at = self.at == end, end
        return same

    def chain(self, left: Tree, operator: str, operand: Callable[[], Tree]) -> Tree:
        """Operands of one and the same operator."""
        while self.here.text == operator:
            token = self.take()
            left = Call(BINARY[operator], (left, operand()), token.place, is_operator=True)
        return left

    def relational(self) -> Tree:
        left = self.shift()
        if self.here.text not in RELATIONAL:
            return left
        token = self.take()
        result = Call(RELATIONAL[token.text], (left, self.shift()), token.place, is_operator=True)
        if self.here.text in RELATIONAL:
            raise self.error("comparisons do not chain in WGSL: write (a < b) && (b < c)")
        return result

    def shift(self) -> Tree:
        start = self.at
        left = self.additive()
        if self.here.text not in SHIFTS:
            return left
        if not self.is_unary(start):
            raise self.error(f"WGSL wants parentheses where {self.here.text!r} meets what stands before it")
        token = self.take()
        return Call(SHIFTS[token.text], (left, self.unary()), token.place, is_operator=True)

    def additive(self) -> Tree:
        return self.left_to_right(ADDITIVE, self.multiplicative)

    def multiplicative(self) -> Tree:
        return self.left_to_right(MULTIPLICATIVE, self.unary)

    def left_to_right(self, operators: dict[str, str], operand: Callable[[], Tree]) -> Tree:
        left = operand()
        while self.here.text in operators:
            token = self.take()
            if token.text == "*" and self.here.text == "*":
                raise token.place.error("WGSL has no ** operator: write pow(x, y)")
            left = Call(operators[token.text], (left, operand()), token.place, is_operator=True)
        return left

    def unary(self) -> Tree:
        if self.here.text in ("--", "++"):
            raise self.error(
                f"WGSL has no operator {self.here.text!r} in expressions: put a blank or parentheses between"
            )
        if self.here.text in UNARY:
            token = self.take()
            return Call(UNARY[token.text], (self.unary(),), token.place, is_operator=True)
        return self.primary()

    def primary(self) -> Tree:
        token = self.here
        if token.text == "(":
            self.take()
            tree = self.expression()
            if self.here.text != ")":
                self.refuse_in_brackets(token)
            self.take()
            return tree
        if is_number(token.text or " "):
            self.take()
            return Literal(number_of(token), token.place)
        if token.text in ("true", "false"):
            self.take()
            return Literal(token.text == "true", token.place)
        if is_name(token.text):
            self.take()
            return self.call(token) if self.here.text == "(" else self.variable(token)
        raise self.error(f"expected a number, a name or '(', found {self.shown()}")

    def refuse_in_brackets(self, opening: Token) -> NoReturn:
        if not self.here.text:
            raise opening.place.error("this '(' is never closed")
        if self.here.text == ",":
            raise self.error("a tuple is no number: expected ')'")
        self.refuse_rest()

    def variable(self, token: Token) -> Tree:
        name = token.text
        if name not in self.names:
            raise token.place.error(
                f"there is no {name!r}{did_you_mean(name, self.names)}: the names here are {', '.join(self.names)}"
            )
        return Name(name, token.place)

    def call(self, function: Token) -> Tree:
        opening, operands = self.take(), []
        while self.here.text != ")":
            operands.append(self.expression())
            if self.here.text == ",":
                self.take()
            elif self.here.text != ")":
                self.refuse_in_brackets(opening)
        self.take()
        return Call(function.text, tuple(operands), function.place)


def number_of(token: Token) -> float | int:
    """The value of a literal. Its suffix says whether it is an integer, and no more: its dtype is its neighbours'."""
    text = token.text
    digits = text.lower()
    is_hexadecimal = digits.startswith("0x")
    if (is_integer(text) and not digits.endswith(("f", "h"))) or (is_hexadecimal and is_integer(text)):
        return int(digits.rstrip("iul"), 16 if is_hexadecimal else 10)
    if is_hexadecimal:
        return float.fromhex(digits.rstrip("fh") if "p" in digits else digits)
    try:
        return float(digits.rstrip("lfh"))
    except ValueError:
        raise token.place.error(f"{text!r} is no number of WGSL") from None


def names_in(tree: Tree) -> list[str]:
    """The arguments that a tree mentions, in the order in which it does."""
    found: dict[str, None] = {}

    def visit(tree: Tree, own: frozenset[str]) -> None:
        if isinstance(tree, Name) and tree.name not in own:
            found[tree.name] = None
        elif isinstance(tree, Call):
            for operand in tree.operands:
                visit(operand, own)
        elif isinstance(tree, Let):
            visit(tree.value, own)
            visit(tree.rest, own | {tree.name})

    visit(tree, frozenset())
    return list(found)
