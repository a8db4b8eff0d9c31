"""How much code a compiler makes of expressions: operators and calls, library functions counted where they are called.

GPU compilers, Mesa's among them, inline every function, so a kernel's code is not what its source looks like: one
``lgamma`` is a thousand times an addition. What they need for it grows faster than the code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr, WgslFunction, walk
from torch_webgpu.ir.ops import TABLE

from .expr import convert
from .link import library_function
from .module import Module
from .tokens import is_name, is_number, is_operator, next_index, tokens

MAX_CODE = 8192
"""The most that one kernel should have: Mesa's software adapter compiles it in a second or two."""
MAX_UNROLLED = MAX_CODE // 2
"""The most that several points side by side should have, which take compilers longer. With more, threads compute their
points one after another: memory is not what such a kernel waits for."""

_KEYWORDS = frozenset({"if", "else", "while", "for", "switch", "return"})


def code_size(roots: Sequence[Expr]) -> int:
    """The operators and calls that compute ``roots`` at one point."""
    size = 0
    for e in walk(roots):
        if e.op == "call":
            size += _call_size(e.args[0])
        else:
            size += _own_size(e.op, e.dtype, tuple([a.dtype for a in e.args if isinstance(a, Expr)]))
    return size


def _call_size(function: WgslFunction) -> int:
    """The code of a call of a program's own function."""
    own = Module.parse(function.text).by_name

    def size(name: str) -> int:
        return _text_size(own[name].body or "", size) if name in own else _function_size(name)

    return size(function.name)


@cache
def _own_size(op: str, dtype: str, operands: tuple[str, ...]) -> int:
    if op == "to_dtype":
        return _text_size(convert("x", operands[0], dtype))
    row = TABLE.get(op)
    return 1 if row is None else _text_size(row.wgsl[BY_NAME[operands[0]].kind])


def _text_size(text: str, function_size: Callable[[str], int] | None = None) -> int:
    sequence = tokens(text)
    before_call = [
        k for k, t in enumerate(sequence[:-1]) if is_name(t) and sequence[next_index(sequence, k + 1)] == "("
    ]
    calls = [sequence[k] for k in before_call if sequence[k] not in _KEYWORDS]
    # The limits above were measured with the sign of a literal's exponent as an operator.
    signed = [token for token in sequence if is_number(token) and ("-" in token or "+" in token)]
    return sum(map(is_operator, sequence)) + len(signed) + sum(map(function_size or _function_size, calls))


@cache
def _function_size(name: str) -> int:
    """The code of a call: 1 for what WGSL has built in."""
    body = library_function(name)
    return 1 if body is None else _text_size(body)
