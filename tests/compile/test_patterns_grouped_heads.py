"""Heads of keys and values that a program copies for attention: not copied in a compiled graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F


def repeat(x: torch.Tensor, times: int) -> torch.Tensor:
    """As transformers' ``repeat_kv``."""
    b, g, s, e = x.shape
    return x[:, :, None].expand(b, g, times, s, e).reshape(b, g * times, s, e)


def compare(f: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(f, fullgraph=True)(*inputs), f(*inputs), rtol=1e-5, atol=1e-5)


def heads(n: int, groups: int) -> tuple[torch.Tensor, ...]:
    return tuple(
        [torch.randn(shape, device="webgpu") for shape in ((2, 6, n, 8), (2, groups, 9, 8), (2, groups, 9, 8))]
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_of_a_decoding_step(found: dict[str, int], dynamic: bool) -> None:
    q, k, v = heads(1, 2)
    mask = torch.rand(2, 1, 1, 9, device="webgpu") > 0.3

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, repeat(k, 3), repeat(v, 3), attn_mask=mask, scale=0.5)

    if dynamic:
        for t in (k, v):
            torch._dynamo.mark_dynamic(t, 2)
        torch._dynamo.mark_dynamic(mask, 3)
    compare(attend, q, k, v, mask)
    assert found == {"grouped heads": 1}


LOOK_ALIKES: dict[str, Callable[..., torch.Tensor]] = {
    "one is not repeated": lambda q, k, v: F.scaled_dot_product_attention(
        q, repeat(k, 3), repeat(v, 1).repeat(1, 3, 1, 1)
    ),
    "another order": lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1)),
    "other numbers": lambda q, k, v: F.scaled_dot_product_attention(q, repeat(k, 3), repeat(v[:, :1], 6)),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_looks_like_it_is_left_alone(name: str, found: dict[str, int]) -> None:
    compare(LOOK_ALIKES[name], *heads(1, 2))
    assert not found
