"""What runs between plans: values and sizes that depend on data, control flow, CPU tensors, CPU fallbacks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop

from .against_eager import assert_equal, check, counting


def test_cond() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() + 1, (x,)) * 3

    compiled = torch.compile(f, fullgraph=True)
    with counting() as stats:
        for sign in (1, -1, 1):
            check(f, torch.ones(4) * sign, compiled=compiled)
    assert [name.partition(":")[0] for name in stats.between] == ["cond"]


def test_cond_on_a_number() -> None:
    check(lambda x: torch.cond(x.shape[0] > 2, lambda x: x + 1, lambda x: x - 1, (x,)), torch.randn(4), fullgraph=True)


def test_while_loop() -> None:
    def f(i: torch.Tensor, x: torch.Tensor) -> Any:
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (i, x + 1))

    check(f, torch.zeros((), dtype=torch.int64), torch.ones(3), fullgraph=True)


def test_sizes_that_depend_on_data() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x > 0).nonzero() * 2 + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(f, fullgraph=True)
        with counting() as stats:
            for seed in range(3):
                check(f, torch.randn(20, generator=torch.Generator().manual_seed(seed)), compiled=compiled)
        assert stats.between == {"aten.nonzero.default: its result's size or value depends on data"}


def test_masked_selections_and_unique_values() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = x[x > 2] * 2
        return chosen, chosen.sum(), torch.unique(x) + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(f, torch.randint(0, 6, (20,)), fullgraph=True)
    check(f, torch.randint(0, 6, (20,)))  # with graph breaks


def test_an_index_that_is_no_mask_is_part_of_the_plan() -> None:
    f = lambda x, i: x[i] + x[:, i].sum()
    compiled = torch.compile(f, fullgraph=True)
    with counting() as stats:
        check(f, torch.randn(4, 4), torch.tensor([2, 0]), compiled=compiled)
    assert (stats.plans, stats.between) == (1, set())


def test_values_read_on_the_host() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item() + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(f, fullgraph=True)
        for seed in range(3):
            check(f, torch.randn(20, generator=torch.Generator().manual_seed(seed)), compiled=compiled, tolerance=1e-5)
    check(f, torch.randn(20), tolerance=1e-5)


def test_branches_on_values() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp() if x.sum() > 0 else x - 1

    compiled = torch.compile(f)
    for sign in (1, -1, 1):
        check(f, torch.ones(4) * sign, compiled=compiled)


def test_cpu_scalars_are_inputs() -> None:
    def f(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x * s + torch.tensor(2.0)

    compiled, x = torch.compile(f, fullgraph=True), torch.randn(5, device="webgpu")
    with counting() as stats:
        for value in (1.0, 2.0, 3.0):
            assert_equal(compiled(x, torch.tensor(value)), f(x, torch.tensor(value)))
    assert stats.plans == 1


def test_work_on_the_cpu_and_transfers() -> None:
    def f(x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = h * 2 + 1
        return x + z.to(x.device), (x * 2).cpu() + h, z

    compiled, x, h = torch.compile(f, fullgraph=True), torch.randn(5, device="webgpu"), torch.randn(5)
    for _ in range(2):
        results = compiled(x, h)
        assert [t.device.type for t in results] == ["webgpu", "cpu", "cpu"]
        assert_equal(results, f(x, h))


def test_writes_into_cpu_tensors() -> None:
    def f(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        h.add_(1)
        h.copy_(x * 2 + h.to(x.device))
        return x + 1

    x, one = torch.randn(5, device="webgpu"), torch.randn(5)
    other = one.clone()
    assert_equal(torch.compile(f, fullgraph=True)(x, one), f(x, other))
    assert_equal(one, other)


def test_a_graph_that_only_moves_data() -> None:
    x = torch.randn(4)
    there = torch.compile(lambda h: h.to("webgpu"), fullgraph=True)(x)
    assert there.device.type == "webgpu"
    back = torch.compile(lambda t: t.cpu(), fullgraph=True)(there)
    assert_equal(back, x)


def test_constants_from_the_host() -> None:
    check(lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device), torch.randn(3))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_operators_that_run_on_the_cpu() -> None:
    with counting() as stats:
        check(lambda x: torch._dirichlet_grad(x, x + 1, x + 2).sum() * 2, torch.rand(4, 4), tolerance=1e-4, cpu=None)
    assert len(stats.between) == 1
    (entry,) = stats.between
    assert "_dirichlet_grad" in entry
    assert "cannot be read on the host" in entry
    assert "\n" not in entry


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gradients_of_operators_that_run_on_the_cpu() -> None:
    """What they refuse is found out with values, not with stand-ins: garbage is no permutation."""

    def f(x: torch.Tensor) -> torch.Tensor:
        permutation, lower, upper = torch.linalg.lu(x)
        (gradient,) = torch.autograd.grad((permutation @ (lower * 2) @ upper).square().sum(), x)
        return gradient

    x = torch.randn(4, 4, device="webgpu", requires_grad=True)
    loss = torch.compile(lambda x: torch.linalg.lu(x).U.square().sum())(x)
    (actual,) = torch.autograd.grad(loss, x)
    (expected,) = torch.autograd.grad(torch.linalg.lu(x).U.square().sum(), x)
    assert_equal(actual, expected, 1e-4)
    pivoted = torch.compile(lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x))[2].square().sum())(x)
    (actual,) = torch.autograd.grad(pivoted, x)
    assert_equal(actual, expected, 1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_complex_results_that_are_seen_as_pairs_of_numbers() -> None:
    x = torch.randn(5, 5, device="webgpu", requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        values, vectors = torch.linalg.eig(x)
        return values.abs().sum() + vectors.abs().sum()

    gradients = [torch.autograd.grad(call(x), x) for call in (f, torch.compile(f))]
    assert_equal(gradients[1], gradients[0], 1e-3)


def test_generators_of_their_own() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4, device=x.device)

    check(f, torch.randn(4), cpu=None)


def test_prints_break_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("between")
        return y + 1

    check(f, torch.randn(4), calls=1)
    assert capsys.readouterr().out == "between\n" * 3


def test_a_whole_graph_that_no_plan_can_be_made_of_runs_as_it_is() -> None:
    """Its inputs are written in a way that only the host can: what cannot be split runs operator by operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(
            lambda x: torch.linalg.eigvals((x @ x.t()).to(torch.complex128)).real.float().sort().values,
            torch.randn(3, 3),
            tolerance=1e-3,
            cpu=None,
        )


DTYPES_WITHOUT_KERNELS = {
    "complex128": lambda x: x.cdouble(),
    "complex32": lambda x: (x * 2).chalf(),
    "on the way": lambda x: (x * 2).cdouble().abs().float() + 1,
    "uint64": lambda x: x.abs().long().to(torch.uint64),
    "8-bit floats": lambda x: (x * 2).to(torch.float8_e4m3fn),
}


@pytest.mark.filterwarnings("ignore:.*runs on the CPU", "ignore:ComplexHalf support")
@pytest.mark.parametrize("name", DTYPES_WITHOUT_KERNELS)
def test_results_in_dtypes_without_kernels(name: str) -> None:
    fn = DTYPES_WITHOUT_KERNELS[name]
    x = torch.randn(3, 4, device="webgpu")
    compiled = torch.compile(fn)
    for _ in range(2):
        actual, expected = compiled(x), fn(x)
        assert actual.dtype == expected.dtype
        assert actual.cpu().to(torch.complex128).equal(expected.cpu().to(torch.complex128))


def test_arguments_in_dtypes_without_kernels() -> None:
    x = torch.randn(3, 4).to(torch.float8_e5m2)
    compiled = torch.compile(lambda x: x.float() * 2 + 1)
    for _ in range(2):
        assert compiled(x.to("webgpu")).cpu().equal(x.float() * 2 + 1)


def test_an_8_bit_float_that_stays_inside_is_part_of_the_plan() -> None:
    with counting() as stats:
        check(lambda x: (x * 2).to(torch.float8_e4m3fn).float() + 1, torch.randn(3, 4))
    assert not stats.between
