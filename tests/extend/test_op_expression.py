"""Operators made of WGSL expressions: what they compute, where they run, how they fuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from tests.device.against_cpu import check, layouts
from torch import Tensor
from torch.library import opcheck

from torch_webgpu import plan
from torch_webgpu.engine.record import engine
from torch_webgpu.errors import AlreadyRegisteredError, NotRegisteredError
from torch_webgpu.extend.op import registered, unregister

Define = Callable[..., Any]


def swiglu(x: Tensor, y: Tensor) -> Any:
    return "x / (1.0 + exp(-x)) * y"


def scaled(x: Tensor, y: Tensor, n: int = 2, *, alpha: float = 0.5, negate: bool = False) -> Any:
    return "select(x, -x, negate) * alpha + y * n"


def gated(x: Tensor, mask: Tensor) -> Any:
    return "select(0.0, x, mask)", "x > 0.0"


@pytest.mark.parametrize("name", layouts(torch.randn, 3, 4))
def test_it_computes_on_the_device_what_it_does_on_the_cpu(define: Define, device: torch.device, name: str) -> None:
    fn = define("test::swiglu")(swiglu)
    x, y = layouts(torch.randn, 3, 4)[name], layouts(torch.randn, 3, 4)["contiguous"]
    torch.testing.assert_close(fn(x, y), torch.nn.functional.silu(x) * y)
    check(device, fn, x, y, backward=True)
    check(device, fn, x, y[0], backward=True)
    check(device, fn, x[:, :1], y[0], backward=True)
    check(device, fn, x[:0], y[0], backward=True)
    check(device, fn, x[0, 0], y[1, 1], backward=True)


PAIRS = [
    (torch.float16, torch.float16), (torch.bfloat16, torch.float32), (torch.float16, torch.bfloat16),
    (torch.int32, torch.float16), (torch.int64, torch.int8), (torch.uint8, torch.int8), (torch.int16, torch.int64),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_dtypes_are_promoted_as_pytorch_does(
    define: Define, device: torch.device, first: torch.dtype, second: torch.dtype
) -> None:
    fn = define("test::sum")(lambda_of("x + y * 2"))
    x, y = (torch.randint(0, 9, (4, 5)).to(d) for d in (first, second))
    assert fn(x, y).dtype == (x + y * 2).dtype
    torch.testing.assert_close(fn(x, y), x + y * 2)
    check(device, fn, x, y)
    check(device, fn, x, y[0, 0])  # a tensor without dimensions yields
    assert fn(x, y[0, 0]).dtype == (x + y[0, 0] * 2).dtype


def lambda_of(text: Any, two: bool = True) -> Callable[..., Any]:
    def of_one(x: Tensor) -> Any:
        return text

    def of_two(x: Tensor, y: Tensor) -> Any:
        return text

    return of_two if two else of_one


def test_numbers_have_the_dtype_of_what_they_meet(define: Define, device: torch.device) -> None:
    fn = define("test::scaled")(scaled)
    x, y = torch.randn(3, 4, dtype=torch.float16), torch.randn(4, dtype=torch.float16)
    assert fn(x, y).dtype == torch.float16
    for args, kwargs in (((), {}), ((3,), {"alpha": 2.0}), ((-1,), {"negate": True})):
        check(device, lambda a, b, args=args, kwargs=kwargs: fn(a, b, *args, **kwargs), x, y, backward=True)
    integers = torch.arange(5)
    assert fn(integers, integers).dtype == torch.float32
    assert fn(x.double(), y.double(), alpha=0.1).dtype == torch.float64
    torch.testing.assert_close(fn(x.double(), y.double(), alpha=0.1), x.double() * 0.1 + y.double() * 2)


def test_an_operator_has_several_outputs_of_their_own_dtypes(define: Define, device: torch.device) -> None:
    fn = define("test::gated")(gated)
    x, mask = torch.randn(3, 4), torch.rand(3, 4) > 0.5
    kept, positive = fn(x, mask)
    assert (kept.dtype, positive.dtype) == (torch.float32, torch.bool)
    torch.testing.assert_close(kept, x * mask)
    check(device, fn, x, mask, backward=True)
    with pytest.raises(ValueError, match=r"select takes a bool here, not float32"):
        fn(x, x)


def test_numbers_that_change_make_no_new_plans(define: Define, device: torch.device) -> None:
    fn = define("test::scaled")(scaled)
    x, y = torch.randn(2, 4, 4, device=device)

    def results(first: int) -> list[Tensor]:
        found = [fn(x, y, k, alpha=k / 7) for k in range(first, first + 4)]
        torch.webgpu.synchronize()
        return found

    results(3), results(9)
    misses = engine().plans.misses
    others = results(20)
    assert engine().plans.misses == misses
    for k, result in enumerate(others, 20):
        torch.testing.assert_close(result, x * (k / 7) + y * k)


def test_it_fuses_with_its_neighbours(define: Define, device: torch.device) -> None:
    fn = define("test::swiglu")(swiglu)
    x, y = torch.randn(2, 32, 8, device=device)

    def steps(step: Callable[..., Any]) -> int:
        return len(plan.trace(step, x, y, target="browser").steps)

    assert steps(lambda a, b: fn(a * 2, b).tanh() + 1) == 1
    assert steps(lambda a, b: fn(a * 2, b).sum(1)) == 1
    assert steps(lambda a, b: fn(a, b) @ b.T) == steps(lambda a, b: (a * b) @ b.T)
    assert "1 dispatch" in str(torch.webgpu.explain(lambda: fn(x * 2, y).tanh() + 1))


def test_opcheck_passes(define: Define, device: torch.device) -> None:
    fn = define("test::scaled")(scaled)
    for dev in ("cpu", device):
        x = torch.randn(3, 4, device=dev, requires_grad=True)
        y = torch.randn(4, device=dev, requires_grad=True)
        results = opcheck(fn, (x, y), {"alpha": 0.25})
        assert set(results.values()) == {"SUCCESS"}
    backward = torch.ops.test._scaled_backward.default
    assert set(opcheck(backward, (x.detach(), 2, 0.5, False)).values()) == {"SUCCESS"}


def test_torch_compile_and_export_have_it_as_one_node(define: Define, device: torch.device) -> None:
    fn = define("test::swiglu")(swiglu)

    class Model(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return fn(a * 2, b) + 1

    x, y = torch.randn(5, 3), torch.randn(3)
    for backend, dev in (("aot_eager", "cpu"), ("webgpu", device)):
        compiled = torch.compile(Model(), backend=backend, fullgraph=True)
        leaves = [t.clone().to(dev).requires_grad_() for t in (x, y)]
        eager = [t.clone().requires_grad_() for t in (x, y)]
        compiled(*leaves).sum().backward()
        Model()(*eager).sum().backward()
        for a, e in zip(leaves, eager):
            torch.testing.assert_close(a.grad.cpu(), e.grad)
    exported = torch.export.export(Model(), (x.to(device), y.to(device)))
    assert [n for n in exported.graph.nodes if n.target is fn]
    torch.testing.assert_close(exported.module()(x.to(device), y.to(device)).cpu(), Model()(x, y))


def test_transforms(define: Define, device: torch.device) -> None:
    fn = define("test::swiglu")(swiglu)
    x, y = torch.randn(4, 3, device=device), torch.randn(3, device=device)
    expected = torch.nn.functional.silu(x) * y
    torch.testing.assert_close(torch.vmap(fn, (0, None))(x, y), expected)
    torch.testing.assert_close(torch.vmap(fn, (1, 0), 1)(x, y), expected)
    halves = torch.vmap(lambda a, s: fn(a, s), (0, 0))(x.half(), x[:, 0])
    assert halves.dtype == torch.float16  # a scalar of float32 yields to a vector of float16, in a batch, too
    gradient = torch.func.grad(lambda a: fn(a, y).sum())(x)
    again = torch.func.grad(lambda a: (torch.nn.functional.silu(a) * y).sum())(x)
    torch.testing.assert_close(gradient, again)
    tangent = torch.func.jvp(lambda a: fn(a, y), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent, gradient)
    with torch.autograd.forward_ad.dual_level():
        fn(x, y)
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(fn(dual, y)).tangent, gradient)


def test_autocast(define: Define, device: torch.device) -> None:
    half = define("test::half", autocast=torch.float16)(swiglu)
    promoted = define("test::promoted", autocast="promote")(swiglu)
    plain = define("test::plain")(swiglu)
    for dev in ("cpu", device):
        x, y = torch.randn(3, 4, device=dev), torch.randn(4, device=dev, dtype=torch.bfloat16)
        with torch.autocast(torch.device(dev).type, torch.bfloat16):
            assert half(x, y).dtype == torch.float16
            assert promoted(x, y).dtype == torch.float32
            assert plain(y, y).dtype == torch.bfloat16
        assert half(x, y).dtype == torch.float32


def test_modes_see_it(define: Define, device: torch.device) -> None:
    fn = define("test::swiglu")(swiglu)
    x = torch.randn(3, 4, device=device)
    names = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    fn(x, x)
    for _ in range(3):
        with Mode():
            fn(x, x)
    assert names == ["test.swiglu.default"] * 3


def adamw(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, *, lr: float, beta1: float, beta2: float, eps: float, decay: float,
    step: int,
) -> Any:  # fmt: skip
    mean, square = "mix(g, m, beta1)", "mix(g * g, v, beta2)"
    hat = f"({mean}) / (1.0 - pow(beta1, f32(step)))"
    root = f"sqrt(({square}) / (1.0 - pow(beta2, f32(step))))"
    return f"p * (1.0 - lr * decay) - lr * {hat} / ({root} + eps)", mean, square


def test_arguments_are_written_in_place(define: Define, device: torch.device) -> None:
    fn = define("test::adamw_", mutates=("p", "m", "v"))(adamw)
    numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 1e-2}
    start, grads = torch.randn(5, 6), [torch.randn(5, 6) for _ in range(4)]
    reference = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([reference], lr=1e-2, weight_decay=1e-2)
    for g in grads:
        reference.grad = g
        optimizer.step()
    for dev in ("cpu", device):
        p = start.clone().to(dev)
        m, v = torch.zeros_like(p), torch.zeros_like(p)
        version = p._version
        for k, g in enumerate(grads, 1):
            assert fn(p, g.to(dev), m, v, step=k, **numbers) is None
        assert p._version >= version + len(grads)
        torch.testing.assert_close(p.cpu(), reference.detach(), rtol=2e-5, atol=2e-6)
    assert "1 dispatch" in str(torch.webgpu.explain(lambda: fn(p, g.to(dev), m, v, step=5, **numbers)))
    with pytest.raises(RuntimeError, match="has no derivative"):
        fn(p.requires_grad_(), g.to(dev), m, v, step=k, **numbers)
    with pytest.raises(RuntimeError, match="broadcast to"):
        fn(p.detach()[:1], g.to(dev), m, v, step=k, **numbers)
    same = torch.zeros(2, 5, 6, device=device)  # what is written lies in one allocation
    q = start.to(device)
    fn(q, grads[0].to(device), same[0], same[1], step=1, **numbers)
    torch.testing.assert_close(same[0].cpu(), grads[0] * 0.1)


def test_names_are_taken_and_given_back(define: Define, device: torch.device) -> None:
    fn = define("test::mine")(lambda_of("x + 1.0", two=False))
    x = torch.zeros(3, device=device)
    with pytest.raises(AlreadyRegisteredError, match="replace=True"):
        define("test::mine")(lambda_of("x + 2.0", two=False))
    torch.testing.assert_close(fn(x), x + 1)
    other = define("test::mine", replace=True)(lambda_of("x + 2.0", two=False))
    torch.testing.assert_close(other(x), x + 2)
    definition = registered()["test::mine"]
    assert (definition.kind, definition.source, definition.overload) == ("expression", "x + 2.0", other)
    assert definition.derived == ("test::_mine_backward",)
    unregister("test::mine")
    assert not hasattr(torch.ops.test, "mine")
    assert not hasattr(torch.ops.test, "_mine_backward")
    define("test::mane")(lambda_of("x"))
    with pytest.raises(NotRegisteredError, match="did you mean"):
        unregister("test::mine")
    with pytest.raises(ValueError, match="is PyTorch's"):
        define("aten::mine")
    with pytest.raises(ValueError, match="namespace::name"):
        define("mine")


def test_a_wrong_expression_leaves_nothing(define: Define) -> None:
    with pytest.raises(ValueError, match="there is no function"):
        define("test::wrong")(lambda_of("swish(x)"))
    assert not hasattr(torch.ops.test, "wrong")
    define("test::wrong")(lambda_of("x"))


ATOMS = ("x", "y", "n", "0.5", "2", "alpha", "f32(n)")
UNARY = ("-({})", "tanh({})", "abs({})", "exp(-abs({}))", "({})", "sqrt(abs({}) + 0.5)", "floor({})", "sin({})")
BINARY = (
    "({} + {})", "({} - {})", "({} * {})", "max({}, {})", "({} / (1.5 + abs({})))", "select({}, {}, x > y)",
    "fma({}, {}, x)", "mix({}, {}, 0.25)",
)  # fmt: skip
TEXTS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.builds(str.format, st.sampled_from(UNARY), inner),
        st.builds(str.format, st.sampled_from(BINARY), inner, inner),
    ),
    max_leaves=6,
)
SHAPES = st.sampled_from([(), (1,), (3,), (4, 3), (2, 1, 3), (2, 4, 1), (0, 3)])
DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
FLOATS = st.sampled_from([torch.float32, torch.float16])


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, reverse: bool) -> Tensor:
    t = (torch.randn(shape[::-1] if reverse else shape) * 3).to(dtype)
    return t.permute(list(reversed(range(t.dim())))) if reverse else t


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, SHAPES, SHAPES, FLOATS, DTYPES, st.booleans())
def test_any_expression_is_the_same_everywhere(
    define: Define, device: torch.device, text: str, a: Any, b: Any, first: Any, second: Any, reverse: bool
) -> None:
    """Values and gradients of the device are those of PyTorch's operators in float64, within the dtype's rounding."""

    def f(x: Tensor, y: Tensor, n: Tensor, alpha: float = 1.5) -> Any:
        return f"{text} + 0.0 * x * y"

    try:
        torch.broadcast_shapes(a, b)
    except RuntimeError:
        b = ()
    fn = define("test::any", replace=True)(f)
    x, y = random_tensor(a, first, reverse), random_tensor(b, second, False)
    n = torch.randint(0, 4, ())
    wide = [t.double().requires_grad_(t.is_floating_point()) for t in (x, y)]
    expected = fn(*wide, n)
    args = [t.to(device).requires_grad_(t.is_floating_point()) for t in (x, y)]
    result = fn(*args, n.to(device))
    assert result.dtype == fn(x, y, n).dtype
    assert result.stride() == fn(x, y, n).stride()
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(result.dtype, 1e-4)
    torch.testing.assert_close(result.cpu().double(), expected.detach(), rtol=tolerance, atol=tolerance)
    if result.numel():
        floats = [k for k, t in enumerate(args) if t.requires_grad]
        grads = torch.autograd.grad(result.sum(), [args[k] for k in floats])
        references = torch.autograd.grad(expected.sum(), [wide[k] for k in floats])
        for g, r, k in zip(grads, references, floats):
            assert g.dtype == args[k].dtype
            bound = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(g.dtype, tolerance) * 8
            torch.testing.assert_close(g.cpu().double(), r, rtol=bound, atol=bound)
