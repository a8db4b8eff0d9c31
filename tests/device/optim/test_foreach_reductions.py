"""``_foreach_norm``, ``_foreach_powsum``, ``_foreach_max`` and what is made of them: against the CPU, and how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

from torch_webgpu.aten.foreach import foreach_reductions
from torch_webgpu.compiler.lower import multi_tensor_reduction as list_reduction
from torch_webgpu.engine.record import engine

from .foreach_lists import commands_from_now_on

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = ((3,), (), (0,), (7, 5), (1030,), (33, 65), (20_000,), *((n,) for n in range(1, 40)))
SUMS = tuple([getattr(torch, name) for name in ("_foreach_norm", "_foreach_powsum") if hasattr(torch, name)])
INFINITY = float("inf")


def at_most(dispatches: int) -> int:
    """For so many where a kernel binds 31 buffers. With fewer there are more dispatches; some bind the same in each."""
    shared = 8
    return dispatches * (31 - shared) // max(3, min(31, engine().device(0).target.max_buffers) - shared)


def numbers(dtype: torch.dtype, shapes: Sequence[tuple[int, ...]] = SHAPES, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def close(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == b.shape
        assert a.stride() == b.stride()
        tolerance = {torch.float32: 3e-5, torch.float16: 2e-3}.get(b.dtype, 1.6e-2)
        torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=1e-6, equal_nan=True)


@pytest.fixture
def launched(device: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The commands submitted from now on; none of them by a fallback."""
    return commands_from_now_on(monkeypatch)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("ord", [0, 1, 2, 3, 0.5, 2.75])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("operator", SUMS)
def test_sums(device: Any, operator: Callable[..., Any], dtype: torch.dtype, ord: float, wide: bool) -> None:
    if operator is not torch._foreach_norm and dtype != torch.float32 and not wide:
        pytest.skip("sums that the half types cannot hold")
    tensors = numbers(dtype)
    kwargs = {"dtype": torch.float32} if wide else {}
    close(operator([t.to(device) for t in tensors], ord, **kwargs), operator(tensors, ord, **kwargs))


@pytest.mark.parametrize("ord", [INFINITY, -INFINITY, -1.5])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_orders_without_a_value_for_nothing(device: Any, dtype: torch.dtype, ord: float) -> None:
    tensors = [t for t in numbers(dtype) if t.numel()]
    close(torch._foreach_norm([t.to(device) for t in tensors], ord), torch._foreach_norm(tensors, ord))
    with pytest.raises(RuntimeError, match="empty tensor"):
        torch._foreach_norm([t.to(device) for t in numbers(dtype)], ord)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int8, torch.uint8, torch.int16, torch.int64, torch.bool])
def test_max(device: Any, dtype: torch.dtype) -> None:
    shapes = [s for s in SHAPES if 0 not in s]
    if dtype.is_floating_point:
        tensors = numbers(dtype, shapes)
        tensors[3].view(-1)[4] = float("nan")
        tensors[4][:] = -INFINITY
    else:
        low, high = (0, 2) if dtype == torch.bool else (torch.iinfo(dtype).min, -1 if dtype.is_signed else 200)
        tensors = [torch.randint(low, high, shape).to(dtype) for shape in shapes]
    for a, b in zip(torch._foreach_max([t.to(device) for t in tensors]), torch._foreach_max(tensors), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == ()
        torch.testing.assert_close(a.cpu(), b, rtol=0, atol=0, equal_nan=True)


def test_special_values(device: Any) -> None:
    tensors = [torch.tensor(v) for v in ([INFINITY, 1.0], [float("nan"), 1.0], [-INFINITY], [0.0, -0.0], [1e-30])]
    for ord in (0, 1, 2, 3, INFINITY, -INFINITY):
        close(torch._foreach_norm([t.to(device) for t in tensors], ord), torch._foreach_norm(tensors, ord))


def views(device: Any) -> list[torch.Tensor]:
    """Of one storage, at odd places, with gaps, transposed, expanded."""
    base = torch.arange(4000, dtype=torch.float32).sub(1000).to(device)
    square = base[:3600].view(60, 60)
    return [
        base[1:], base[3:5], base[7:3999], base[::3], square.t(), square[:, 1:], square[5],
        base[2:3].expand(9), square.view(6, 10, 60).permute(2, 0, 1), base[:0],
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_views(device: Any, dtype: torch.dtype) -> None:
    on_device = [t.to(dtype) if k % 2 else t.clone().to(dtype)[...] for k, t in enumerate(views(device))]
    base = torch.cat([t.reshape(-1) for t in views("cpu")]).to(dtype).to(device)
    on_device += [base[k : k + 50 * k] for k in range(1, 9)]
    expected = [t.cpu() for t in on_device]
    for ord in (1, 2, 3):
        wide = {"dtype": torch.float32}
        close(torch._foreach_norm(on_device, ord, **wide), torch._foreach_norm(expected, ord, **wide))
    close(torch._foreach_norm(views(device)), torch._foreach_norm(views("cpu")))


def test_large_tensors_in_pieces(device: Any, launched: list[Any]) -> None:
    sizes = (5, list_reduction.ALONE_NUMEL + 3, 77, 3 * list_reduction.PIECE + 1, list_reduction.ALONE_NUMEL)
    tensors = numbers(torch.float32, [(n,) for n in sizes])
    on_device = [t.to(device) for t in tensors]
    shifted = torch.cat([torch.full((3,), 1e6), tensors[1]]).to(device)[3:]  # and begins inside a group of four
    torch.webgpu.synchronize()
    launched.clear()
    norms = torch._foreach_norm([*on_device, shifted])
    torch.webgpu.flush_batch()
    # The first, then the second alone, two together, two alone; and the results.
    assert len(launched) == 6
    assert max(x * y * z for *_, (x, y, z) in launched) > 60
    expected = [t.double().norm().float() for t in (*tensors, tensors[1])]
    close(norms, expected)
    close(torch._foreach_max(on_device), torch._foreach_max(tensors))


def test_many_pieces(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More pieces than a tensor may have make them longer, and a grid of several rows finds them all."""
    monkeypatch.setattr(list_reduction, "MOST_PIECES", 2)
    tensors = numbers(torch.float32, [(100_000,), (9,), (70_001,)], seed=3)
    close(torch._foreach_norm([t.to(device) for t in tensors], 1), torch._foreach_norm(tensors, 1))


def test_dispatches(device: Any, launched: list[Any]) -> None:
    tensors = [t.to(device) for t in numbers(torch.float32, [(n,) for n in range(1, 201)])]
    fallbacks = dict(torch.webgpu.fallback_stats())
    torch.webgpu.synchronize()
    for operator in (*SUMS, torch._foreach_max):
        launched.clear()
        results = operator(tensors)
        torch.webgpu.flush_batch()
        assert len(launched) <= at_most(16), operator
    launched.clear()
    together = torch.stack(results)
    torch.webgpu.flush_batch()
    assert len(launched) <= at_most(8)
    assert torch.equal(together.cpu(), torch.stack([t.cpu().max() for t in tensors]))
    assert torch.webgpu.fallback_stats() == fallbacks


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int8, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("count", [1, 7, 8, 29, 100])
def test_stack_of_numbers(device: Any, dtype: torch.dtype, count: int) -> None:
    base = torch.randint(0, 2, (count + 3,)).to(dtype)
    on_device = base.to(device)
    picks = [(7 * k) % (count + 3) for k in range(count)]
    stacked = torch.stack([on_device[k] for k in picks])
    assert stacked.dtype == dtype
    assert torch.equal(stacked.cpu(), base[picks])
    for dim in (-1, 0):
        assert torch.stack([on_device[k] for k in picks], dim).shape == (count,)
    with pytest.raises(IndexError):
        torch.stack([on_device[k] for k in picks], 1)


def test_few_operations_are_kept(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = foreach_reductions.collection
    assert collection.cache_info().maxsize == foreach_reductions.CACHE_SIZE  # type: ignore[attr-defined]
    few = lru_cache(4)(collection.__wrapped__)  # type: ignore[attr-defined]
    monkeypatch.setattr(foreach_reductions, "collection", few)
    numbers = [torch.tensor(float(k), device=device) for k in range(40)]
    for count in range(20, 40):
        assert torch.stack(numbers[:count])[-1].item() == count - 1
    assert few.cache_info().currsize == 4


def test_stack_promotes_and_has_gradients(device: Any) -> None:
    leaves = [torch.tensor(float(k), device=device, requires_grad=True) for k in range(20)]
    (torch.stack(leaves) * torch.arange(20.0, device=device)).sum().backward()
    assert [leaf.grad.item() for leaf in leaves] == list(range(20))  # type: ignore[union-attr]
    mixed = [torch.tensor(k, device=device) if k % 2 else torch.tensor(k + 0.5, device=device) for k in range(20)]
    expected = torch.stack([t.cpu() for t in mixed])
    assert torch.equal(torch.stack(mixed).cpu(), expected)


@pytest.mark.parametrize("ord", [1, 2, 3, INFINITY])
def test_gradients(device: Any, ord: float) -> None:
    shapes = [(3,), (4, 5), (), (700,)]
    grads = []
    for where in (device, "cpu"):
        leaves = [t.to(where).requires_grad_() for t in numbers(torch.float32, shapes)]
        loss = sum(k * n for k, n in enumerate(torch._foreach_norm(leaves, ord), 1))
        grads.append(torch.autograd.grad(loss, leaves))  # type: ignore[arg-type]
    close(*grads)


def test_wrong_arguments(device: Any) -> None:
    tensors = [torch.ones(3, device=device), torch.ones(2, device=device)]
    for wrong in ([t.int() for t in tensors], [t.bool() for t in tensors]):
        with pytest.raises(RuntimeError, match="Expected a floating point or complex"):
            torch._foreach_norm(wrong)
    for ord in (True, 2j):
        with pytest.raises(RuntimeError, match="integer or float"):
            torch._foreach_norm(tensors, ord)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="without narrowing"):
        torch._foreach_norm(tensors, 2, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError):
        torch._foreach_max([torch.empty(0, device=device), *tensors])
    mixed = [torch.ones(3, device=device), torch.ones(2, device=device).half(), torch.ones(1, device=device)]
    assert [t.dtype for t in torch._foreach_norm(mixed)] == [torch.float32, torch.float16, torch.float32]
    assert torch._foreach_norm([torch.ones(2, dtype=torch.complex64, device=device)])[0].item() == pytest.approx(2**0.5)


def model(device: Any) -> list[torch.nn.Parameter]:
    shapes = [*((n % 50 + 1, 8) for n in range(90)), *((n,) for n in range(1, 91)), *[(60, 70)] * 20]
    params = [torch.nn.Parameter(t.to(device)) for t in numbers(torch.float32, shapes)]
    for p, g in zip(params, numbers(torch.float32, shapes, seed=1), strict=True):
        p.grad = g.to(device)
    return params


@pytest.mark.parametrize("ord", [1.0, 2.0, 3.0, INFINITY])
def test_clip_grad_norm(device: Any, launched: list[Any], ord: float) -> None:
    params, expected = model(device), model("cpu")
    fallbacks = dict(torch.webgpu.fallback_stats())
    torch.webgpu.synchronize()
    launched.clear()
    total = clip_grad_norm_(params, 0.5, ord)
    torch.webgpu.flush_batch()
    # Pieces, results, their collection, the products: eight or so each for 200 tensors and 31 buffers; few others.
    assert len(launched) <= at_most(50)
    assert torch.webgpu.fallback_stats() == fallbacks
    close([total], [clip_grad_norm_(expected, 0.5, ord)])
    close([p.grad for p in params], [p.grad for p in expected])  # type: ignore[misc]
    close([get_total_norm(params, ord)], [get_total_norm(expected, ord).detach()])


def test_clip_grad_value(device: Any) -> None:
    params, expected = model(device), model("cpu")
    clip_grad_value_(params, 0.25)
    clip_grad_value_(expected, 0.25)
    close([p.grad for p in params], [p.grad for p in expected])  # type: ignore[misc]
