"""Elementwise operations that run as the epilogue of the matrix product or convolution before them.

Each program must record what it says, become as few kernels as it says, and compute what the CPU does op by op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_webgpu.engine.flush_reason import ASKED
from torch_webgpu.engine.record import engine

from .test_fusion import Pair, Program, fusion

Fn = Callable[..., object]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def kernels(run: Callable[[], object]) -> tuple[object, int]:
    """The result of ``run``, and how many operations were left of what it recorded."""
    eng = engine()
    eng.plans.clear()
    with eng.using(threshold=10_000):
        result = run()
        eng.flush(ASKED)
    return result, sum(len(cached.compilation.fused) for plans in eng.plans.plans.values() for cached in plans.values())


def check(fn: Fn, *tensors: torch.Tensor, steps: int | None = 1, tol: float | None = None) -> None:
    expected = fn(*[t.clone(memory_format=torch.preserve_format) for t in tensors])
    on_device = [t.to("webgpu") for t in tensors]
    with fusion(64):
        actual, count = kernels(lambda: fn(*on_device))
    pairs = zip(expected, actual, strict=True) if isinstance(expected, tuple) else [(expected, actual)]
    for wanted, got in pairs:
        tolerance = tol if tol is not None else TOLERANCE.get(wanted.dtype, 0)
        torch.testing.assert_close(got.cpu(), wanted, rtol=tolerance, atol=tolerance)
    if steps is not None:
        assert count == steps


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "tanh gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "clamped": lambda x: (x * 0.5).clamp(-1, 1) + 3,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_activations(name: str, dtype: torch.dtype) -> None:
    activation = ACTIVATIONS[name]
    a, b, c = rand(37, 50, dtype=dtype), rand(50, 45, dtype=dtype) / 7, rand(45, dtype=dtype)
    check(lambda a, b, c: activation(torch.addmm(c, a, b)), a, b, c)


# (B?, M, N, K): tiles of every size, edges of tiles, matrices times vectors, few elements.
SIZES = [(1, 1, 5), (1, 130, 64), (130, 1, 64), (3, 7, 300), (64, 64, 64), (65, 33, 17), (200, 100, 40), (1, 64, 3)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("layout", ["plain", "transposed operands", "transposed residual"])
def test_sizes_and_residuals(sizes: tuple[int, int, int], dtype: torch.dtype, layout: str) -> None:
    m, n, k = sizes

    a, b, r, row, column = (t.to(dtype) for t in (rand(m, k), rand(k, n), rand(m, n), rand(n), rand(m, 1)))
    if layout == "transposed operands":
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    if layout == "transposed residual":
        r = r.t().contiguous().t()
    fn = lambda a, b, r, row, column: (torch.relu(a @ b + row) * column + r) * 0.5
    check(fn, a, b, r, row, column, tol=TOLERANCE[dtype] * 4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8, torch.complex64], ids=str)
@pytest.mark.parametrize("sizes", [(5, 7, 9), (1, 40, 12), (33, 1, 6)], ids=str)
def test_other_arithmetic(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b, r = ((rand(*shape) * 4).to(dtype) for shape in ((m, k), (k, n), (m, n)))
    check(lambda a, b, r: (a @ b + r) * 3, a, b, r, tol=1e-4 if dtype.is_complex else 0)


def test_batches_and_their_biases() -> None:
    a, b, bias, row = rand(3, 20, 8), rand(3, 8, 24), rand(3, 1, 24), rand(24)
    check(lambda a, b, bias, row: F.silu(torch.baddbmm(bias, a, b, beta=2, alpha=0.5)) + row, a, b, bias, row)


def test_linear_over_more_dimensions_than_two() -> None:
    """The product is of (B * T, C), what follows it of (B, T, C)."""
    x, w, b, r = rand(2, 9, 16), rand(24, 16), rand(24), rand(2, 9, 24)
    check(lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, w, b, r)


@pytest.mark.parametrize("out", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_results_of_another_dtype(out: torch.dtype) -> None:
    a, b = rand(33, 20), rand(20, 34)
    check(lambda a, b: ((a @ b) * 2).to(out), a, b, tol=TOLERANCE.get(out, 0) if out.is_floating_point else 0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_what_lives_on_is_written_as_well(dtype: torch.dtype) -> None:
    a, b = rand(34, 20, dtype=dtype), rand(20, 36, dtype=dtype)

    def program(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = a @ b
        return y, torch.relu(y), y.float() + 1

    check(program, a, b)


def test_in_place() -> None:
    a, b, r = rand(33, 20), rand(20, 35), rand(33, 35)
    check(lambda a, b, r: r.add_(torch.relu(a @ b)), a, b, r)
    check(lambda a, b, r: (a @ b).relu_().add_(r), a, b, r)


def test_an_operand_is_not_overwritten_while_it_is_read() -> None:
    a = rand(96, 96)
    check(lambda a: a.copy_(torch.relu(a @ a)), a, steps=2, tol=1e-3)


def test_an_operand_as_residual() -> None:
    a = rand(70, 70)
    check(lambda a: torch.relu(a @ a) + a, a, tol=1e-3)
    check(lambda a: torch.relu(a @ a) + a.t(), a, tol=1e-3)


def test_a_residual_written_between_is_read_after() -> None:
    a, b, r = rand(33, 20), rand(20, 35), rand(33, 35)

    def program(a: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = a @ b
        r.mul_(2)
        return y + r, r

    check(program, a, b, r, steps=2)


def test_a_result_that_is_read_otherwise_is_not_fused() -> None:
    a, b = rand(40, 40), rand(40, 40)
    check(lambda a, b: (lambda y: y + y.t())(a @ b), a, b, steps=2)


def test_a_slice_is_written_by_its_own_kernel() -> None:
    a, b, target = rand(20, 10), rand(10, 12), rand(20, 30)

    def program(a: torch.Tensor, b: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        target[:, 3:15] = torch.relu(a @ b)
        return target

    check(program, a, b, target, steps=2)


def test_a_reduction_is_not_an_epilogue() -> None:
    a, b = rand(20, 10), rand(10, 12)
    check(lambda a, b: torch.softmax((a @ b) * 0.3, 1), a, b, steps=2)


def test_two_products_added() -> None:
    x, w, h, u, b = rand(6, 8), rand(8, 12), rand(6, 5), rand(5, 12), rand(12)
    check(lambda x, w, h, u, b: torch.tanh(x @ w + h @ u + b), x, w, h, u, b, steps=2)


def test_a_dropped_product_is_not_computed() -> None:
    a, b = rand(20, 10), rand(10, 12)

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a @ b
        return a + 1

    check(program, a, b, steps=1)


CONVOLUTIONS = {
    "1d": ((2, 6, 21), (8, 6, 3), {"padding": 1}),
    "2d": ((2, 8, 9, 11), (12, 8, 3, 3), {"padding": 1}),
    "2d few channels": ((2, 2, 9, 12), (3, 2, 3, 3), {}),
    "2d strided groups": ((2, 8, 10, 10), (16, 4, 3, 3), {"stride": 2, "groups": 2}),
    "2d pointwise": ((2, 40, 6, 6), (24, 40, 1, 1), {}),
    "depthwise": ((1, 6, 9, 9), (6, 1, 3, 3), {"groups": 6, "padding": 1}),
    "3d": ((1, 6, 5, 6, 8), (8, 6, 2, 3, 3), {"dilation": 1}),
    "long sum": ((1, 64, 6, 6), (3, 64, 3, 3), {}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions(name: str, dtype: torch.dtype, channels_last: bool) -> None:
    x_shape, w_shape, options = CONVOLUTIONS[name]
    dims = len(x_shape) - 2
    conv = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    x, w, bias = rand(*x_shape, dtype=dtype), (rand(*w_shape) / 5).to(dtype), rand(w_shape[0], dtype=dtype)
    if channels_last:
        if dims != 2:
            return
        x = x.to(memory_format=torch.channels_last)
    scale = rand(w_shape[0], *[1] * dims, dtype=dtype)
    r = torch.rand_like(conv(x, w, bias, **options))
    fn = lambda x, w, b, s, r: F.silu(conv(x, w, b, **options) * s + r)
    check(fn, x, w, bias, scale, r, tol=TOLERANCE[dtype] * 4)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("channels", [2, 10])
def test_transposed_convolutions(stride: int, channels: int) -> None:
    x, w, b = rand(2, channels, 7, 8), rand(channels, channels, 3, 3), rand(channels)
    r = torch.rand_like(F.conv_transpose2d(x, w, b, stride=stride, padding=1))
    check(
        lambda x, w, b, r: torch.relu(F.conv_transpose2d(x, w, b, stride=stride, padding=1)) + r, x, w, b, r, tol=1e-3
    )


@pytest.mark.parametrize("channels", [3, 12])
def test_the_gradient_of_a_weight_is_applied_to_it(channels: int) -> None:
    def program(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mask = (False, True, False)
        grad = torch.ops.aten.convolution_backward(y, x, w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, mask)[1]
        return w.sub_(grad, alpha=0.1)

    x, w, y = rand(2, channels, 9, 9), rand(channels, channels, 3, 3), rand(2, channels, 9, 9)
    check(program, x, w, y, tol=1e-3)


@pytest.fixture
def gpu_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and sums split as on a GPU, whatever the adapter."""
    device = engine().device(0)
    monkeypatch.setattr(device, "target", replace(device.target, software=False))


@pytest.mark.usefixtures("gpu_plans")
@pytest.mark.parametrize("sizes", [(9, 14, 3001), (1, 41, 5003), (43, 1, 5005), (130, 131, 515)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_split_sums(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = sizes
    a, b, row, r = (t.to(dtype) for t in (rand(m, k), rand(k, n) / k**0.5, rand(n), rand(m, n)))
    check(lambda a, b, row, r: (lambda y: (torch.relu(y) + r, y))(torch.addmm(row, a, b)), a, b, row, r)


@pytest.mark.usefixtures("gpu_plans")
def test_split_sums_of_convolutions() -> None:
    x, w, b, scale = rand(1, 129, 6, 7), rand(10, 129, 3, 3) / 34, rand(10), rand(10, 1, 1)
    check(lambda x, w, b, s: F.gelu(F.conv2d(x, w, b, padding=1)) * s, x, w, b, scale)
    check(
        lambda y, w, b, s: F.gelu(F.conv_transpose2d(y, w, b, stride=2)) * s,
        rand(1, 129, 6, 7),
        rand(129, 10, 3, 3) / 34,
        b,
        scale,
    )


def test_dropout_after_a_product_is_the_same_with_and_without_fusion() -> None:
    a, b = rand(33, 20).to("webgpu"), rand(20, 35).to("webgpu")
    results = []
    for window in (64, None):
        torch.manual_seed(3)
        with fusion(window):
            results.append(F.dropout(torch.relu(a @ b), 0.4).cpu())
    torch.testing.assert_close(results[0], results[1])
    assert (results[0] == 0).sum() > 200


def few(x: torch.Tensor) -> torch.Tensor:
    """Small integers, whose products every float dtype adds up exactly in whatever order."""
    return x.clamp(-4, 4).trunc()


class Products(Program):
    """Random programs with matrix products and convolutions in them."""

    shapes = ((4, 6), (6, 6), (6,), (4, 1), (2, 4, 6), (2, 6, 6), (1, 6), (6, 4))

    def __init__(self, draw: st.DataObject) -> None:
        super().__init__(draw)
        self.dtypes = (self.pick((torch.float32, torch.float16, torch.bfloat16, torch.int32)),)  # type: ignore[assignment]

    def steps(self) -> tuple[object, ...]:
        return (*super().steps(), self.product, self.product, self.activation, self.residual)

    def product(self) -> None:
        """A product of one of the tensors with a new one."""
        a = self.pair()
        if a[0].dim() not in (2, 3) or not a[0].numel():
            a = self.made(self.pick(((4, 6), (2, 4, 6))), self.pick(self.dtypes))
        *batch, _, k = a[0].shape
        dtype, n = a[0].dtype, self.pick((1, 4, 6))
        if a[0].dim() == 3 and self.draw.draw(st.booleans()):
            channels = a[0].shape[1]
            b, c = self.made((n, channels, 3), dtype), self.made((n,), dtype)
            fn = lambda a, b, c: F.conv1d(few(a), few(b), few(c), padding=1)
        else:
            b, c = self.made((*batch, k, n), dtype), self.made((n,), dtype)
            fn = self.pick((
                lambda a, b, c: few(a) @ few(b), lambda a, b, c: few(b).mT @ few(a).mT,
                lambda a, b, c: (torch.addmm if a.dim() == 2 else torch.baddbmm)(few(c), few(a), few(b), beta=2),
                lambda a, b, c: F.linear(few(a), few(b).reshape(-1, a.shape[-1])),
            ))  # fmt: skip
        self.both(fn, a, b, c)
        self.newest_is_used()

    def newest_is_used(self) -> None:
        """Most products are followed by something that could be their epilogue."""
        for _ in range(self.draw.draw(st.integers(0, 3))):
            self.pick((self.activation, self.residual))()  # type: ignore[operator]

    def activation(self) -> None:
        fn = self.pick((torch.relu, lambda a: a * 2 + 1, lambda a: a.relu_(), lambda a: a.float(), lambda a: a.neg(),
                        lambda a: a.half(), lambda a: a.reshape(-1), lambda a: a.mT, lambda a: a.unflatten(0, (2, -1)),
                        lambda a: a.add_(1)))  # fmt: skip
        if self.pairs[-1][0].dim():
            self.both(fn, self.pairs[-1])

    def residual(self) -> None:
        fn = self.pick((
            torch.add, torch.maximum, lambda a, b: b - a * 3, lambda a, b: b.add_(a), lambda a, b: b.copy_(a),
            lambda a, b: b.copy_(torch.relu(a)), lambda a, b: torch.where(a > b, a, b),
        ))  # fmt: skip
        self.both_if_defined(fn, self.pairs[-1], self.pair())

    def both_if_defined(self, fn: object, a: Pair, b: Pair) -> None:
        """:meth:`both`, unless the operands share memory, where PyTorch promises nothing for writes in place."""
        if a[0].untyped_storage().data_ptr() != b[0].untyped_storage().data_ptr():
            self.both(fn, a, b)


@pytest.mark.parametrize("window", [64, 2, None])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_random_programs_with_products_match_the_cpu(window: int | None, data: st.DataObject) -> None:
    with fusion(window):
        Products(data).run()
