"""Operators over lists of tensors (``torch._foreach_*``): against the CPU, and what they are recorded as."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing._internal import common_methods_invocations as database

from torch_webgpu.engine.record import engine

from .foreach_lists import commands_from_now_on, lists, moved, outcome, pending, same

DATABASE = (
    *database.foreach_unary_op_db,
    *database.foreach_binary_op_db,
    *database.foreach_pointwise_op_db,
    *database.foreach_other_op_db,
    *database.foreach_reduce_op_db,
)
# 64-bit numbers are computed in 32 bits by some of these on the device, as without lists.
DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.bool)
# The operators without lists are not as on the CPU here either: a power of booleans is an integer, a quotient is made.
DIFFERENT = frozenset({"_foreach_pow", "_foreach_addcdiv"})


def samples(info: Any, dtype: torch.dtype) -> list[Any]:
    random.seed(0)
    found = list(info.sample_inputs("cpu", dtype, num_input_tensors=[4]))
    if not engine().device(0).target.float64:
        found = [sample for sample in found if sample.kwargs.get("dtype") != torch.float64]
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("info", DATABASE, ids=lambda info: info.name)
def test_database(request: pytest.FixtureRequest, device: Any, info: Any, dtype: torch.dtype) -> None:
    if dtype == torch.bool and info.name in DIFFERENT:
        request.applymarker(pytest.mark.xfail(strict=True, reason="as without lists"))
    if dtype not in info.supported_dtypes("cpu"):
        pytest.skip(f"PyTorch lists no {dtype} for {info.name}")
    for sample in samples(info, dtype):
        for variant in (info.method_variant, info.inplace_variant):
            if variant is None:
                continue

            def run(on: Any, variant: Any = variant, sample: Any = sample) -> Any:
                lists = moved([sample.input, *sample.args], on)
                result = variant(lists[0], *lists[1:], **sample.kwargs)
                return result if result is not None and variant is info.method_variant else lists[0]

            error, expected = outcome(lambda run=run: run("cpu"))
            if error is NotImplementedError:
                continue  # the device may well have what the CPU lacks
            actual_error, actual = outcome(lambda run=run: run(device))
            assert (actual_error is None) == (error is None), (sample, error, actual_error)
            if error is None:
                same(list(actual), list(expected), dtype)


def test_a_list_is_one_operation(device: Any) -> None:
    a, b = lists(device, 0, 1)
    torch.webgpu.synchronize()
    torch._foreach_add_(a, b)
    assert pending() == 1
    torch._foreach_mul_(a, 2.0)
    roots = torch._foreach_sqrt(a)
    torch._foreach_div_(roots, [1.0, 2.0, 3.0])
    torch._foreach_addcdiv_(b, a, roots, [-1.0, -2.0, -3.0])
    assert pending() == 5
    x, y = lists("cpu", 0, 1)
    torch._foreach_add_(x, y)
    torch._foreach_mul_(x, 2.0)
    expected = torch._foreach_sqrt(x)
    torch._foreach_div_(expected, [1.0, 2.0, 3.0])
    torch._foreach_addcdiv_(y, x, expected, [-1.0, -2.0, -3.0])
    same(moved([a, b, list(roots)], "cpu"), [x, y, list(expected)], torch.float32)


@pytest.fixture
def dispatches(device: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The commands submitted from now on."""
    return commands_from_now_on(monkeypatch)


def test_operations_on_the_same_lists_are_one_pass(device: Any, dispatches: list[Any]) -> None:
    params, grads, means, squares = lists(device, 0, 1, 2, 3)
    torch.webgpu.synchronize()
    dispatches.clear()
    torch._foreach_lerp_(means, grads, 0.1)
    torch._foreach_mul_(squares, 0.99)
    torch._foreach_addcmul_(squares, grads, grads, 0.01)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, [0.1, 0.2, 0.3])
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(params, means, roots, [-0.1, -0.2, -0.3])
    del roots
    torch.webgpu.flush_batch()
    # Nobody can read the roots any more: they have no memory.
    assert sum(len(command.buffers) for command in dispatches) == 4 * 3
    assert len(dispatches) == -(-3 // min(3, engine().device(0).target.max_buffers // 4))


def test_numbers_are_not_in_the_code(device: Any, dispatches: list[Any]) -> None:
    (a,) = lists(device, 0)
    torch.webgpu.synchronize()
    dispatches.clear()
    for value in (2.0, 3.0, 4.5):
        torch._foreach_mul_(a, value)
        torch._foreach_add_(a, [value, value + 1, value + 2])
        torch.webgpu.flush_batch()
    (x,) = lists("cpu", 0)
    for value in (2.0, 3.0, 4.5):
        torch._foreach_mul_(x, value)
        torch._foreach_add_(x, [value, value + 1, value + 2])
    same(moved(a, "cpu"), x, torch.float32)


def test_sizes_are_not_in_the_code(device: Any, dispatches: list[Any]) -> None:
    for shapes in (((3,), (4, 5)), ((1000, 3), (1,)), ((2, 2, 2), (5000,))):
        (a,) = lists(device, 0, shapes=shapes)
        torch.webgpu.synchronize()
        dispatches.clear()
        torch._foreach_mul_(a, 2.0)
        torch.webgpu.flush_batch()
        (x,) = lists("cpu", 0, shapes=shapes)
        torch._foreach_mul_(x, 2.0)
        keys = {command.kernel.key for command in dispatches}
        assert len(keys) == 1
        same(moved(a, "cpu"), x, torch.float32)


def test_many_tensors_of_many_sizes(device: Any) -> None:
    shapes = [(n,) for n in (1, 2, 3, 4, 5, 1023, 1024, 1025, 4096, 5000, 1 << 20, (1 << 20) + 3)] * 4
    a, b = lists(device, 0, 1, shapes=shapes)
    torch._foreach_addcmul_(a, b, b, 0.5)
    x, y = lists("cpu", 0, 1, shapes=shapes)
    torch._foreach_addcmul_(x, y, y, 0.5)
    same(moved(a, "cpu"), x, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.int32], ids=str)
def test_last_words_are_kept(device: Any, dtype: torch.dtype) -> None:
    """A list's tensors may end inside a word, a group of four, and a larger storage."""
    stores = [torch.arange(n + 9).to(dtype).to(device) for n in (1, 5, 6, 1027)]
    views = [s[:n] for s, n in zip(stores, (1, 5, 6, 1027))]
    offset = [s[4 : 4 + n] for s, n in zip(stores, (1, 5, 6, 1027))]
    torch.webgpu.synchronize()
    torch._foreach_mul_(views, 3)
    assert pending() == 1
    torch._foreach_add_(offset, 1)
    expected = [torch.arange(n + 9).to(dtype) for n in (1, 5, 6, 1027)]
    torch._foreach_mul_([s[:n] for s, n in zip(expected, (1, 5, 6, 1027))], 3)
    torch._foreach_add_([s[4 : 4 + n] for s, n in zip(expected, (1, 5, 6, 1027))], 1)
    same(moved(stores, "cpu"), expected, dtype)


UNUSUAL: dict[str, Callable[[Any], Any]] = {
    "empty list": lambda d: torch._foreach_add([], 1.0),
    "tensors without elements": lambda d: torch._foreach_add([torch.ones(0, device=d), torch.ones(2, device=d)], 1.0),
    "numbers": lambda d: torch._foreach_mul([torch.tensor(2.0, device=d), torch.tensor(3.0, device=d)], 2.0),
    "different lengths": lambda d: torch._foreach_add([torch.ones(2, device=d)], [torch.ones(2, device=d)] * 2),
    "fewer numbers": lambda d: torch._foreach_add([torch.ones(2, device=d)] * 2, [1.0]),
    "different shapes": lambda d: torch._foreach_add([torch.ones(2, device=d)], [torch.ones(3, device=d)]),
    "broadcast": lambda d: torch._foreach_add([torch.ones(2, 1, device=d)], [torch.ones(3, device=d)]),
    "several dtypes": lambda d: torch._foreach_add([torch.ones(2, device=d), torch.ones(2, device=d).int()], 1.0),
    "two dtypes": lambda d: torch._foreach_mul([torch.ones(2, device=d).half()], [torch.ones(2, device=d)]),
    "into integers": lambda d: torch._foreach_add_([torch.ones(2, device=d).int()], 0.5),
    "into integers, a list": lambda d: torch._foreach_div_([torch.ones(2, device=d).int()], [2.0]),
    "complex": lambda d: torch._foreach_mul([torch.ones(2, device=d) * 1j], [2.0 + 1j]),
    "64-bit integers": lambda d: torch._foreach_mul([torch.ones(2, device=d).long() * (1 << 40)], 3),
    "booleans": lambda d: torch._foreach_add([torch.ones(2, device=d).bool()], [torch.ones(2, device=d).bool()]),
    "overlapping": lambda d: torch._foreach_add_([torch.ones(1, device=d).expand(3)], 1.0),
    "one twice": lambda d: (lambda t: (torch._foreach_add_([t, t], 1.0), t)[1])(torch.ones(3, device=d)),
    "views of one": lambda d: (lambda t: (torch._foreach_add_([t[:2], t[1:]], [1.0, 2.0]), t)[1])(
        torch.arange(3.0, device=d)
    ),
    "itself": lambda d: (lambda t: (torch._foreach_mul_([t], [t]), t)[1])(torch.arange(8.0, device=d)),
    "swapped": lambda d: (lambda t, u: (torch._foreach_add_([t, u], [u, t]), t, u)[1:])(
        torch.arange(8.0, device=d), torch.ones(8, device=d)
    ),
    "transposed": lambda d: torch._foreach_add([torch.arange(6.0, device=d).view(2, 3).t()], 1.0),
    "a transposed and a plain one": lambda d: torch._foreach_add(
        [torch.arange(6.0, device=d).view(2, 3).t()], [torch.arange(6.0, device=d).view(3, 2)]
    ),
    "sliced": lambda d: torch._foreach_add([torch.arange(12.0, device=d).view(3, 4)[:, ::2]], 1.0),
    "numbers of tensors": lambda d: torch._foreach_mul(
        [torch.ones(3, device=d), torch.ones(4, device=d)], [torch.tensor(2.0, device=d), torch.tensor(3.0, device=d)]
    ),
    "tensors into numbers": lambda d: torch._foreach_mul_([torch.tensor(2.0, device=d)], [torch.ones(3, device=d)]),
    "a number of several dimensions": lambda d: torch._foreach_mul(
        [torch.ones(3, device=d)], torch.tensor([[2.0]], device=d)
    ),
    "mixed dimensions": lambda d: torch._foreach_mul(
        [torch.ones(3, device=d).half(), torch.tensor(2.0, device=d).half()],
        [torch.tensor(2.0, device=d), torch.tensor(3.0, device=d)],
    ),
    "a shared number": lambda d: torch._foreach_mul(
        [torch.ones(3, device=d), torch.ones(4, device=d)], torch.tensor(2.0, device=d)
    ),
    "a shared CPU number": lambda d: torch._foreach_mul([torch.ones(3, device=d)], torch.tensor(2.0)),
    "a shared number is in the list": lambda d: (lambda t: (torch._foreach_mul_([t], t), t)[1])(
        torch.tensor(3.0, device=d)
    ),
    "one number for all": lambda d: torch._foreach_sub(
        [torch.ones(3, device=d), torch.ones(4, device=d)], [torch.tensor(2.0, device=d)] * 2
    ),
    "numbers in a tensor": lambda d: torch._foreach_addcmul(
        [torch.ones(3, device=d)] * 2, [torch.ones(3, device=d)] * 2, [torch.ones(3, device=d)] * 2,
        torch.tensor([2.0, 3.0]),
    ),
    "alpha": lambda d: torch._foreach_add([torch.ones(3, device=d)], [torch.ones(3, device=d)], alpha=2.5),
    "a default among numbers": lambda d: torch._foreach_addcdiv(
        [torch.ones(3, device=d), torch.ones(2, device=d)], [torch.ones(3, device=d), torch.ones(2, device=d)],
        [torch.ones(3, device=d), torch.ones(2, device=d)], [1.0, -0.5],
    ),
    "infinite numbers": lambda d: torch._foreach_mul(
        [torch.ones(3, device=d), torch.ones(2, device=d)], [float("inf"), float("nan")]
    ),
    "large numbers": lambda d: torch._foreach_addcmul(
        [torch.ones(3, device=d)], [torch.ones(3, device=d)], [torch.ones(3, device=d)], [1e300]
    ),
    "integers": lambda d: torch._foreach_add([torch.ones(3, device=d).int()] * 2, [1, 2]),
    "integers that wrap": lambda d: torch._foreach_mul([torch.ones(3, device=d).int()], (1 << 32) + 5),
    "powers": lambda d: torch._foreach_pow([torch.full((3,), 3.0, device=d)] * 2, [2, 0.5]),
    "powers of a number": lambda d: torch._foreach_pow(0.9, [torch.tensor(3.0, device=d), torch.tensor(4.0, device=d)]),
    "negated": lambda d: torch._foreach_add([(torch.ones(3, device=d) * 1j).conj().imag], 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_lists(device: Any, name: str) -> None:
    error, expected = outcome(lambda: UNUSUAL[name]("cpu"))
    actual_error, actual = outcome(lambda: UNUSUAL[name](device))
    assert actual_error is error, (actual_error, error)
    if error is None:
        torch.testing.assert_close(actual, expected, equal_nan=True)


def test_other_shapes_at_the_same_addresses(device: Any) -> None:
    """Metadata that changes in place is noticed, though the addresses are the same."""
    stores = [torch.arange(6.0, device=device), torch.arange(12.0, device=device)]
    assert [t.shape for t in torch._foreach_add(stores, 1.0)] == [(6,), (12,)]
    views = [s.view(2, -1) for s in stores]
    assert [t.shape for t in torch._foreach_add(views, 1.0)] == [(2, 3), (2, 6)]
    for view in views:
        view.t_()
    assert [t.shape for t in torch._foreach_add(views, 1.0)] == [(3, 2), (6, 2)]
    other = [torch.ones(3, 2, device=device), torch.ones(6, 2, device=device)]
    actual = torch._foreach_mul(other, views)
    expected = [torch.arange(6.0).view(2, -1).t(), torch.arange(12.0).view(2, -1).t()]
    torch.testing.assert_close(moved(list(actual), "cpu"), expected)
    bits = [s.view(torch.int32) for s in stores]
    assert [t.dtype for t in torch._foreach_add(bits, 1)] == [torch.int32] * 2
    stores[0].resize_(4)
    assert [t.shape for t in torch._foreach_add(stores, 1.0)] == [(4,), (12,)]
    stores[1].data = torch.ones(3, device=device)
    torch.testing.assert_close(
        moved(list(torch._foreach_add(stores, 1.0)), "cpu"), [torch.arange(4.0) + 1, torch.ones(3) + 1]
    )


def test_versions_are_counted(device: Any) -> None:
    (a,) = lists(device, 0)
    before = [t._version for t in a]
    torch._foreach_mul_(a, 2.0)
    assert [t._version for t in a] == [v + 1 for v in before]
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 2
    z = y.exp()
    torch._foreach_add_([z], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.parametrize("name", ["mul", "addcdiv", "sqrt", "lerp", "numbers"])
def test_gradients(device: Any, name: str) -> None:
    def run(on: Any) -> Any:
        a, b, c = ([t.requires_grad_() for t in ts] for ts in lists(on, 0, 1, 2))
        made = {
            "mul": lambda: torch._foreach_mul(a, b),
            "addcdiv": lambda: torch._foreach_addcdiv(a, b, c, [1.0, 2.0, 3.0]),
            "sqrt": lambda: torch._foreach_sqrt(a),
            "lerp": lambda: torch._foreach_lerp(a, b, 0.3),
            "numbers": lambda: torch._foreach_div(torch._foreach_mul(a, [1.0, 2.0, 3.0]), 7.0),
        }[name]()
        total = sum(t.square().sum() for t in made)
        return moved(list(torch.autograd.grad(total, [*a, *b, *c], allow_unused=True)), "cpu")

    same(run(device), run("cpu"), torch.float32)


def test_lists_in_the_order_of_the_program(device: Any) -> None:
    """Ordinary operations before, between and after see each other's results."""

    def run(on: Any) -> Any:
        a, b = lists(on, 0, 1)
        a[0].add_(1)
        torch._foreach_mul_(a, b)
        seen = a[1] * 2
        torch._foreach_add_(b, a)
        b[2].zero_()
        torch._foreach_add_(a, b)
        a[1].copy_(torch.full((7,), 5.0))
        torch._foreach_mul_(a, 3.0)
        number = a[0].sum().item()
        return moved([*a, *b, seen, torch.tensor(number)], "cpu")

    same(run(device), run("cpu"), torch.float32)


def test_memory_of_lists_that_die_before_they_run(device: Any) -> None:
    a, b = lists(device, 0, 1)
    torch._foreach_add_(a, b)
    del b
    torch.webgpu.empty_cache()
    others = [torch.full(t.shape, 9.0, device=device) for t in a]
    x, y = lists("cpu", 0, 1)
    torch._foreach_add_(x, y)
    same(moved(a, "cpu"), x, torch.float32)
    assert all(bool((t == 9).all()) for t in others)


@pytest.mark.parametrize("controls", ["no fusion", "no batching", "window"])
def test_controls(device: Any, controls: str) -> None:
    from torch_webgpu.engine.record import engine

    window = engine().settings.fusion_window
    try:
        if controls == "no fusion":
            torch.webgpu.disable_fusion()
        elif controls == "no batching":
            torch.webgpu.disable_batching()
        else:
            torch.webgpu.set_fusion_window(0)
        a, b = lists(device, 0, 1)
        torch._foreach_add_(a, b)
        torch._foreach_mul_(a, 2.0)
        roots = torch._foreach_sqrt(a)
        actual = moved([*a, *roots], "cpu")
    finally:
        torch.webgpu.enable_fusion()
        torch.webgpu.enable_batching()
        torch.webgpu.set_fusion_window(window)
    x, y = lists("cpu", 0, 1)
    torch._foreach_add_(x, y)
    torch._foreach_mul_(x, 2.0)
    same(actual, [*x, *torch._foreach_sqrt(x)], torch.float32)


# Random programs


STEPS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b, c: torch._foreach_add_(a, b, alpha=0.5),
    "mul": lambda a, b, c: torch._foreach_mul_(a, 0.75),
    "lerp": lambda a, b, c: torch._foreach_lerp_(a, b, 0.25),
    "addcmul": lambda a, b, c: torch._foreach_addcmul_(a, b, c, 0.125),
    "numbers": lambda a, b, c: torch._foreach_add_(a, [0.5, -0.25, 0.125]),
    "clamp": lambda a, b, c: torch._foreach_clamp_max_(a, 3.0),
    "first number": lambda a, b, c: torch._foreach_add_(a, b[0].flatten()[0]),
    "ordinary": lambda a, b, c: a[1].mul_(0.5).add_(b[1]),
    "one element": lambda a, b, c: a[0].flatten()[2:4].add_(1),
    "upload": lambda a, b, c: a[2].copy_(torch.full(a[2].shape, 0.25)),
    "copies": lambda a, b, c: [t.copy_(u) for t, u in zip(a, b)],
}
MAKE: dict[str, Callable[..., Any]] = {
    "new sum": lambda a, b: torch._foreach_add(a, b),
    "new abs": lambda a, b: torch._foreach_abs(a),
    "views": lambda a, b: [t.flatten() for t in a],
    "reversed": lambda a, b: [*a[:0], a[1], a[0], a[2]],
    "halves": lambda a, b: [a[0], b[1], a[2]],
    "clones": lambda a, b: [t.clone() for t in a],
    "read": lambda a, b: [a[0].cpu().clone().to(a[0].device), a[1], a[2]],
}
LISTS = st.integers(0, 2)
PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(sorted(STEPS)), LISTS, LISTS, LISTS),
        st.tuples(st.sampled_from(sorted(MAKE)), LISTS, LISTS, LISTS),
    ),
    min_size=1,
    max_size=14,
)


def execute(program: Sequence[tuple[str, int, int, int]], device: Any) -> Any:
    # One shape, so that any list's tensors go with any other's.
    held: list[Any] = lists(device, 0, 1, 2, shapes=((2, 6), (2, 6), (2, 6)))
    for name, i, j, k in program:
        a, b, c = held[i], held[j], held[k]
        if name in STEPS:
            if {t.shape for t in a} != {t.shape for t in (*b, *c)}:
                continue  # flattened against not
            STEPS[name](a, b, c)
        elif {t.shape for t in a} == {t.shape for t in b}:
            held[k] = list(MAKE[name](a, b))
    return moved(held, "cpu")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=PROGRAMS)
def test_random_programs(device: Any, program: Any) -> None:
    torch.testing.assert_close(execute(program, device), execute(program, "cpu"), rtol=1e-5, atol=1e-5)


def test_a_list_at_addresses_that_were_others_is_looked_at_again(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the numbers of allocations have begun again, an address can be that of another tensor."""
    mailbox = engine().mailbox
    first = mailbox.mark

    def step() -> list[float]:
        tensors = [torch.full((4,), float(k), device=device) for k in range(3)]
        torch._foreach_mul_(tensors, 2.0)
        return [t[0].item() for t in tensors]

    assert step() == [0, 2, 4]
    torch.webgpu.synchronize()
    monkeypatch.setattr(mailbox, "mark", first)
    monkeypatch.setattr(mailbox, "rounds", 1)
    assert step() == [0, 2, 4]
