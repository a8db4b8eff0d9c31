"""Derivatives of expressions: every rule against finite differences, and how long what they give is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_webgpu.extend.backward import derive, example
from torch_webgpu.extend.derivative import RULES
from torch_webgpu.extend.elementwise import Elementwise
from torch_webgpu.extend.op import described_by
from torch_webgpu.extend.signature import signature_of
from torch_webgpu.ir.expr import walk

Define = Callable[..., Any]

# Of x in (0.3, 0.9) and y in (1.1, 1.7).
TEXTS = [
    "x + y", "x - y", "x * y", "x / y", "-x", "abs(x - 0.5)", "y % x", "pow(x, y)", "pow(y, 3.5)", "pow(x, 2.0)",
    "fma(x, y, x)", "select(x, y * x, x > 0.5)", "max(x, 0.5)", "min(0.5, x)", "max(x, y - 0.8)", "clamp(x, 0.4, 0.6)",
    "sqrt(x)", "inverseSqrt(x)", "exp(x)", "exp2(x)", "expm1(x)", "log(x)", "log2(x)", "log10(x)", "log1p(x)", "sin(x)",
    "cos(x)", "tan(x)", "asin(x)", "acos(x)", "atan(x)", "sinh(x)", "cosh(x)", "tanh(x)", "asinh(x)", "acosh(y)",
    "atanh(x)", "sigmoid(x)", "erf(x)", "erfc(x)", "erfinv(x)", "lgamma(y)", "hypot(x, y)", "atan2(x, y)",
    "copysign(x, -y)", "ldexp(x, 3)", "fract(x)", "mix(x, y, x)", "smoothstep(0.2, 1.0, x)", "saturate(x)",
    "degrees(x) * radians(y)", "x / (1.0 + exp(-x)) * y", "let t = x * y; t * t + tanh(t)", "floor(x) + x",
    "x / max(sqrt(x * y), 0.1)", "tanh(x) * tanh(x)", "f32(x) * y", "1.0 / x",
]  # fmt: skip
ONCE = {"lgamma(y)"}
"""Whose second derivative is not known."""


def of_two(text: str) -> Callable[..., Any]:
    def fn(x: Tensor, y: Tensor) -> Any:
        return text

    return fn


def test_every_rule_agrees_with_finite_differences(define: Define) -> None:
    x = (torch.rand(5, dtype=torch.float64) * 0.6 + 0.3).requires_grad_()
    y = (torch.rand(5, dtype=torch.float64) * 0.6 + 1.1).requires_grad_()
    rows: set[str] = set()
    for text in TEXTS:
        fn = define("test::rule", replace=True)(of_two(text))
        rows |= {e.op for e in walk([e.expr for e in described(text).symbolic(example(SIGNATURE, {}))])}
        assert torch.autograd.gradcheck(fn, (x, y)), text
        if text not in ONCE:
            assert torch.autograd.gradgradcheck(fn, (x, y)), text
    assert set(RULES) <= rows | {"reciprocal", "remainder", "where"}  # these have no spelling in WGSL


SIGNATURE = signature_of("test", of_two(""))


def described(text: str) -> Elementwise:
    found = described_by("test::text", SIGNATURE, text)
    assert isinstance(found, Elementwise)
    return found


def test_a_derivative_that_is_not_known_is_said(define: Define) -> None:
    fn = define("test::bessel")(of_two("i0(x) * y"))
    x = torch.ones(3, requires_grad=True)
    result = fn(x, x)
    with pytest.raises(NotImplementedError, match=r"i0 has no derivative here. Pass backward="):
        result.sum().backward()
    with pytest.raises(NotImplementedError, match="no gradient flows"):
        define("test::floor")(of_two("floor(x)"))(x, x).sum().backward()


# Functions, and how many operations their gradients take: as many as in PyTorch's own formulas in
# tools/autograd/derivatives.yaml and aten/src/ATen/native, with the gradient's multiplication.
SIZES = {
    "tanh(x)": 3, "sigmoid(x)": 3, "exp(x)": 1, "x * x": 2, "sqrt(x)": 2, "log(x)": 1, "max(x, 0.0)": 2,
    "sin(x)": 2, "1.0 / x": 3, "x * y": 2, "x + y": 0, "-x": 1, "x / (1.0 + exp(-x))": 9,
}  # fmt: skip


@pytest.mark.parametrize("text", SIZES)
def test_a_derivative_is_no_longer_than_written_by_hand(text: str) -> None:
    backward = derive(described(text), "test::backward")
    assert backward is not None
    values = example(backward.operator.signature, {})
    roots = [e.expr for e in backward.operator.symbolic(values)]
    operations = [e for e in walk(roots) if e.op not in ("load", "const", "param")]
    assert len(operations) <= SIZES[text], operations


def test_what_is_kept_for_the_backward(define: Define) -> None:
    def kept(text: str) -> tuple[str, ...]:
        backward = derive(described(text), "test::backward")
        assert backward is not None
        return backward.operator.signature.names

    assert kept("tanh(x)") == ("grad", "result")
    assert kept("x + 2.0 * y") == ("grad",)
    assert kept("x * 2.0 + y * y") == ("grad", "y")
    assert kept("x * y") == ("grad", "x", "y")


def test_a_backward_is_written(define: Define, device: torch.device) -> None:
    x = torch.tensor([-2.0, -0.5, 0.5, 2.0])
    straight = define("test::straight", backward="grad * select(0.0, 1.0, abs(x) <= 1.0)")(
        lambda_of_one("select(-1.0, 1.0, x > 0.0)")
    )
    scaled = define("test::scaled", backward={"y": "3.0 * grad * result"})(of_two("x * y"))
    for dev in ("cpu", device):
        leaf = x.clone().to(dev).requires_grad_()
        straight(leaf).sum().backward()
        torch.testing.assert_close(leaf.grad.cpu(), (x.abs() <= 1).float())
        y = x.clone().to(dev).requires_grad_()
        scaled(x.clone().to(dev).requires_grad_(), y).sum().backward()
        torch.testing.assert_close(y.grad.cpu(), 3 * x * x)
        assert set(torch.library.opcheck(straight, (leaf,)).values()) == {"SUCCESS"}
    slow = torch.func.grad(lambda t: straight(t).sum())(x)  # its own derivative, not that of its expression
    torch.testing.assert_close(slow, (x.abs() <= 1).float())
    for wrong, part in (
        ({"x": "grad + z"}, "there is no 'z'"),
        (("grad",), "1 expressions, and the operator 2 tensors"),
    ):
        with pytest.raises((ValueError, TypeError), match=part):
            define("test::wrong", backward=wrong)(of_two("x * y"))
    with pytest.raises(TypeError, match="did you mean 'y'"):
        define("test::wrong", backward={"yy": "grad"})(of_two("x * y"))


def lambda_of_one(text: str) -> Callable[..., Any]:
    def fn(x: Tensor) -> Any:
        return text

    return fn


def test_a_backward_is_an_operator_or_a_function(define: Define, device: torch.device) -> None:
    def grads(grad: Tensor, x: Tensor, y: Tensor) -> Any:
        return "10.0 * grad * y", "10.0 * grad * x"

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def function(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 10 * grad * y, 10 * grad * x

    backward = define("test::grads")(grads)
    by_operator = define("test::first", backward=backward)(of_two("x * y"))
    by_function = define("test::second", backward=function, setup_context=setup)(of_two("x * y"))
    for fn in (by_operator, by_function):
        for dev in ("cpu", device):
            x, y = (torch.randn(3, device=dev, requires_grad=True) for _ in range(2))
            fn(x, y).sum().backward()
            torch.testing.assert_close(x.grad, 10 * y.detach())
            torch.testing.assert_close(y.grad, 10 * x.detach())


def test_forward_mode_runs_what_has_a_backward_of_its_own_and_refuses_its_tangents(
    define: Define, device: torch.device
) -> None:
    fn = define("test::own", backward="grad * result")(lambda_of_one("exp(x)"))
    for dev in ("cpu", device):
        x = torch.ones(2, device=dev, requires_grad=True)
        with torch.autograd.forward_ad.dual_level():
            fn(x).sum().backward()
            torch.testing.assert_close(x.grad, x.detach().exp())
            with pytest.raises(NotImplementedError, match="forward mode"):
                fn(torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x)))
