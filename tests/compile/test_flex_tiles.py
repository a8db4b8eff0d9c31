"""FlexAttention in kernels that keep no scores: what eager mode gives, forward and backward, whatever is done to scores
and whichever blocks of them are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from torch_webgpu.ir.lines import expressions_of, lines_of
from torch_webgpu.ir.ops import ops

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:return_lse")

Attention = Callable[..., Any]
Function = Callable[..., Any]
HEADS, LENGTH = 4, 70
FORWARD, QUERY, KEY = "flex_attention", "flex_attention_query", "flex_attention_key"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to("webgpu")


def softcap(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 5 * torch.tanh(s / 5)


def alibi() -> Function:
    slopes = torch.exp2(-torch.arange(1, HEADS + 1, device="webgpu").float())
    return lambda s, b, h, i, j: s + slopes[h] * (j - i)


def relative() -> Function:
    """Its places count from the end for half of the scores."""
    table = numbers(2 * LENGTH)
    return lambda s, b, h, i, j: 0.5 * s + table[i - j]


def of_batches() -> Function:
    table, half = numbers(2, HEADS, LENGTH), numbers(HEADS).half()
    return lambda s, b, h, i, j: s + table[b][h, j] * half[h]


def of_numbers() -> Function:
    order = torch.arange(LENGTH, device="webgpu").flip(0)
    table = numbers(LENGTH)
    return lambda s, b, h, i, j: s * table[order[j]] + (table[i] > 0)


def far_hidden(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return torch.where((i - j).abs() < 30 + h, s * s.abs(), -float("inf"))


def lowest(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """Of the first query all scores are the lowest numbers, and count alike."""
    return torch.where(i > 0, s, torch.finfo(s.dtype).min)


def of_constants(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    half = torch.tensor(0.5)
    return torch.where((i + j) % 2 == 0, s.abs() * half, torch.zeros_like(s) - torch.full((), 0.25))


def table_alone() -> Function:
    """Scores have no say."""
    table = numbers(HEADS, LENGTH)
    return lambda s, b, h, i, j: table[h, (i + j) % LENGTH] + 0 * s


FUNCTIONS = {
    "of constants": lambda: of_constants, "table alone": table_alone,
    "softcap": lambda: softcap, "alibi": alibi, "relative": relative, "of batches": of_batches,
    "of numbers": of_numbers, "far hidden": lambda: far_hidden, "lowest": lambda: lowest,
}  # fmt: skip


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def window(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (i - j < 20)


def of_heads(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Some queries see nothing, and head 1 sees little."""
    return (i < 60) & ((h != 1) | (j == 3)) & ((i + j) % 3 != 0)


def band(b: Any, h: Any, i: Any, j: Any) -> Any:
    """A few keys around each query, and the first ones: most blocks in between are left out."""
    return ((i - j).abs() < 40) | (j < 5)


def inputs(dtype: torch.dtype, shared: int = 1, queries: int = LENGTH, keys: int = LENGTH) -> list[torch.Tensor]:
    torch.manual_seed(0)
    heads = HEADS // shared
    return [torch.randn(2, h, n, 16).to(dtype) for h, n in ((HEADS, queries), (heads, keys), (heads, keys))]


def outcome(fn: Attention, given: list[torch.Tensor], grad: bool) -> list[torch.Tensor]:
    """Results, and gradients of all inputs."""
    there = [t.to("webgpu").requires_grad_(grad) for t in given]
    out = fn(*there)
    results = list(out) if isinstance(out, tuple) else [out]
    if grad:
        finite = [t.float().where(t.isfinite(), 0) for t in results]
        sum(t.sin().sum() for t in finite).backward()
        results += [t.grad for t in there if t.grad is not None]
    return [t.detach().cpu() for t in results]


def operations(run: Callable[[], Any]) -> list[str]:
    with torch.webgpu.profile() as p:
        run()
    return [name for event in p.events for name in event.operation.split("+")]


def check(fn: Attention, given: list[torch.Tensor], grad: bool = True, in_tiles: bool = True, **options: Any) -> None:
    """Compiled it gives what it gives in eager mode, in kernels that keep no scores or not."""
    torch._dynamo.reset()
    compiled = torch.compile(fn, fullgraph=True, **options)
    tol = TOLERANCE[given[0].dtype]
    found: list[torch.Tensor] = []
    names = operations(lambda: found.extend(outcome(compiled, given, grad)))
    for expected, result in zip(outcome(fn, given, grad), found, strict=True):
        torch.testing.assert_close(result, expected, rtol=tol, atol=tol)
    wanted = {QUERY, KEY} if grad else {FORWARD}
    assert wanted <= set(names) if in_tiles else wanted.isdisjoint(names), names


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_done_to_scores(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]()
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=function), inputs(dtype))


@pytest.mark.parametrize("function", [None, softcap])
def test_scores_that_are_no_numbers(function: Function | None) -> None:
    blocks = create_block_mask(of_heads, None, HEADS, LENGTH, LENGTH, device="webgpu", BLOCK_SIZE=32)
    q, k, v = inputs(torch.float32)
    q[0, 0, 5, 3], k[1, 2, 40, 0] = float("nan"), float("inf")
    torch._dynamo.reset()
    fn = lambda q, k, v: flex_attention(q, k, v, score_mod=function, block_mask=blocks)
    (expected,), (found,) = (outcome(f, [q, k, v], False) for f in (fn, torch.compile(fn)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("block", [16, 24, 32, 128])
@pytest.mark.parametrize("mask", [window, of_heads])
def test_masks_in_blocks_of_any_size(mask: Function, block: int) -> None:
    blocks = create_block_mask(mask, None, HEADS, LENGTH, LENGTH, device="webgpu", BLOCK_SIZE=block)
    for function in (None, softcap):
        fn = lambda q, k, v: flex_attention(q, k, v, score_mod=function, block_mask=blocks)  # noqa: B023
        check(fn, inputs(torch.float32))


@pytest.mark.parametrize("function", [None, softcap])
@pytest.mark.parametrize("mask", [band, lambda b, h, i, j: (j > i + 100) | ((i == 0) & (j == 0))])
def test_blocks_that_are_left_out(mask: Function, function: Function | None) -> None:
    """Of 38 by 25, which are several words of a mask, in both directions."""
    n, s = 1200, 800
    q, k, v = (t[:1, :1] for t in inputs(torch.float32, queries=n, keys=s))
    blocks = create_block_mask(mask, None, None, n, s, device="webgpu", BLOCK_SIZE=32)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=function, block_mask=blocks), [q, k, v])


def test_shared_heads_a_scale_and_sums() -> None:
    blocks = create_block_mask(of_heads, None, HEADS, LENGTH, LENGTH, device="webgpu", BLOCK_SIZE=32)

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        given = {"block_mask": blocks, "enable_gqa": True, "return_lse": True, "scale": -0.3}
        return flex_attention(q, k, v, score_mod=softcap, **given)

    check(fn, inputs(torch.float32, shared=2))
    out, lse = outcome(torch.compile(fn), inputs(torch.float32, shared=2), False)
    assert out[:, :, 60:].eq(0).all()
    assert lse[:, :, 60:].eq(-float("inf")).all()
    assert lse[:, 0, :60].isfinite().all()


@pytest.mark.parametrize("function", [None, softcap])
def test_queries_that_see_nothing_have_no_sum(function: Function | None) -> None:
    """On every road: scores that stay as they are in attention with a mask, too."""
    check(
        lambda q, k, v: flex_attention(
            q, k, v, score_mod=function, return_lse=True,
            block_mask=create_block_mask(of_heads, None, HEADS, LENGTH, LENGTH, device="webgpu", BLOCK_SIZE=32),
        ),
        inputs(torch.float32), grad=False,
    )  # fmt: skip


@pytest.mark.parametrize("queries", [1, 3, 17])
def test_few_queries(queries: int) -> None:
    slopes = alibi()
    blocks = create_block_mask(lambda b, h, i, j: j < 50 - h, None, HEADS, queries, LENGTH, device="webgpu")
    for shared in (1, 2):
        check(
            lambda q, k, v: flex_attention(q, k, v, score_mod=slopes, block_mask=blocks, enable_gqa=True),
            inputs(torch.float16, shared, queries),
        )


@pytest.mark.parametrize("block", [32, 48, 1024])
def test_few_queries_of_a_long_cache(block: int) -> None:
    """Steps over keys that none of the queries sees are left out: the last ones here, and those before a window."""
    n = 3000
    seen = lambda b, h, i, j: (j < 2100 + 9 * i) & ((j > 1900) | (h == 1))
    blocks = create_block_mask(seen, None, HEADS, 5, n, device="webgpu", BLOCK_SIZE=(128, block))
    for shared in (1, 4):
        fn = lambda q, k, v: flex_attention(q, k, v, softcap, block_mask=blocks, enable_gqa=True)
        check(fn, inputs(torch.float32, shared, 5, n), grad=False)


def test_blocks_alone_say_what_counts() -> None:
    """Where a program lists blocks, and no function: eager mode computes all scores, GPUs those of the blocks."""
    counts = torch.tensor([[[1, 2, 0]]], dtype=torch.int32, device="webgpu")
    listed = torch.tensor([[[[2, 0], [0, 1], [0, 0]]]], dtype=torch.int32, device="webgpu")
    blocks = BlockMask.from_kv_blocks(counts, listed, BLOCK_SIZE=32, seq_lengths=(LENGTH, LENGTH))
    seen = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    seen[:32, 64:], seen[32:64, :64] = True, True
    q, k, v = inputs(torch.float32)
    (found,) = outcome(torch.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks)), [q, k, v], False)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(found, expected.nan_to_num(), rtol=1e-5, atol=1e-5)


def test_lengths_that_change() -> None:
    slopes = alibi()
    torch._dynamo.reset()

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: BlockMask) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=slopes, block_mask=blocks)

    compiled = torch.compile(fn, fullgraph=True, dynamic=True)
    for n in (40, 70, 33):
        blocks = create_block_mask(causal, None, None, n, n, device="webgpu", BLOCK_SIZE=32)
        given = inputs(torch.float32, queries=n, keys=n)
        expected = outcome(lambda q, k, v: fn(q, k, v, blocks), given, True)  # noqa: B023
        for one, other in zip(expected, outcome(lambda q, k, v: compiled(q, k, v, blocks), given, True)):  # noqa: B023
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_numbers_that_change() -> None:
    """A length, a shift and a factor of the program's are scalars of the kernels, which stay the same."""
    torch._dynamo.reset()

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shift: int) -> torch.Tensor:
        def moved(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return torch.where(i + shift >= j, s + (shift - j) * 0.01, -float("inf")) * shift

        return flex_attention(q, k, v, score_mod=moved)

    compiled = torch.compile(fn, fullgraph=True, dynamic=True)
    made = []
    for shift in (3, 40, 11, 1):
        given = inputs(torch.float32, queries=30 + shift, keys=50)
        expected = outcome(lambda q, k, v: fn(q, k, v, shift), given, True)  # noqa: B023
        names = operations(lambda: made.append(outcome(lambda q, k, v: compiled(q, k, v, shift), given, True)))  # noqa: B023
        for one, other in zip(expected, made[-1], strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
        assert {FORWARD, QUERY, KEY} <= set(names), names
    with pytest.raises(OverflowError, match="32-bit integers"):
        compiled(*[t.to("webgpu") for t in given], 2**40)


def test_what_is_written_out() -> None:
    """Sums, the gradient of a table that is learned, which is of every score, and the greatest scores."""
    columns, table = numbers(LENGTH, 3), numbers(HEADS).requires_grad_()
    for function in (lambda s, b, h, i, j: s + columns[i].sum(), lambda s, b, h, i, j: s + table[h]):
        check(lambda q, k, v: flex_attention(q, k, v, function), inputs(torch.float32), True, False)  # noqa: B023
    check(
        lambda q, k, v: flex_attention(q, k, v, softcap, return_aux=AuxRequest(max_scores=True))[1].max_scores,
        inputs(torch.float32), False, False,
    )  # fmt: skip


def test_a_mask_is_made_once_for_all_layers_and_nothing_else_is_kept() -> None:
    torch._dynamo.reset()
    blocks = create_block_mask(window, None, None, LENGTH, LENGTH, device="webgpu", BLOCK_SIZE=32)

    def layers(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = flex_attention(x, x, x, softcap, block_mask=blocks)
        return x

    compiled = torch.compile(layers, fullgraph=True)
    x = inputs(torch.float32)[0].to("webgpu")
    compiled(x)
    names = operations(lambda: compiled(x))
    assert sorted(names) == sorted(["flex_attention_blocks", *[FORWARD] * 3])


def test_memory_grows_with_lengths_and_not_with_scores() -> None:
    torch._dynamo.reset()
    n = 1500
    q, k, v = (t[:1].to("webgpu").requires_grad_() for t in inputs(torch.float32, queries=n, keys=n))
    compiled = torch.compile(lambda q, k, v: flex_attention(q, k, v, softcap), fullgraph=True)
    torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v))
    torch.webgpu.synchronize()
    torch.webgpu.reset_peak_memory_stats()
    before = torch.webgpu.memory_allocated()
    torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v))
    torch.webgpu.synchronize()
    assert torch.webgpu.max_memory_allocated() - before < HEADS * n * n * 4 / 2


def test_expressions_as_lines() -> None:
    x = ops.acc(0, "f32")
    y = ops.tanh(x / 20.0) * 20.0
    roots = [y, y + x, ops.index(2) >= ops.index(3)]
    lines, places = lines_of(roots)
    found = expressions_of(lines)
    assert [found[k] for k in places] == roots
    assert len(lines) == len(set(lines))
