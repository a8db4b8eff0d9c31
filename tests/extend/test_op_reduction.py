"""Operators that are reductions: prologue, combine, epilogue, map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.device.against_cpu import check, layouts
from torch import Tensor
from torch.library import opcheck

from torch_webgpu import plan
from torch_webgpu.extend.op import registered
from torch_webgpu.extend.signature import SignatureError
from torch_webgpu.extend.syntax import ExpressionError

Define = Callable[..., Any]
Reduction = torch.webgpu.Reduction


def rms(x: Tensor, dim: int = -1, keepdim: bool = False, *, eps: float = 1e-6) -> Any:
    return Reduction("x * x", "sum", "sqrt(sum / count + eps)")


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> Any:
    return Reduction("x * x", "sum", map="x * inverseSqrt(sum / count + eps) * weight", dim=-1)


def combined(combine: Any, epilogue: Any = None, prologue: Any = "x") -> Callable[..., Any]:
    def fn(x: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Any:
        return Reduction(prologue, combine, epilogue)

    return fn


@pytest.mark.parametrize("name", layouts(torch.randn, 3, 4))
def test_it_is_what_pytorch_composes(define: Define, device: torch.device, name: str) -> None:
    fn, norm = define("test::rms")(rms), define("test::rms_norm")(rms_norm)
    x, weight = layouts(torch.randn, 3, 4)[name], torch.randn(4)
    torch.testing.assert_close(fn(x), (x.square().mean(-1) + 1e-6).sqrt())
    torch.testing.assert_close(fn(x, 0, True), (x.square().mean(0, keepdim=True) + 1e-6).sqrt())
    torch.testing.assert_close(norm(x, weight), torch.nn.functional.rms_norm(x, (4,), weight, 1e-6))
    for dim, keepdim in ((-1, False), (0, True)):
        check(device, lambda t, d=dim, k=keepdim: fn(t, d, k), x, backward=True)
    check(device, norm, x, weight, backward=True)
    check(device, lambda t: fn(t.half(), eps=0.5), x)
    assert fn(x.half()).dtype == norm(x.half(), weight.half()).dtype == torch.float16


def test_every_combine(define: Define, device: torch.device) -> None:
    x, n = torch.randn(3, 4, 5), torch.randint(-5, 5, (3, 4, 5))
    for combine, reference in (
        ("sum", torch.sum), ("max", torch.amax), ("min", torch.amin), ("logsumexp", torch.logsumexp),
    ):  # fmt: skip
        fn = define(f"test::{combine}")(combined(combine, "max + log(sum)" if combine == "logsumexp" else None))
        for dims in ([0], [1, 2], [0, 2], [-1]):
            torch.testing.assert_close(fn(x, dims), reference(x, dims))
            check(device, lambda t, fn=fn, dims=dims: fn(t, dims), x, backward=True)
            check(device, lambda t, fn=fn, dims=dims: fn(t, dims, True), n)
        check(device, fn, x, backward=True)
        check(device, fn, x[0, 0, 0], backward=True)
    assert torch.ops.test.sum(n).dtype == torch.int64
    assert torch.ops.test.max(n).dtype == torch.int64
    product = define("test::prod")(combined("prod"))
    torch.testing.assert_close(product(x, [1, 2]), x.flatten(1).prod(1))
    check(device, lambda t: product(t, [1, 2]), x, backward=True)
    moments = define("test::moments")(combined("welford", ("mean", "m2 / (count - 1)")))
    for value, expected in zip(moments(x, [1, 2]), (x.mean((1, 2)), x.var((1, 2))), strict=True):
        torch.testing.assert_close(value, expected)
    check(device, lambda t: moments(t, [1, 2]), x, backward=True)
    where = define("test::where")(combined("argmax", ("max", "index")))
    torch.testing.assert_close(where(x, [1]), tuple(x.max(1)))
    check(device, lambda t: where(t, [1, 2]), x, backward=True)
    check(device, lambda t: where(t, [1]), torch.zeros(2, 3), backward=False)
    tests = define("test::tests")(combined(("any", "all"), None, ("x > 0.0", "x > -9.0")))
    check(device, lambda t: tests(t, [1]), x)


def test_several_combines_and_arguments(define: Define, device: torch.device) -> None:
    def cosine(x: Tensor, y: Tensor, dim: int = 1, *, eps: float = 1e-8) -> Any:
        return Reduction(("x * y", "x * x", "y * y"), ("sum", "sum", "sum"), "sum_0 / max(sqrt(sum_1 * sum_2), eps)")

    fn = define("test::cosine")(cosine)
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    torch.testing.assert_close(fn(x, y), torch.cosine_similarity(x, y))
    check(device, fn, x, y, backward=True)
    check(device, fn, x, y[0], backward=True)
    check(device, fn, x, y[:, :1], backward=True)
    assert torch.autograd.gradcheck(fn, (x.double().requires_grad_(), y.double().requires_grad_()))
    assert torch.autograd.gradgradcheck(fn, (x[:2].double().requires_grad_(), y[:2].double().requires_grad_()))


def test_it_is_one_dispatch_with_its_neighbours(define: Define, device: torch.device) -> None:
    norm = define("test::rms_norm")(rms_norm)
    x, weight = torch.randn(64, 96, device=device), torch.randn(96, device=device)
    own = plan.trace(lambda a, w: norm(a * 2, w).tanh(), x, weight, target="browser")
    builtin = plan.trace(lambda a, w: torch.softmax(a * 2, 1).tanh() * w, x, weight, target="browser")
    assert len(own.steps) == len(builtin.steps) == 1
    text = str(torch.webgpu.explain(lambda: norm(x + 1, weight)))
    assert "1 dispatch" in text
    assert "test::rms_norm" in text


def test_opcheck_compile_and_transforms(define: Define, device: torch.device) -> None:
    fn, norm = define("test::rms")(rms), define("test::rms_norm")(rms_norm)
    for dev in ("cpu", device):
        x = torch.randn(3, 4, device=dev, requires_grad=True)
        weight = torch.randn(4, device=dev, requires_grad=True)
        assert set(opcheck(fn, (x, 0), {"eps": 0.5}).values()) == {"SUCCESS"}
        assert set(opcheck(norm, (x, weight)).values()) == {"SUCCESS"}
    x = torch.randn(2, 3, 4, device=device)
    torch.testing.assert_close(torch.vmap(fn)(x), fn(x))
    torch.testing.assert_close(torch.vmap(lambda t: fn(t, 0))(x), fn(x, 1))
    torch.testing.assert_close(torch.vmap(lambda t: fn(t, 0), 1, 1)(x), fn(x.transpose(0, 1), 1).transpose(0, 1))
    gradient = torch.func.grad(lambda t: fn(t).sum())(x)
    reference = torch.func.grad(lambda t: (t.square().mean(-1) + 1e-6).sqrt().sum())(x)
    torch.testing.assert_close(gradient, reference)
    compiled = torch.compile(lambda a, w: norm(a * 2, w) + 1, backend="webgpu", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight.detach()), norm(x * 2, weight.detach()) + 1)
    definition = registered()["test::rms_norm"]
    assert definition.kind == "reduction"
    assert definition.differentiable
    assert "inverseSqrt" in definition.source


def test_what_is_wrong_is_said(define: Define, device: torch.device) -> None:
    for make, error, part in (
        (combined("summ"), SignatureError, "did you mean 'sum'"),
        (combined(("sum", "max")), SignatureError, "1 prologues for 2 combines"),
        (combined("sum", "x + sum"), ExpressionError, "there is no 'x'"),
        (combined("sum", "max"), ExpressionError, "there is no 'max'"),
        (combined("sum", "1.0"), ExpressionError, "depends on no tensor"),
    ):
        with pytest.raises(error, match=part):
            define("test::wrong")(make)
    fn = define("test::any")(combined("any"))
    with pytest.raises(ExpressionError, match="combines bools"):
        fn(torch.ones(3))
    top = define("test::max")(combined("max"))
    for dev in ("cpu", device):
        with pytest.raises(IndexError, match="of no elements"):
            top(torch.ones(3, 0, device=dev), [1])
        with pytest.raises(IndexError, match="Dimension out of range"):
            top(torch.ones(3, device=dev), [4])


def test_its_backward_may_be_a_function(define: Define, device: torch.device) -> None:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.shape = inputs[0].shape

    fn = define("test::custom", backward=lambda ctx, g: (7 * g.expand(ctx.shape), None, None), setup_context=setup)(
        combined("sum")
    )
    for dev in ("cpu", device):
        x = torch.ones(3, device=dev, requires_grad=True)
        fn(x).backward()
        torch.testing.assert_close(x.grad, torch.full_like(x, 7))
    with pytest.raises(SignatureError, match="is a function or an operator"):
        define("test::other", backward="grad")(combined("sum"))
