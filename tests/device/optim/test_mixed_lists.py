"""Operators over lists among those over tensors: one batch, one plan, whatever they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_webgpu.engine.record import engine
from torch_webgpu.plan import Plan, bind, trace, verify

from .foreach_lists import lists, moved, outcome, same

webgpu = torch.webgpu


@pytest.fixture(autouse=True)
def by_hand(device: Any) -> Iterator[None]:
    """No timer cuts a batch."""
    settings = engine().settings
    webgpu.set_batch_delay(0)
    yield
    webgpu.set_batch_delay(settings.delay_ms)


def batches(work: Callable[[], Any]) -> int:
    """How many submissions a function and the synchronization after it make."""
    webgpu.synchronize()
    before = webgpu.memory_stats().submissions
    work()
    webgpu.synchronize()
    return webgpu.memory_stats().submissions - before


def alternating(a: Sequence[torch.Tensor], x: torch.Tensor) -> None:
    for k in range(10):
        torch._foreach_mul_(a, 1.0 + k / 10)
        x.add_(k)


def test_lists_and_tensors_by_turns_are_one_batch(device: Any) -> None:
    (a,), x = lists(device, 0), torch.zeros(5, device=device)
    assert batches(lambda: alternating(a, x)) == 1
    (b,), y = lists("cpu", 0), torch.zeros(5)
    alternating(b, y)
    same(moved([*a, x], "cpu"), [*b, y], torch.float32)


def test_also_where_they_share_memory(device: Any) -> None:
    def work(a: Sequence[torch.Tensor]) -> None:
        alternating(a, a[1])

    (a,), (b,) = lists(device, 0), lists("cpu", 0)
    assert batches(lambda: work(a)) == 1
    work(b)
    same(moved(a, "cpu"), b, torch.float32)


def test_lists_with_tensors_in_common_are_one_batch(device: Any) -> None:
    def work(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
        torch._foreach_add_(a[:2], 1.0)
        torch._foreach_mul_(a[1:], 2.0)
        torch._foreach_add_(b, a)
        torch._foreach_sub_([a[0], b[1]], 3.0)
        torch._foreach_mul_(a, b)

    shapes = ((2, 6),) * 3
    a, b = lists(device, 0, 1, shapes=shapes)
    assert batches(lambda: work(a, b)) == 1
    x, y = lists("cpu", 0, 1, shapes=shapes)
    work(x, y)
    same(moved([*a, *b], "cpu"), [*x, *y], torch.float32)


def test_a_clipped_step_is_one_batch(device: Any) -> None:
    """Gradients made by ordinary operations, their norm, and the step that reads them."""

    def work(params: list[torch.Tensor]) -> None:
        for p in params:
            p.grad = p.detach() * 2
        torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=True).step()

    a, b = ([t.requires_grad_() for t in lists(on, 0)[0]] for on in (device, "cpu"))
    assert batches(lambda: work(a)) == 1
    work(b)
    same(moved([*a, *(p.grad for p in a)], "cpu"), [*b, *(p.grad for p in b)], torch.float32)


def test_steps_over_lists_join_across_other_operations(device: Any) -> None:
    def work(a: list[torch.Tensor], x: torch.Tensor) -> None:
        torch._foreach_add_(a, 1.0)
        torch.sort(x)
        torch._foreach_mul_(a, 2.0)

    (a,), x = lists(device, 0), torch.rand(5, device=device)
    explained = webgpu.explain(work, a, x)
    names = [kernel.name for kernel in explained.kernels]
    assert "_foreach_add_+_foreach_mul_" in names


def test_explanations_name_lists(device: Any) -> None:
    def work(a: list[torch.Tensor], b: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_(a, b)
        roots = torch._foreach_sqrt(a)
        torch._foreach_mul_(a, 2.0)
        del roots
        return x + a[0].sum()

    a, b = lists(device, 0, 1)
    x = torch.ones(4, device=device)
    webgpu.synchronize()
    explained = webgpu.explain(work, a, b, x)
    (flush,) = explained.flushes
    assert [op.name for op in flush.operations] == ["_foreach_add_", "_foreach_sqrt", "_foreach_mul_", "sum", "add"]
    assert flush.operations[0].inputs == ("3 × f32, 1052 elements",) * 2
    assert flush.eliminated == [1]
    first, *_ = flush.kernels
    assert first.operations == (0, 2)
    assert first.dispatches == (first.name,) == ("_foreach_add_+_foreach_sqrt+_foreach_mul_",)
    assert "_foreach_add_(3 × f32, 1052 elements, 3 × f32, 1052 elements)" in str(explained)


def test_profiles_name_lists(device: Any) -> None:
    a, b = lists(device, 0, 1)
    with webgpu.profile() as profiled:
        torch._foreach_add_(a, b)
    (event,) = profiled.events
    assert event.operation == "_foreach_add_"
    assert event.size_bytes == 3 * 1052 * 4
    assert "_foreach_add_" in profiled.table()


def test_lists_are_counted_among_what_fuses(device: Any) -> None:
    (a,) = lists(device, 0)
    webgpu.synchronize()
    before = engine().plans.fusions
    torch._foreach_add_(a, 1.0)
    torch._foreach_mul_(a, 2.0)
    webgpu.synchronize()
    assert engine().plans.fusions == before + 2


# Traced


def step(params: list[torch.Tensor], grads: list[torch.Tensor], firsts: list[torch.Tensor]) -> Any:
    torch._foreach_lerp_(firsts, grads, 0.1)
    roots = torch._foreach_sqrt(torch._foreach_abs(firsts))
    torch._foreach_add_(roots, 0.5)
    torch._foreach_addcdiv_(params, firsts, roots, [-0.1, -0.2, -0.3])
    return params[0] + 1, [t * 2 for t in params], roots[1]


def flat(fn: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A function of three lists as one of their tensors."""
    return lambda *tensors: fn(*(list(tensors[k : k + count]) for k in range(0, 3 * count, count)))


def test_operations_over_lists_are_traced(device: Any) -> None:
    given = [t for ts in lists(device, 0, 1, 2) for t in ts]
    plan = trace(flat(step, 3), *given)
    assert not verify(plan)
    assert Plan.from_json(plan.to_json(), trusted=True) == plan
    assert plan == trace(flat(step, 3), *(t.to("meta") for t in given))
    names = [plan.kernels[s.kernel].name for s in plan.steps]
    assert any(name.startswith("_foreach_lerp_") for name in names)
    expected_tensors = [t for ts in lists("cpu", 0, 1, 2) for t in ts]
    result, expected = bind(plan)(*given), flat(step, 3)(*expected_tensors)
    same(moved([result, given], "cpu"), moved([expected, expected_tensors], "cpu"), torch.float32)


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_optimizers_over_lists_are_traced(device: Any, how: str) -> None:
    from torch.optim.adamw import adamw

    def update(params: list[torch.Tensor], grads: list[torch.Tensor], firsts: list[torch.Tensor]) -> Any:
        seconds = [g * g for g in grads]
        steps = [torch.ones((), device=params[0].device if how == "fused" else "cpu") for _ in params]
        with torch.no_grad():
            adamw(
                params, grads, firsts, seconds, [], steps, **{how: True}, amsgrad=False, beta1=0.9, beta2=0.99,
                lr=0.1, weight_decay=0.01, eps=1e-8, maximize=False,
            )  # fmt: skip
        return seconds[0]

    given = [t for ts in lists(device, 0, 1, 2) for t in ts]
    expected_tensors = [t for ts in lists("cpu", 0, 1, 2) for t in ts]
    plan = trace(flat(update, 3), *given)
    assert not verify(plan)
    result, expected = bind(plan)(*given), flat(update, 3)(*expected_tensors)
    same(moved([result, given], "cpu"), moved([expected, expected_tensors], "cpu"), torch.float32)


# Errors


def test_an_error_is_that_of_the_list_it_happened_in(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_webgpu.compiler.lower import multi_tensor as horizontal

    def fails(*args: Any) -> Any:
        raise RuntimeError("no kernel today")

    a, b = lists(device, 0, 1)
    x = torch.ones(4, device=device)
    webgpu.synchronize()
    monkeypatch.setattr(horizontal, "build_horizontal", fails)
    made = torch._foreach_add(a, b, alpha=0.123)
    x.add_(1)
    error, _ = outcome(webgpu.synchronize)
    monkeypatch.undo()
    assert error is RuntimeError
    assert x.tolist() == [2.0] * 4
    with pytest.raises(RuntimeError, match="no kernel today"):
        made[1].cpu()
    same(moved(a, "cpu"), lists("cpu", 0)[0], torch.float32)  # it had a value before


# Random programs

Held = list[list[torch.Tensor]]


def _step(params: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
    for p, g in zip(params, grads):
        p.grad = g.clone()
    torch.optim.Adam(params, lr=0.125, foreach=True).step()
    for p in params:
        p.grad = None


STEPS: dict[str, Callable[[list[torch.Tensor], list[torch.Tensor]], Any]] = {
    "add a list": lambda a, b: torch._foreach_add_(a, b, alpha=0.5),
    "numbers": lambda a, b: torch._foreach_mul_(a, [0.5, 1.5, 0.75, 1.25][: len(a)]),
    "a tensor for all": lambda a, b: torch._foreach_mul_(a, b[0].flatten()[0].clone()),
    "the largest": lambda a, b: torch._foreach_clamp_max_(a, torch.stack(torch._foreach_norm(b)).max().item()),
    "norms": lambda a, b: torch._foreach_mul_(a, 1 / (1 + torch.stack(torch._foreach_norm(b)).norm())),
    "first": lambda a, b: a[0].mul_(0.5).add_(b[-1]),
    "last": lambda a, b: a[-1].copy_(b[0] + 1),
    "part": lambda a, b: a[0].flatten()[1:5].add_(b[-1].flatten()[2:6].clone()),
    "every": lambda a, b: [t.add_(u) for t, u in zip(a, b)],
    "product": lambda a, b: a[0].copy_(a[0] @ b[-1].t() @ b[0]),
    "optimizer": _step,
}
MAKE: dict[str, Callable[[list[torch.Tensor], list[torch.Tensor]], list[torch.Tensor]]] = {
    "new list": lambda a, b: list(torch._foreach_add(a, b)),
    "new root": lambda a, b: list(torch._foreach_sqrt(torch._foreach_abs(a))),
    "new tensors": lambda a, b: [t * 0.5 for t in a],
    "reversed": lambda a, b: a[::-1],
    "mixed": lambda a, b: [t if k % 2 else u for k, (t, u) in enumerate(zip(a, b))],
    "shorter": lambda a, b: a[:2],
    "one": lambda a, b: b[:1],
    "views": lambda a, b: list(torch.cat([t.reshape(-1) for t in a]).view(len(a), 2, 6).unbind()),
    "one tensor often": lambda a, b: [a[0]] * 2,
}
PLACES = st.integers(0, 2)
PROGRAMS = st.lists(st.tuples(st.sampled_from(sorted({**STEPS, **MAKE})), PLACES, PLACES), min_size=2, max_size=16)


def run(program: Sequence[tuple[str, int, int]], device: Any) -> Any:
    held: Held = lists(device, 0, 1, 2, shapes=((2, 6),) * 4)
    for name, i, j in program:
        n = min(len(held[i]), len(held[j]))
        a, b = held[i][:n], held[j][:n]
        if name in MAKE:
            held[j] = MAKE[name](a, b)
        elif len({t.data_ptr() for t in a}) == n:  # the order of writes to one tensor is not PyTorch's to tell
            STEPS[name](a, b)
    return moved(held, "cpu")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=PROGRAMS)
def test_random_programs(device: Any, program: Any) -> None:
    torch.testing.assert_close(run(program, device), run(program, "cpu"), rtol=1e-4, atol=1e-4, equal_nan=True)
