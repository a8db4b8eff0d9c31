"""Subgraphs that one kernel computes: found where they are, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


def turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return x * cos + turned(x) * sin


def compare(f: Callable[..., torch.Tensor], *inputs: torch.Tensor, tolerance: float = 1e-6) -> None:
    want = f(*inputs)
    got = torch.compile(f, fullgraph=True)(*inputs)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    in_double = f(*(t.cpu().double() for t in inputs))
    torch.testing.assert_close(got.cpu().double(), in_double, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (1, 4, 1, 16), (1, 1, 7, 2)], ids=str)
def test_rotary(shape: tuple[int, ...], dtype: torch.dtype, found: dict[str, int]) -> None:
    b, h, s, d = shape
    x = torch.randn(b, s, h, d).to("webgpu", dtype).transpose(1, 2)
    cos, sin = (torch.randn(1, 1, s, d).to("webgpu", dtype) for _ in range(2))
    compare(rotary, x, cos, sin, tolerance={torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}[dtype])
    assert found == {"rotary": 1}


def test_rotary_of_queries_and_keys_in_a_layer(found: dict[str, int]) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return (sin * turned(q) + cos * q) @ rotary(k, cos, sin).mT

    q, k = (torch.randn(2, 4, 6, 8, device="webgpu") for _ in range(2))
    cos, sin = (torch.randn(2, 1, 6, 8, device="webgpu") for _ in range(2))
    compare(attend, q, k, cos, sin, tolerance=1e-5)
    assert found == {"rotary": 2}


LOOK_ALIKES: dict[str, Callable[..., torch.Tensor]] = {
    "other halves": lambda x, cos, sin: x * cos + torch.cat((x[..., 4:], x[..., :4]), -1) * sin,
    "not negative": lambda x, cos, sin: x * cos + torch.cat((x[..., 4:], -x[..., :4]), -1) * sin,
    "not halves": lambda x, cos, sin: x * cos + torch.cat((-x[..., 5:], x[..., :5]), -1) * sin,
    "along another dimension": lambda x, cos, sin: x * cos + torch.cat((-x[:, :, 3:], x[:, :, :3]), 2) * sin,
    "of another tensor": lambda x, cos, sin: x * cos + turned(x + 1) * sin,
    "scaled": lambda x, cos, sin: torch.add(x * cos, turned(x) * sin, alpha=2),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_looks_like_it_is_left_alone(name: str, found: dict[str, int]) -> None:
    x = torch.randn(1, 2, 6, 8, device="webgpu")
    cos, sin = (torch.randn(1, 1, 6, 8, device="webgpu") for _ in range(2))
    compare(LOOK_ALIKES[name], x, cos, sin)
    assert not found


def test_gradients_go_through(found: dict[str, int]) -> None:
    cos, sin = (torch.randn(1, 1, 6, 8, device="webgpu") for _ in range(2))
    x, y = (torch.ones(1, 2, 6, 8, device="webgpu", requires_grad=True) for _ in range(2))
    rotary(x, cos, sin).square().sum().backward()
    torch.compile(rotary)(y, cos, sin).square().sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    torch.testing.assert_close(y.grad, x.grad)
    assert found["rotary"] >= 1
