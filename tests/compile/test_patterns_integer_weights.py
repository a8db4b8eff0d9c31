"""Products with converted integers read these; what merely looks like one is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "of the transpose": lambda x, w, s: torch.mm(x, w.t().to(x.dtype)) * s,
    "transposed": lambda x, w, s: torch.mm(x, w.to(x.dtype).t()) * s,
    "linear": lambda x, w, s: torch.nn.functional.linear(x, w.to(x.dtype)) * s,
}


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_integers_are_read_in_place(name: str, dtype: torch.dtype, rows: int, found: dict[str, int]) -> None:
    x, scales = torch.randint(-4, 5, (rows, 40)), 2.0 ** torch.randint(-3, 1, (24,))
    w = torch.randint(-8, 8, (24, 40), dtype=torch.int8)
    expected = (x.double() @ w.double().t()) * scales.double()
    inputs = x.to("webgpu", dtype), w.to("webgpu"), scales.to("webgpu", dtype)
    compiled = torch.compile(FORMS[name], fullgraph=True)
    assert torch.equal(compiled(*inputs).cpu().double(), expected.to(dtype).double())
    assert found == {"integer weights": 1}
    with torch.webgpu.profile() as profile:
        compiled(*inputs)
    assert "profile: 1 dispatch" in str(profile)


OTHERS: dict[str, Callable[..., torch.Tensor]] = {
    "scaled before": lambda x, w: torch.mm(x, (w.to(x.dtype) * 2).t()),
    "of the left": lambda x, w: torch.mm(w.to(x.dtype), x.t()),
    "wider integers": lambda x, w: torch.mm(x, w.to(torch.int32).to(x.dtype).t()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_alone(name: str, found: dict[str, int]) -> None:
    x, w = torch.randn(5, 40, device="webgpu"), torch.randint(-8, 8, (24, 40), dtype=torch.int8, device="webgpu")
    got = torch.compile(OTHERS[name], fullgraph=True)(x, w)
    torch.testing.assert_close(got, OTHERS[name](x, w), rtol=1e-5, atol=1e-5)
    assert not found
