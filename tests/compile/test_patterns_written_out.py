"""Attention that programs compose of products and a softmax: the attention kernels, with the program's results."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from tests.compile.plans import dispatches, plans, with_and_without_patterns
from torch import Tensor, nn

Program = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
FOUND = {"written out": 1, "heads side by side": 1}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
LOWEST = float("-inf")


def min_gpt(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / sqrt(k.size(-1)))
    return F.softmax(scores.masked_fill(seen == 0, LOWEST), dim=-1) @ v


def gpt2(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2))
    scores = scores / torch.full([], v.size(-1) ** 0.5, dtype=scores.dtype, device=scores.device)
    lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
    return torch.matmul(F.softmax(torch.where(seen, scores, lowest), dim=-1).type(v.dtype), v)


def bert(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    mask = (1.0 - seen.to(q.dtype)) * torch.finfo(q.dtype).min
    scores = torch.matmul(q, k.transpose(-1, -2)) / sqrt(q.size(-1)) + mask
    return torch.matmul(F.dropout(F.softmax(scores, dim=-1), 0.1, training=False), v)


def t5(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(3, 2))
    scores += torch.where(seen, seen.to(q.dtype).cumsum(-1) / 8, torch.finfo(q.dtype).min)
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)


def vit(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    return ((q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)).softmax(dim=-1) @ v


def transformers(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    mask = torch.where(seen, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
    weights = torch.matmul(q, k.transpose(2, 3)) * 0.3 + mask
    return torch.matmul(F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype), v)


def in_float32(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    scores = (q @ k.mT / 3).float().masked_fill(~seen, -1e9)
    return scores.softmax(-1).to(v.dtype) @ v


PROGRAMS: dict[str, Program] = {f.__name__: f for f in (min_gpt, gpt2, bert, t5, vit, transformers, in_float32)}


def merged(program: Program) -> Program:
    """Up to where the next product takes it: the heads of a token side by side."""
    return lambda *args: program(*args).transpose(1, 2).contiguous().flatten(2)


def heads(b: int, h: int, n: int, s: int, dtype: torch.dtype = torch.float32, e: int = 8) -> list[Tensor]:
    """Queries, keys and values as a projection gives them, on webgpu: the heads of a token are neighbours."""
    return [torch.randn(b, m, h, e).to("webgpu", dtype).transpose(1, 2) for m in (n, s, s)]


def compare(f: Callable[..., Tensor], *inputs: Tensor, tolerance: float = 1e-5, **options: bool) -> None:
    """Compiled as eagerly, and as on the CPU in the same dtype."""
    with torch.no_grad():
        want, on_cpu = f(*inputs), f(*(t.cpu() for t in inputs))
        got = torch.compile(f, fullgraph=True, **options)(*inputs)
    assert (got.stride(), got.dtype) == (want.stride(), want.dtype)
    for expected in (want.cpu(), on_cpu):
        torch.testing.assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5, 9), (1, 2, 1, 700), (2, 3, 33, 35)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, shape: tuple[int, ...], dtype: torch.dtype, found: dict[str, int]) -> None:
    b, _, n, s = shape
    seen = torch.rand(b, 1, n, s, device="webgpu") > 0.3
    seen[0, 0, 0] = False  # for such a query programs differ: NaN, or all keys alike
    f = PROGRAMS[name] if n == 1 else merged(PROGRAMS[name])
    compare(f, *heads(*shape, dtype), seen, tolerance=TOLERANCE[dtype])
    assert found == (FOUND if n > 1 else {"written out": 1})


class Attention(nn.Module):
    """As in minGPT; ``heads`` = 1 without a dimension for them, as in lectures."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(24, 72), nn.Linear(24, 24), heads
        self.seen: Tensor
        self.register_buffer("seen", torch.tril(torch.ones(64, 64)))

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        split = self.qkv(x).split(c, dim=2)
        if self.heads == 1:
            q, k, v = split
        else:
            q, k, v = (t.view(b, n, self.heads, c // self.heads).transpose(1, 2) for t in split)
        scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        weights = F.softmax(scores.masked_fill(self.seen[:n, :n] == 0, LOWEST), dim=-1)
        y = F.dropout(weights, 0.2, self.training) @ v
        return self.out(y if self.heads == 1 else y.transpose(1, 2).contiguous().view(b, n, c))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("n", [6, 40])
def test_a_module(count: int, n: int, found: dict[str, int]) -> None:
    x, steps = torch.randn(1, n, 24), []
    module = Attention(count).eval()
    with torch.no_grad():
        expected = module(x)
        module.to("webgpu")
        for got, made in with_and_without_patterns(lambda: torch.compile(module, fullgraph=True)(x.to("webgpu"))):
            steps.append(dispatches(made))
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
    is_worth_it = n <= 16 or count > 1
    assert found.get("written out", 0) == is_worth_it
    assert steps[0] < steps[1] if is_worth_it else steps[0] == steps[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["vit", "transformers"])
def test_memory(name: str, dtype: torch.dtype, found: dict[str, int]) -> None:
    """Scores of many queries take no more than in the program."""
    inputs = *heads(1, 4, 100, 100, dtype), torch.ones(100, 100, device="webgpu").tril() > 0
    sizes = []
    with torch.no_grad():
        for _, made in with_and_without_patterns(
            lambda: torch.compile(merged(PROGRAMS[name]), fullgraph=True)(*inputs)
        ):
            sizes.append(sum(b.size_bytes for plan in made for b in plan.buffers if b.role == "temporary"))
    assert found == FOUND
    assert sizes[0] <= sizes[1]


@pytest.mark.parametrize("b", [1, 2])
def test_dynamic_shapes(b: int, found: dict[str, int]) -> None:
    """A cache that grows: one graph, and a plan for each length."""
    f = torch.compile(merged(transformers), fullgraph=True, dynamic=True)
    for s in (5, 9, 70):
        q, k, v = heads(b, 4, 3, s)
        mask = torch.rand(b, 1, 3, s, device="webgpu") > 0.3
        with torch.no_grad():
            torch.testing.assert_close(f(q, k, v, mask), merged(transformers)(q, k, v, mask), rtol=1e-5, atol=1e-5)
    assert found == FOUND


@pytest.mark.parametrize("n", [1, 4, 20])
def test_heads_repeated_for_queries_are_not_copied(n: int, found: dict[str, int]) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (t[:, :, None].expand(2, 2, 3, 9, 8).reshape(2, 6, 9, 8) for t in (k, v))
        return F.softmax(q @ k.mT * 0.2, dim=-1) @ v

    q, k, v = heads(2, 6, n, 9)[0], *heads(2, 2, n, 9)[1:]
    with plans() as made:
        compare(f, q, k, v)
    assert found == {"written out": 1}
    assert n > 16 or [len(plan.steps) for plan in made] == [1]


@pytest.mark.parametrize("shape", [(), (9,), (5, 9), (3, 1, 1), (1, 3, 5, 1), (2, 3, 5, 9)], ids=str)
def test_masks_broadcast(shape: tuple[int, ...], found: dict[str, int]) -> None:
    compare(lambda q, k, v, m: F.softmax(q @ k.mT + m, dim=-1) @ v, *heads(2, 3, 5, 9), torch.randn(shape).to("webgpu"))
    assert found == {"written out": 1}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("n", [5, 20])
def test_two_masks_that_are_added(n: int, dtype: torch.dtype, found: dict[str, int]) -> None:
    """As in T5: for few queries, where their sum is small."""
    seen = torch.rand(2, 1, n, 9, device="webgpu") > 0.3
    seen[0, 0, 0] = False

    def f(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
        scores = q @ k.mT + bias + torch.where(seen, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
        return F.softmax(scores, dim=-1) @ v

    bias = torch.randn(1, 3, n, 9).to("webgpu", dtype)
    compare(f, *heads(2, 3, n, 9, dtype), bias, seen, tolerance=2 * TOLERANCE[dtype])
    assert found == ({"written out": 1} if n <= 16 else {})


def test_a_mask_in_float32_with_scores_of_half_precision(found: dict[str, int]) -> None:
    mask = torch.randn(2, 1, 5, 9, device="webgpu") * 50
    mask[:, :, 2] = torch.finfo(torch.float32).min
    q, k, v = heads(2, 3, 5, 9, torch.float16)
    compare(lambda q, k, v, m: F.softmax(q @ k.mT + m, dim=-1).half() @ v, q, k, v, mask, tolerance=4e-3)
    assert found == {"written out": 1}


def batched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As in BART: heads are batches."""
    q, k, v = (t.reshape(6, -1, 8) for t in (q, k, v))
    mask = torch.ones(2, 1, 5, 9, device=q.device).cumsum(-1)
    scores = torch.bmm(q * 0.4, k.transpose(1, 2)).view(2, 3, 5, 9) + mask
    y = torch.bmm(F.softmax(scores.view(6, 5, 9), dim=-1), v)
    return y.view(2, 3, 5, 8).transpose(1, 2).reshape(2, 5, 24)


def test_heads_as_batches(found: dict[str, int]) -> None:
    compare(batched, *heads(2, 3, 5, 9))
    assert found == FOUND


LOOK_ALIKES: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    "weights are returned": lambda q, k, v: ((w := F.softmax(q @ k.mT, dim=-1)) @ v, w),
    "scores are returned": lambda q, k, v: (F.softmax((s := q @ k.mT) * 2, dim=-1) @ v, s),
    "scores are used twice": lambda q, k, v: F.softmax((s := q @ k.mT) + s, dim=-1) @ v,
    "softmax over queries": lambda q, k, v: F.softmax(q @ k.mT, dim=-2) @ v,
    "scaled after the mask": lambda q, k, v: F.softmax((q @ k.mT + k[:, :, :1, :1]) * 2, dim=-1) @ v,
    "another function of scores": lambda q, k, v: F.softmax((q @ k.mT).tanh(), dim=-1) @ v,
    "weights are normalised again": lambda q, k, v: (F.softmax(q @ k.mT, dim=-1) * 2) @ v,
    "two masks, one of which fills": lambda q, k, v: (
        F.softmax((q @ k.mT + k[:, :, :1, :1]).masked_fill(k[:, :, None, :, 0] > 1, -1), dim=-1) @ v
    ),
    "filled with a positive infinity": lambda q, k, v: (
        F.softmax((q @ k.mT).masked_fill(k[:, :, None, :, 0] > 9, float("inf")), dim=-1) @ v
    ),
    "other matrices of a view": lambda q, k, v: F.softmax((q @ k.mT).view(2, 3, 9, 5), dim=-1).view(2, 3, 5, 9) @ v,
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_looks_like_it_is_left_alone(name: str, found: dict[str, int]) -> None:
    f, inputs = LOOK_ALIKES[name], heads(2, 3, 5, 9)
    with torch.no_grad():
        want, got = f(*inputs), torch.compile(f, fullgraph=True)(*inputs)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert "written out" not in found


def test_keys_that_are_written_before_the_values_are_read(found: dict[str, int]) -> None:
    """The kernel would read what the program's first product did not."""

    def f(q: Tensor, k: Tensor, v: Tensor, at: Tensor) -> Tensor:
        scores = q @ k.mT
        k.index_copy_(2, at, q[:, :, :1])
        return F.softmax(scores, dim=-1) @ v

    q, k, v = heads(2, 3, 5, 9)
    for f_of, expected in ((f, {}), (lambda q, k, v, at: f(q, k.clone(), v, at), {"written out": 1})):
        torch._dynamo.reset()
        at = torch.tensor([4], device="webgpu")
        with torch.no_grad():
            got, want = torch.compile(f_of, fullgraph=True)(q, k.clone(), v, at), f_of(q, k.clone(), v, at)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        assert found == expected


def test_training_keeps_the_weights(found: dict[str, int]) -> None:
    """The backward needs them; dropout draws eager mode's numbers."""
    x, grads = torch.randn(2, 6, 24, device="webgpu"), []
    module = Attention(3).to("webgpu")
    for f in (module, torch.compile(module, fullgraph=True)):
        module.zero_grad()
        torch.manual_seed(1)
        f(x).square().sum().backward()
        grads.append([p.grad for p in module.parameters()])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)
    assert not found
