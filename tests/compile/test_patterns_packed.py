"""Products of one row with packed weights are fused as those with plain ones: as many dispatches, the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.compile.plans import dispatches, plans
from torch import nn

aten = torch.ops.aten
TOLERANCES = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
Matrix = Callable[[torch.Tensor], torch.Tensor]


def plain(n: int, k: int, dtype: torch.dtype) -> Matrix:
    weight = (torch.randn(n, k) / k**0.5).to("webgpu", dtype)
    return lambda x: F.linear(x, weight)


def int8(n: int, k: int, dtype: torch.dtype) -> Matrix:
    codes = torch.randint(-128, 128, (n, k), dtype=torch.int8).to("webgpu")
    scales = (torch.rand(n) / 1000).to("webgpu", dtype)
    return lambda x: aten._weight_int8pack_mm(x, codes, scales)


def int4(n: int, k: int, dtype: torch.dtype) -> Matrix:
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8).to("webgpu")
    weight = aten._convert_weight_to_int4pack(codes, 2)
    pairs = (torch.rand(k // 32, n, 2) / 50).to("webgpu", dtype)
    return lambda x: aten._weight_int4pack_mm(x, weight, 32, pairs)


def int4_of_xpu(n: int, k: int, dtype: torch.dtype) -> Matrix:
    weight = torch.randint(-(2**31), 2**31 - 1, (n, k // 8), dtype=torch.int32).to("webgpu")
    scales = (torch.rand(k // 32, n) / 50).to("webgpu", dtype)
    points = torch.randint(0, 16, (k // 32, n), dtype=torch.int8).to("webgpu")
    return lambda x: aten._weight_int4pack_mm_with_scales_and_zeros(x, weight, 32, scales, points)


def quantized(n: int, k: int, dtype: torch.dtype) -> Matrix:
    layer = nn.Sequential(nn.Linear(k, n, bias=False)).to("webgpu", dtype)
    return torch.webgpu.quantize_(layer, "int4")  # type: ignore[no-any-return]


KINDS = pytest.mark.parametrize("kind", [int8, int4, int4_of_xpu, quantized], ids=lambda f: f.__name__)


def layer(x: torch.Tensor, gain: torch.Tensor, offset: torch.Tensor | None, matrices: list[Matrix]) -> torch.Tensor:
    """What a language model does with one token: queries and keys, a gated unit, a product and what it is added to."""
    h = F.rms_norm(x, gain.shape, gain, 1e-6) if offset is None else F.layer_norm(x, gain.shape, gain, offset)
    q, k, gate, up, down = matrices
    both = torch.cat((q(h), k(h)), -1)
    return x + down(F.silu(gate(both)) * up(both))


def counted(run: Any, *inputs: Any) -> tuple[torch.Tensor, int]:
    with torch.no_grad(), plans() as made:
        result = torch.compile(run, fullgraph=True)(*inputs)
    return result, dispatches(made)


@KINDS
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("centred", [False, True], ids=["rms norm", "layer norm"])
def test_a_layer(kind: Any, dtype: torch.dtype, centred: bool) -> None:
    x, gain = (torch.randn(size).to("webgpu", dtype) for size in ((1, 64), (64,)))
    offset = torch.randn(64).to("webgpu", dtype) if centred else None
    sizes = [(64, 64), (64, 64), (160, 128), (160, 128), (64, 160)]
    counts = {}
    for make in (plain, kind):
        torch._dynamo.reset()
        matrices = [make(n, k, dtype) for n, k in sizes]
        with torch.no_grad():
            eager = layer(x, gain, offset, matrices)
        got, counts[make] = counted(layer, x, gain, offset, matrices)
        error = (got - eager).abs().max() / eager.abs().max()
        assert error < TOLERANCES[dtype]
    assert counts[kind] == counts[plain]


@KINDS
def test_what_else_uses_a_norm(kind: Any) -> None:
    """A norm that is needed by itself is computed by itself."""
    x, gain, matrix = torch.randn(1, 64).to("webgpu"), torch.randn(64).to("webgpu"), kind(24, 64, torch.float32)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.rms_norm(x, gain.shape, gain, 1e-6)
        return matrix(h), h * 2

    with torch.no_grad():
        want, got = f(x), torch.compile(f, fullgraph=True)(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("group", [32, 64])
def test_gates_of_different_groups(group: int) -> None:
    """Two matrices that one kernel does not multiply alike stay apart."""
    a, b = (torch.webgpu.quantize_(nn.Sequential(nn.Linear(128, 48, bias=False)), "int4", group_size=g).to("webgpu")
            for g in (32, group))  # fmt: skip
    x = torch.randn(1, 128).to("webgpu")

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.silu(a(x)) * b(x)

    with torch.no_grad():
        want = f(x)
    got, count = counted(f, x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert (count == 1) == (group == 32)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_decoding(dtype: str) -> None:
    """A step of a model of transformers has as many dispatches as with plain weights."""
    transformers = pytest.importorskip("transformers")
    from .test_patterns_decode import model_of, tokens_of

    assert transformers
    model = model_of(2, torch.float16, "sdpa")
    counts = []
    for packed in (copy.deepcopy(model), torch.webgpu.quantize_(model, dtype)):
        torch._dynamo.reset()
        packed.to("webgpu")
        eager = tokens_of(packed, packed, "webgpu")
        with plans() as made:
            compiled = tokens_of(packed, torch.compile(packed), "webgpu")
        for got, want in zip(compiled, eager, strict=True):
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        counts.append(len(made[-1].steps))
    assert counts[1] == counts[0]
