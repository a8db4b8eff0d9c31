"""``scaled_dot_product_attention``: the roads against the composition in float64 on the CPU; which is taken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_webgpu.aten.dispatch.fallback import fallback_stats

TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Of results of about 1: some float32 roundings of scores of about 10 and of sums, one rounding of the result."""


@pytest.fixture(autouse=True)
def no_fallback():
    before = fallback_stats()
    yield
    assert fallback_stats() == before


def exact(t: Any) -> Any:
    return t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t


def agrees(device: Any, *qkv: torch.Tensor, attn_mask: torch.Tensor | None = None, **options: Any) -> None:
    """Results, their dtype and NaNs, for tensors on the CPU."""
    with sdpa_kernel([SDPBackend.MATH]):  # the CPU's fused road is wrong for negative scales with causal masks
        expected = F.scaled_dot_product_attention(*map(exact, qkv), attn_mask=exact(attn_mask), **options)
    mask = None if attn_mask is None else attn_mask.to(device)
    actual = F.scaled_dot_product_attention(*[t.to(device) for t in qkv], attn_mask=mask, **options)
    tolerance = TOLERANCES[qkv[0].dtype]
    torch.testing.assert_close(
        actual.cpu(), expected.to(actual.dtype), rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False
    )


def kernels(fn: Callable[[], Any]) -> list[str]:
    """The names of the kernels that ``fn`` runs."""
    return [name for kernel in torch.webgpu.explain(fn).kernels for name in kernel.dispatches]


def heads(b: int, h: int, g: int, n: int, s: int, e: int, d: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shapes = (b, h, n, e), (b, g, s, e), (b, g, s, d)
    return tuple([torch.randn(shape).to(dtype) for shape in shapes])


SIZES = [
    (1, 1, 1, 1, 1, 1, 1),
    (1, 4, 4, 1, 10, 8, 8),
    (2, 14, 2, 1, 700, 64, 64),
    (3, 6, 3, 3, 37, 5, 7),
    (2, 6, 3, 8, 300, 16, 20),
    (1, 2, 1, 16, 65, 128, 256),
    (1, 40, 1, 2, 33, 256, 96),
    (2, 2, 2, 5, 4, 33, 1),
]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_few_queries(device, size, dtype):
    q, k, v = heads(*size, dtype)
    b, h, g, n, s, _, _ = size
    grouped = {"enable_gqa": h != g}
    agrees(device, q, k, v, **grouped)
    agrees(device, q, k, v, is_causal=True, scale=-0.3, **grouped)
    for shape in ((n, s), (b, 1, 1, s), (1, h, n, 1), (1, s)):
        agrees(device, q, k, v, attn_mask=torch.rand(shape) > 0.3, **grouped)
        agrees(device, q, k, v, attn_mask=torch.randn(shape).to(dtype), **grouped)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_layouts(device, dtype):
    shape = (2, 3, 4, 8)
    plain = torch.randn(shape).to(dtype)
    moved = torch.randn(2, 4, 3, 8).to(dtype).transpose(1, 2)
    column = torch.randn(2, 3, 8, 4).to(dtype).mT
    part = torch.randn(2, 3, 9, 11).to(dtype)[:, :, 2:6, 3:]
    spread = torch.randn(1, 1, 4, 8).to(dtype).expand(shape)
    thin = torch.randn(2, 3, 4, 16).to(dtype)[..., ::2]
    for q, k, v in ((moved, plain, part), (part, moved, column), (spread, column, moved), (thin, spread, thin)):
        agrees(device, q, k, v)
        agrees(device, q, k, v, attn_mask=(torch.randn(4, 4).to(dtype).mT > 0).expand(2, 3, 4, 4))


def test_a_result_lies_as_its_query_does(device):
    q, k = torch.randn(2, 4, 3, 8, device=device).transpose(1, 2), torch.randn(2, 3, 5, 8, device=device)
    assert F.scaled_dot_product_attention(q, k, k).stride() == q.stride()


def test_queries_that_see_nothing_give_zeros(device):
    q, k, v = heads(1, 2, 2, 3, 40, 8, 8, torch.float32)
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[1] = False
    agrees(device, q, k, v, attn_mask=mask)
    agrees(device, q, k, v, attn_mask=torch.zeros(3, 40).masked_fill(~mask, float("-inf")))
    agrees(device, q, k, v, attn_mask=torch.zeros(3, 40).masked_fill(~mask, torch.finfo(torch.float32).min))


def test_infinities_and_nans(device):
    q, k, v = heads(1, 2, 2, 3, 40, 8, 8, torch.float32)
    for value in (float("inf"), float("-inf"), float("nan")):
        for t in (q, k, v):
            before, t[0, 0, 1, 2] = t[0, 0, 1, 2].item(), value
            agrees(device, q, k, v)
            t[0, 0, 1, 2] = before


def test_large_scores_do_not_overflow(device):
    q, k, v = heads(1, 2, 2, 3, 40, 8, 8, torch.float32)
    agrees(device, q * 1e4, k.sign(), v)
    agrees(device, q.half() * 1e3, k.half().sign() * 100, v.half())


@pytest.mark.parametrize("size", [(2, 3, 3, 0, 5, 4, 4), (2, 3, 3, 2, 0, 4, 4), (0, 3, 3, 2, 5, 4, 4)], ids=str)
def test_empty(device, size):
    agrees(device, *heads(*size, torch.float32))


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (2, 2, 2, 3, 8)], ids=str)
def test_other_ranks(device, shape):
    agrees(device, *[torch.randn(shape) for _ in range(3)], is_causal=True)


def test_errors_are_pytorchs(device):
    q, k = torch.randn(1, 2, 3, 8, device=device), torch.randn(1, 2, 5, 8, device=device)
    attend = F.scaled_dot_product_attention
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        attend(q, k.half(), k)
    with pytest.raises(RuntimeError, match="attn_mask dtype"):
        attend(q, k, k, attn_mask=torch.ones(3, 5, dtype=torch.int64, device=device))
    with pytest.raises(RuntimeError, match="is_causal"):
        attend(q, k, k, attn_mask=torch.ones(3, 5, device=device), is_causal=True)
    with pytest.raises(RuntimeError):
        attend(q, k[..., :4], k)
    with pytest.raises(RuntimeError):
        attend(q, k, k, attn_mask=torch.ones(3, 4, device=device))


def test_one_token_is_one_kernel(device):
    q, k, v = (t.to(device) for t in heads(2, 4, 2, 1, 20, 8, 8, torch.float16))
    mask = torch.ones(2, 1, 1, 20, dtype=torch.bool, device=device)

    def attend() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    assert kernels(attend) == ["attention_few"]
    with sdpa_kernel([SDPBackend.MATH]):
        assert "attention_few" not in kernels(attend)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        assert kernels(attend) == ["attention_few"]


def test_a_long_cache_is_read_by_several_workgroups(device):
    q, k, v = (t.to(device) for t in heads(1, 1, 1, 1, 20_000, 8, 8, torch.float32))
    assert kernels(lambda: F.scaled_dot_product_attention(q, k, v)) == ["attention_few", "attention_combine"]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    on_cpu = q.device.type == "cpu"  # whose fused road has first derivatives by reverse mode only
    with sdpa_kernel([SDPBackend.MATH]) if on_cpu else nullcontext():
        return F.scaled_dot_product_attention(q, k, v).sin()


def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    (first,) = torch.autograd.grad(attend(q, k, v).sum(), q, create_graph=True)
    return first.sin()


@pytest.mark.parametrize("fn", [attend, twice])
def test_derivatives(device, fn):
    check(device, fn, *heads(1, 2, 2, 3, 5, 8, 8, torch.float32), backward=True, tol=1e-5)


def attend_to_itself(x: torch.Tensor, is_same: bool) -> torch.Tensor:
    """Keys are the queries, or a function of them."""
    k = x if is_same else x * 2
    (first,) = torch.autograd.grad(attend(k * 0.5 if not is_same else k, k, x).sum(), x, create_graph=True)
    return first.sin()


@pytest.mark.parametrize("is_same", [True, False])
def test_gradients_of_related_inputs_have_gradients(device, is_same):
    (x, *_) = heads(1, 2, 2, 20, 20, 8, 8, torch.float32)
    check(device, partial(attend_to_itself, is_same=is_same), x, backward=True, tol=2e-4)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": torch.func.grad(lambda q, k, v: attend(q, k, v).sum()),
    "jvp": lambda *qkv: torch.func.jvp(attend, qkv, qkv)[1],
    "vmap": torch.func.vmap(attend),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(device, name):
    check(device, TRANSFORMS[name], *heads(1, 2, 2, 3, 5, 8, 8, torch.float32), tol=1e-5)


def test_autocast_and_inference_mode(device):
    q, k, v = (t.to(device) for t in heads(1, 2, 2, 1, 5, 8, 8, torch.float32))
    expected = F.scaled_dot_product_attention(q, k, v)
    with torch.autocast(device.type, dtype=torch.float16):
        half = F.scaled_dot_product_attention(q, k, v)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), expected, rtol=1e-2, atol=1e-2)
    with torch.inference_mode():
        assert F.scaled_dot_product_attention(q, k, v).equal(expected)
