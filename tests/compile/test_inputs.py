"""Inputs and outputs of compiled graphs: views, aliases, what is written, layouts, dtypes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn as nn
from torch.fx.experimental.proxy_tensor import make_fx

from torch_webgpu.compile.compiled_graph import CompiledGraph
from torch_webgpu.engine.record import engine

from .against_eager import assert_equal, check, counting


def test_views_of_inputs_are_views_of_them() -> None:
    check(lambda x: (x.view(-1), x.t(), x[1:], x + 1), torch.randn(3, 4), fullgraph=True)


def test_outputs_that_share_memory_share_it() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y[1:], y.view(-1), y

    x = torch.randn(3, 4, device="webgpu")
    compiled = torch.compile(f, fullgraph=True)
    for _ in range(2):
        y, rows, flat, again = compiled(x)
        assert len({t.untyped_storage()._cdata for t in (y, rows, flat, again)}) == 1
        rows.zero_()
        assert flat[4:].abs().sum().item() == 0
        assert_equal(again[:1], f(x)[0][:1])


def test_an_output_that_is_an_input() -> None:
    x = torch.randn(3, device="webgpu")
    same, other = torch.compile(lambda x: (x, x.exp()), fullgraph=True)(x)
    assert same is x
    assert_equal(other, x.exp())


def test_inputs_are_written() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        y[1:].mul_(3)
        return x * y

    check(f, torch.randn(4), torch.randn(4), fullgraph=True)


def test_an_input_that_is_written_and_returned() -> None:
    check(lambda x: x.mul_(2), torch.randn(4), fullgraph=True)
    check(lambda x: (x.mul_(2)[1:], x.t()), torch.randn(3, 4), fullgraph=True)


def writes_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return y * 2


@pytest.mark.parametrize("second", [(2, 6), (0, 4), (4, 8), (5, 9)], ids=str)
@pytest.mark.parametrize("first", [(0, 4), (1, 5), (4, 8)], ids=str)
def test_inputs_in_one_storage_where_one_is_written(first: tuple[int, int], second: tuple[int, int]) -> None:
    base = torch.randn(12)
    check(writes_first, base[slice(*first)], base[slice(*second)])


def test_separate_inputs_may_share_a_storage_later() -> None:
    """Without overlaps: against those, what was compiled without them has no guard, whatever the backend."""
    compiled = torch.compile(writes_first)
    expected = torch.randn(4, device="webgpu"), torch.randn(4, device="webgpu")
    compiled(*expected)
    for a, b in ((0, 4), (4, 0), (0, 5), (8, 0)):
        eager = torch.arange(12.0, device="webgpu")
        base = eager.clone()
        result = compiled(base[a : a + 4], base[b : b + 4])
        assert_equal(result, writes_first(eager[a : a + 4], eager[b : b + 4]))
        assert_equal(base, eager)


def test_columns_of_one_matrix_are_written() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        x.add_(z)
        y.mul_(z)
        return x - y

    base = torch.randn(4, 6)
    check(f, base[:, :2], base[:, 2:4], base[:, 4:])


@pytest.mark.parametrize("writes", [False, True])
def test_inputs_anywhere_in_their_allocations(writes: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if writes:
            x.mul_(2)
        return (x * 2).sum(0) + x

    compiled, base = torch.compile(f, fullgraph=True), torch.randn(40)
    for start in (0, 1, 2, 3, 5, 4, 1):
        check(f, base[start : start + 8], compiled=compiled)
        if not writes:
            check(f, base[start].expand(8), compiled=compiled)


def test_inputs_that_are_expanded_and_transposed() -> None:
    f = lambda x: x * 2 + x.sum(-1, keepdim=True)
    compiled = torch.compile(f, fullgraph=True, dynamic=False)
    for x in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(3, 1).expand(3, 4), torch.randn(3, 8)[:, ::2]):
        check(f, x, compiled=compiled)


@pytest.mark.parametrize("on_host", [False, True])
def test_layouts_that_the_graph_was_made_for(on_host: bool) -> None:
    """Where a kernel gives its result another layout than PyTorch's function for fake tensors said."""
    library = torch.library.Library("webgpu_tests_layout", "DEF")
    library.define("turned(Tensor x) -> Tensor")
    library.impl("turned", lambda x: torch.empty(x.shape, device="meta"), "Meta")
    library.impl("turned", lambda x: ((x.cpu() if on_host else x) * 2).t().contiguous().t().to(x.device), "PrivateUse1")
    f = lambda x: torch.ops.webgpu_tests_layout.turned(x).as_strided((2, 4), (4, 1), 4)
    x = torch.arange(12.0, device="webgpu").view(3, 4)
    assert torch.compile(f, fullgraph=True)(x).tolist() == [[8, 10, 12, 14], [16, 18, 20, 22]]
    library._destroy()


def test_results_without_elements_and_without_dimensions() -> None:
    check(
        lambda x: (x.expand(3, 4) * 2, x[:0].sum(), x.new_zeros(0, 3) + 1, x.sum(), x.new_empty(0)),
        torch.randn(4),
        fullgraph=True,
    )
    compiled = check(lambda x: x * 2 + 1, torch.randn(0, 4), fullgraph=True)
    for _ in range(3):  # tensors without elements have no address, and each one a storage of its own
        assert compiled(torch.randn(0, 4, device="webgpu")).shape == (0, 4)
    check(lambda x, y: torch.cat([x, y]) + 1, torch.randn(0, 4), torch.randn(2, 4), fullgraph=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    f = (lambda x: x | ~x) if dtype == torch.bool else (lambda x: torch.where(x > 1, x, x + 1))
    check(f, torch.randint(0, 5, (9,)).to(dtype), fullgraph=True)


def test_complex_numbers() -> None:
    check(lambda x: x.real * 2 + (x * x.conj()).imag, torch.randn(5, dtype=torch.complex64))


@pytest.mark.parametrize("expands", [False, True])
def test_tensors_that_are_conjugated_or_negated_by_a_flag(expands: bool) -> None:
    """What lies in their memory is something else."""
    x = torch.randn(1, 5, dtype=torch.complex64, device="webgpu").expand(3 if expands else 1, 5)
    f = lambda x, y: (x * 2, y + 1)
    compiled = torch.compile(f, fullgraph=True)
    for given in ((x.conj(), x.conj().imag), (x, x.imag), (x.conj(), x.imag)):
        assert_equal(compiled(*given), f(*given))
    both = lambda x: ((x * 2).conj(), (x * 2).conj().imag)
    compiled = torch.compile(both, fullgraph=True)
    for z in (x.conj(), x, x.conj()):
        assert_equal(
            [t.resolve_conj().resolve_neg() for t in compiled(z)], [t.resolve_conj().resolve_neg() for t in both(z)]
        )
    leaf = torch.randn(5, dtype=torch.complex64, device="webgpu", requires_grad=True)
    y = torch.compile(lambda x: x * 2j, fullgraph=True)(leaf)
    for cotangent in (x[0], x[0].conj()):
        (actual,) = torch.autograd.grad(y, leaf, cotangent, retain_graph=True)
        assert_equal(actual, torch.autograd.grad(leaf * 2j, leaf, cotangent)[0])


def test_views_of_the_bits() -> None:
    check(lambda x: (x.view(torch.int32) + 1, x.view(torch.uint8)), torch.randn(4))


def test_numbers_and_none_among_inputs_and_outputs() -> None:
    def f(x: torch.Tensor, n: int, scale: float, flag: bool, nothing: Any) -> tuple[Any, ...]:
        return x * n + scale if flag else x, n + 1, nothing, [x.shape[0], {"y": x - n}]

    compiled = torch.compile(f)
    x = torch.randn(4)
    for n, scale, flag in ((2, 0.5, True), (3, 0.25, True), (4, 0.25, False), (2, 0.5, True)):
        check(f, x, n, scale, flag, None, compiled=compiled)
        got = compiled(x.to("webgpu"), n, scale, flag, None)
        assert (got[1], got[2], got[3][0]) == (n + 1, None, 4)


def test_only_outputs_that_the_program_makes() -> None:
    check(lambda x: (torch.arange(4, device=x.device), torch.full((2,), 3.0, device=x.device)), torch.randn(2))


def test_no_inputs_but_weights() -> None:
    """A graph whose tensors are all static: it has one layout, and runs as one plan."""
    embedding = nn.Parameter(torch.randn(6, 3, device="webgpu"))
    compiled = torch.compile(lambda: embedding.exp().sum(0), fullgraph=True)
    expected = embedding.exp().sum(0)
    with counting() as stats:
        for _ in range(3):
            assert_equal(compiled(), expected)
    assert stats.between == set()
    with torch.no_grad():
        embedding.mul_(2)
        assert_equal(compiled(), embedding.exp().sum(0))


def test_weights_may_be_replaced_and_moved() -> None:
    model = nn.Linear(4, 3, device="webgpu")
    compiled, x = torch.compile(model, fullgraph=True), torch.randn(2, 4, device="webgpu")
    assert_equal(compiled(x), model(x))
    with torch.no_grad():
        model.weight.data = torch.randn(3, 4, device="webgpu")
        model.bias.copy_(torch.randn(3))
    assert_equal(compiled(x), model(x))
    model.weight = nn.Parameter(torch.randn(5, 4, device="webgpu"))
    model.bias = None
    assert_equal(compiled(x), model(x))


def test_outputs_belong_to_the_caller() -> None:
    """A later call leaves what an earlier one returned, and the caller may write into it."""
    compiled = torch.compile(lambda x: (x + 1, torch.ones(3, device=x.device)), fullgraph=True)
    x = torch.zeros(3, device="webgpu")
    first, ones = compiled(x)
    first.mul_(10)
    ones.zero_()
    second, fresh = compiled(x + 1)
    assert (first.tolist(), second.tolist(), fresh.tolist()) == ([10.0] * 3, [2.0] * 3, [1.0] * 3)


def test_tensors_that_the_program_captured_are_seen_as_they_are() -> None:
    table = torch.randn(4, device="webgpu")
    compiled, x = torch.compile(lambda x: x + table, fullgraph=True), torch.randn(4, device="webgpu")
    assert_equal(compiled(x), x + table)
    table.mul_(3)
    assert_equal(compiled(x), x + table)


def test_random_numbers_are_those_of_eager_calls() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        dropped = torch.nn.functional.dropout(x, 0.5)
        return x + torch.rand_like(x), torch.randn(3, device=x.device), dropped, torch.randint(9, (4,), device=x.device)

    compiled, x = torch.compile(f, fullgraph=True), torch.randn(40, device="webgpu")
    for seed in range(3):
        torch.manual_seed(seed)
        expected = f(x), f(x)
        torch.manual_seed(seed)
        assert_equal((compiled(x), compiled(x)), expected)


def test_several_threads() -> None:
    compiled, x = torch.compile(lambda x: (x * 2).sin()), torch.randn(5, device="webgpu")
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: [compiled(x) for _ in range(5)], range(3)))
    assert_equal(results, [[(x * 2).sin()] * 5] * 3)


def test_inference_mode_and_no_grad() -> None:
    model = nn.Linear(4, 3, device="webgpu")
    compiled, x = torch.compile(model, fullgraph=True), torch.randn(2, 4, device="webgpu")
    with torch.inference_mode():
        assert_equal(compiled(x), model(x))
    with torch.no_grad():
        assert_equal(compiled(x), model(x))
    assert_equal(compiled(x), model(x))


def test_lists_of_tensors_anywhere_in_their_allocations() -> None:
    """What a list's kernel was made for, with stand-ins that start their allocations, says nothing of later calls."""
    compiled = torch.compile(lambda a, b: torch._foreach_mul([a, b], 2.0), fullgraph=True)
    base, other = torch.arange(40.0, device="webgpu"), torch.arange(100.0, 140.0, device="webgpu")
    for x, start in ((other, 0), (other, 4), (other, 5), (base, 8), (other, 16)):
        assert_equal(compiled(base[4:8], x[start : start + 4]), [base[4:8] * 2, x[start : start + 4] * 2])


def test_an_input_that_a_graph_returns_is_that_tensor() -> None:
    """As where the forward pass keeps weights for the backward pass: no view of it is made."""
    x, y = torch.randn(3, device="webgpu"), torch.randn(3, device="webgpu")
    graph = CompiledGraph.of(make_fx(lambda x, y: [x * y, x, x.sum()], tracing_mode="fake")(x, y))
    product, same, total = graph(x, y)
    assert same is x
    assert_equal(product, x * y)
    assert_equal(total, x.sum())


def test_numbers_on_the_cpu_take_one_upload_a_dtype() -> None:
    def f(x: torch.Tensor, numbers: list[torch.Tensor]) -> torch.Tensor:
        for number in numbers:
            x = x * 2 + number
        return x

    x = torch.arange(6, device="webgpu", dtype=torch.float32)
    compiled = torch.compile(f, fullgraph=True)
    for step in range(3):
        numbers = [torch.tensor(float(k + step)) for k in range(5)] + [torch.tensor(k - step) for k in range(4)]
        expected = f(x.cpu(), numbers)
        compiled(x, numbers)  # the first makes a plan
        before = engine().handovers
        result = compiled(x, numbers)
        assert engine().handovers == before + 2
        assert_equal(result, expected.to("webgpu"))
