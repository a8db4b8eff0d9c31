"""The lexer: WGSL text as tokens, which joined are the text again.

Blanks and comments are tokens like all others. A member (``.xyz``) and an attribute (``@builtin``) are one token each:
their names are never those of declarations. Operators that touch are one token: whether ``>>`` is a shift or ends two
template lists is only known to who knows what stands before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch_webgpu.errors import ShaderSyntaxError

_BREAKS = "\n\v\f\r\x85\u2028\u2029"
_BLANKS = f" \t\u200e\u200f{_BREAKS}"
_NAME = r"[^\W\d]\w*"
# What may stand between `.` or `@` and its name.
_GAP = rf"(?:[{_BLANKS}]|//[^{_BREAKS}]*[{_BREAKS}]|/\*(?:(?!/\*|\*/).)*\*/)*"
_HEXADECIMAL = r"0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][-+]?[0-9]+)?"
_DECIMAL = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_SUFFIX = "(?:l[iuf]|[iufh])?"  # naga's 64-bit types have two letters
_OPERATORS = "[-+*%<>=!&|^~]"
_LINE_COMMENT = rf"//[^{_BREAKS}]*"
# Alternatives are tried one after another: what is frequent comes first, in its simplest form.
_FREQUENT = rf"[A-Za-z_]\w*|[()\[\]{{}},;:]|[.@][A-Za-z_]\w*|[0-9]+[iu]?(?![.\w])|{_OPERATORS}+"
_SELDOM = rf"/{_OPERATORS}*|(?:{_HEXADECIMAL}|{_DECIMAL}){_SUFFIX}|{_NAME}|[.@]{_GAP}{_NAME}|."
_TOKEN = re.compile(rf"[ \n\t]+|{_FREQUENT}|{_LINE_COMMENT}|/\*|[{_BLANKS}]+|{_SELDOM}", re.DOTALL)
# The end of the text is a token, too, so that what was skipped before it is never tried again, as something else.
_SIGNIFICANT = re.compile(rf"[{_BLANKS}]*(?:{_LINE_COMMENT}[{_BLANKS}]*)*({_FREQUENT}|{_SELDOM}|\Z)", re.DOTALL)
_COMMENT_END = re.compile(r"/\*|\*/")
_LAST_NAME = re.compile(r"\w+\Z")
_LINE_END = re.compile(rf"\r\n|[{_BREAKS}]")
_OPERATOR_CHARACTERS = frozenset("-+*/%<>=!&|^~")
_CHARACTERS = _OPERATOR_CHARACTERS | frozenset("()[]{},;:0123456789") | frozenset(_BLANKS)


def tokens(text: str) -> list[str]:
    """The tokens of ``text``. Raises ShaderSyntaxError for a character that begins none."""
    result = list(_scan(text)) if "/*" in text else _TOKEN.findall(text)
    return _known(result)


def significant_tokens(text: str) -> list[str]:
    """The tokens of ``text`` but for blanks and comments: half as many. Raises ShaderSyntaxError without a position."""
    if "/*" in text:
        return [token for token in tokens(text) if not is_trivia(token)]
    result = _SIGNIFICANT.findall(text)
    while result and not result[-1]:
        result.pop()
    return _known(result)


def _known(sequence: list[str]) -> list[str]:
    singles = {token for token in set(sequence) if len(token) == 1} - _CHARACTERS
    if unknown := [token for token in singles if not token.isidentifier()]:
        raise syntax_error(sequence, min(map(sequence.index, unknown)), "no token of WGSL begins here")
    return sequence


def _scan(text: str) -> Iterator[str]:
    """The tokens of a text whose comments may be nested."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None
        end = _comment_end(text, at) if match[0] == "/*" else match.end()
        yield text[at:end]
        at = end


def _comment_end(text: str, start: int) -> int:
    depth = 0
    for match in _COMMENT_END.finditer(text, start):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    raise syntax_error([text[:start], text[start:]], 1, "this comment does not end")


def syntax_error(sequence: Sequence[str], k: int, problem: str) -> ShaderSyntaxError:
    """``problem`` is at token ``k``."""
    text, offset = "".join(sequence), sum(map(len, sequence[:k]))
    starts = [0, *[match.end() for match in _LINE_END.finditer(text)]]
    line = max(n for n, start in enumerate(starts) if start <= offset)
    return ShaderSyntaxError(problem, line + 1, offset - starts[line] + 1, _LINE_END.split(text)[line])


def is_name(token: str) -> bool:
    """Whether it is an identifier or a keyword; members and attributes are not."""
    return token.isidentifier()


def is_comment(token: str) -> bool:
    return token[:2] in ("//", "/*")


def is_trivia(token: str) -> bool:
    """Whether it is a comment or blank."""
    return token[0] in _BLANKS or token[:2] in ("//", "/*")


def is_operator(token: str) -> bool:
    """Whether it is one or several operators; the brackets of a template list count as such."""
    return token[0] in _OPERATOR_CHARACTERS and not is_comment(token)


def is_number(token: str) -> bool:
    return token[0].isdecimal() or (token[0] == "." and token[1:2].isdecimal())


def is_integer(token: str) -> bool:
    """Whether it is a literal of an integer type."""
    digits = token.rstrip("iul")
    return digits.isdecimal() or (digits[:2] in ("0x", "0X") and not any(mark in digits for mark in ".pP"))


def last_name(token: str) -> str:
    """The name in a token: an identifier's own, a member's, an attribute's; empty where there is none."""
    if token[0] not in ".@":
        return token if token.isidentifier() else ""
    match = _LAST_NAME.search(token)
    return "" if match is None else match[0]


def next_index(sequence: Sequence[str], k: int) -> int:
    """The first index, ``k`` or a later one, of a token that is neither blank nor a comment; the length without one."""
    while k < len(sequence) and is_trivia(sequence[k]):
        k += 1
    return k


def without_comments(text: str) -> str:
    """``text`` without comments and the blanks before them. A line stays where a comment was all that it had."""
    if "//" not in text and "/*" not in text:
        return text
    result = [""]
    for token in tokens(text):
        if token.startswith("//"):
            result[-1] = result[-1].rstrip(" \t")
        elif token.startswith("/*"):
            result.append("" if is_trivia(result[-1] or " ") else " ")
        elif token[0] in ".@":
            result.append(token[0] + last_name(token))
        else:
            result.append(token)
    return "".join(result)
