"""WGSL expressions: what is read, and what is said of what cannot be read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torch_webgpu.errors import ShaderCompileError
from torch_webgpu.extend.backward import example
from torch_webgpu.extend.elementwise import Elementwise, Trees
from torch_webgpu.extend.signature import Signature, SignatureError, signature_of
from torch_webgpu.extend.syntax import ExpressionError, parse

NAMES = ("x", "y", "n", "alpha")


def arguments(x: Tensor, y: Tensor, n: Tensor, alpha: float) -> None:
    """The arguments of all expressions here: n is an integer."""


SIGNATURE: Signature = signature_of("test", arguments)


def value(text: str, x: float = 1.25, y: float = -0.5, n: int = 5, alpha: float = 3.0) -> float | int | bool:
    """What an expression computes by PyTorch's operators."""
    operator = Elementwise("test", SIGNATURE, Trees((parse(text, NAMES),)), 1)
    return operator.composed(torch.tensor([x]), torch.tensor([y]), torch.tensor([n]), alpha).item()


# Every value is WGSL's, https://www.w3.org/TR/WGSL/, worked out by hand.
VALUES = {
    "1 + 2 * 3": 7, "(1 + 2) * 3": 9, "7 / 2": 3, "7.0 / 2": 3.5, "-7 / 2": -3, "-7 % 3": -1, "n / 2": 2, "-n % 3": -2,
    "0x1F": 31, "0x1.8p1": 3.0, "1e2": 100.0, ".5 + 1.": 1.5, "2f * 3h": 6.0, "3u + 4i": 7, "- -x": 1.25,
    "x*-y": 0.625, "x - y - 1.0": 0.75, "8 / 2 / 2": 2, "n << 2u": 20, "n >> 1u": 2, "n & 4": 4, "n | 2": 7,
    "n ^ 1": 4, "~n": -6, "x > y": True, "!(x > y)": False, "(x > y) && (n == 5)": True, "x > y && n != 5": False,
    "x < y || n >= 5": True, "true": True, "select(x, y, n > 4)": -0.5, "select(1, 2, false)": 1,
    "clamp(x, 0.0, 1.0)": 1.0, "saturate(y)": 0.0, "min(x, y)": -0.5, "max(x, 2.0)": 2.0, "abs(y)": 0.5,
    "sign(y)": -1.0, "fract(x)": 0.25, "floor(y)": -1.0, "ceil(x)": 2.0, "trunc(x)": 1.0, "round(2.5 * alpha)": 8.0,
    "fma(x, alpha, y)": 3.25, "mix(x, y, 0.5)": 0.375, "step(x, y)": 0.0, "step(y, x)": 1.0, "pow(2.0, alpha)": 8.0,
    "smoothstep(0.0, 2.0, 1.0)": 0.5, "inverseSqrt(4.0 * alpha / 3.0)": 0.5, "sqrt(6.25)": 2.5, "exp2(3.0)": 8.0,
    "ldexp(x, 2)": 5.0, "degrees(0.0)": 0.0, "i32(x)": 1, "i32(y)": 0, "f32(n) / 2": 2.5, "bool(n)": True,
    "u32(n) + 1": 6, "let t = x * 2.0; t * t": 6.25, "let a = n; let b = a + 1; a * b": 30, "x + /* one */ 1.0": 2.25,
    "x // twice\n * 2.0": 2.5, "alpha": 3.0, "n * alpha": 15.0, "atan2(0.0, x)": 0.0, "log2(8.0)": 3.0,
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_an_expression_means_what_wgsl_says(text: str) -> None:
    result = value(text)
    assert result == pytest.approx(VALUES[text])
    assert isinstance(result, bool) == isinstance(VALUES[text], bool)
    assert isinstance(result, float) == isinstance(VALUES[text], float)


# What is wrong, the line and column of it, and a part of what is said.
WRONG = {
    "x +": (1, 4, "found the end of the expression"),
    "": (1, 1, "expected a number, a name or '('"),
    "x + z": (1, 5, "there is no 'z': the names here are x, y, n, alpha"),
    "x\n + alpa": (2, 4, "did you mean 'alpha'?"),
    "exq(x)": (1, 1, "there is no function 'exq' (did you mean 'exp'?)"),
    "rsqrt(x)": (1, 1, "write inverseSqrt"),
    "x ? y : 1.0": (1, 3, "select(if_false, if_true, condition)"),
    "x ** 2": (1, 3, "pow(x, y)"),
    "x and y": (1, 3, "write &&"),
    "x if y else n": (1, 3, "is Python's"),
    "x // y": (1, 3, "begins a comment"),
    "x @ y": (1, 3, "torch.matmul"),
    "x, y": (1, 2, "a tuple of strings"),
    "(x + y": (1, 1, "is never closed"),
    "x + y)": (1, 6, "expected the end"),
    "f32(x": (1, 4, "is never closed"),
    "clamp(x, 1.0)": (1, 1, "clamp takes 3 operands, not 2"),
    "exp(x, y)": (1, 1, "exp takes 1 operand, not 2"),
    "x < y < 1.0": (1, 7, "do not chain"),
    "x < y && y < x || x < y": (1, 16, "wants parentheses"),
    "n & 1 | 2": (1, 7, "wants parentheses"),
    "n + 1 & 2": (1, 7, "wants parentheses"),
    "n << 1 << 2": (1, 8, "wants parentheses"),
    "x--y": (1, 2, "found '--'"),
    "--x": (1, 1, "put a blank"),
    "x.xy": (1, 2, "no members"),
    "x[0]": (1, 2, "cannot index"),
    "x = y": (1, 3, "assigns nothing"),
    "x $ y": (1, 3, "no token of WGSL"),
    "x /* y": (1, 3, "does not end"),
    "let x = y; x": (1, 5, "is the name of an argument"),
    "let t = x": (1, 10, "expected ';'"),
    "let t: f32 = x; t": (1, 6, "expected '='"),
    "let t = t; t": (1, 9, "there is no 't'"),
    "true + x": (1, 1, "of a bool"),
    "select(x, y, x)": (1, 14, "select takes a bool here, not float32: compare it"),
    "!x": (1, 2, "! takes a bool"),
    "x && y": (1, 1, "&& takes a bool"),
    "x & 1": (1, 1, "& takes an integer here, not float32: write i32(…)"),
    "n << x": (1, 6, "<< takes an integer"),
    "~x": (1, 2, "takes an integer"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said_with_its_place(text: str) -> None:
    line, column, part = WRONG[text]
    with pytest.raises(ExpressionError) as caught:
        value(text)
    error = caught.value
    assert isinstance(error, ShaderCompileError)
    assert isinstance(error, ValueError)
    assert part in str(error)
    assert (error.line, error.column) == (line, column)
    *_, source, caret = str(error).split("\n")
    assert source == "  " + (text.split("\n")[line - 1])
    assert caret == "  " + " " * (column - 1) + "^"


def test_arguments_are_what_annotations_say() -> None:
    def f(x: Tensor, n: int = 2, *, eps: float = 1, flag: bool = False) -> Tensor: ...

    signature = signature_of("f", f)
    assert signature.schema(1) == "(Tensor x, int n=2, *, float eps=1.0, bool flag=False) -> Tensor"
    assert signature.schema(2).endswith("-> (Tensor, Tensor)")
    assert signature.bind((1,), {"flag": True}) == [1, 2, 1.0, True]
    assert len(example(signature, {})) == 4


def no_annotation(x):  # type: ignore[no-untyped-def]
    ...


def of_string(x: Tensor, mode: str) -> None: ...


def of_many(*x: Tensor) -> None: ...


def of_no_tensor(alpha: float) -> None: ...


def of_keyword(*, x: Tensor) -> None: ...


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (no_annotation, "x has no annotation"),
        (of_string, "mode has the annotation str"),
        (of_many, "an operator has no \\*x"),
        (of_no_tensor, "no parameter is a Tensor"),
        (of_keyword, "x is a tensor, which cannot be a keyword"),
    ],
)
def test_a_function_that_cannot_be_an_operator(function: object, part: str) -> None:
    with pytest.raises(SignatureError, match=part):
        signature_of("f", function)  # type: ignore[arg-type]
