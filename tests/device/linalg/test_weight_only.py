"""Products with weights of 8 and 4 bits, against the same numbers in double precision on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .matrices_emulated import NVIDIA, pretend

aten = torch.ops.aten
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
DTYPES = st.sampled_from([*TOLERANCES])
ROWS = st.sampled_from([1, 1, 2, 7, 33])


def close(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert result.dtype == dtype
    assert result.shape == expected.shape
    if expected.numel():
        error = (result.cpu().double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
        assert error < TOLERANCES[dtype]


def packed(codes: torch.Tensor, device: torch.device, tiles: int) -> torch.Tensor:
    """Codes (n, k) of 4 bits as programs for CUDA pack them."""
    return aten._convert_weight_to_int4pack(((codes[:, ::2] << 4) | codes[:, 1::2]).to(torch.uint8).to(device), tiles)


@settings(max_examples=12, deadline=None)
@given(m=ROWS, n=st.sampled_from([1, 3, 24, 70, 1061, 2115]), k=st.sampled_from([1, 3, 8, 20, 64, 136]), dtype=DTYPES)
def test_int8(device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> None:
    x, scales = torch.randn(m, k).to(dtype), (torch.rand(n) + 0.1).to(dtype)
    codes = torch.randint(-128, 128, (n, k), dtype=torch.int8)
    result = aten._weight_int8pack_mm(x.to(device), codes.to(device), scales.to(device))
    close(result, (x.double() @ codes.double().t()) * scales.double(), dtype)


def test_int8_is_the_cpus(device: torch.device) -> None:
    """Exact: small integers, and scales that are powers of two."""
    x = torch.randint(-4, 5, (5, 64)).float()
    codes = torch.randint(-128, 128, (48, 64), dtype=torch.int8)
    scales = 2.0 ** torch.randint(-3, 4, (48,))
    for rows in (x, x[:1], x[:0], x[:, 1:]):
        columns = codes[:, : rows.shape[1]]
        expected = (rows @ columns.float().t()) * scales
        got = aten._weight_int8pack_mm(rows.to(device), columns.to(device), scales.to(device))
        assert torch.equal(got.cpu(), expected)
        if rows.numel() and columns.is_contiguous():
            assert torch.equal(aten._weight_int8pack_mm(rows, columns, scales), expected)


@settings(max_examples=12, deadline=None)
@given(
    m=ROWS,
    n=st.sampled_from([8, 16, 24, 136, 1064, 2120]),
    groups=st.integers(1, 3),
    group=st.sampled_from([32, 64, 128, 256]),
    dtype=DTYPES,
)
def test_int4(device: torch.device, m: int, n: int, groups: int, group: int, dtype: torch.dtype) -> None:
    k = group * groups
    tiles = next(t for t in (8, 4, 2) if k % (t * 16) == 0)
    x, codes = torch.randn(m, k).to(dtype), torch.randint(0, 16, (n, k), dtype=torch.int32)
    pairs = torch.randn(groups, n, 2).to(dtype)
    scales, zeros = (t.t().double().repeat_interleave(group, 1) for t in pairs.unbind(2))
    weight = packed(codes, device, tiles)
    assert weight.shape == (n // 8, k // (tiles * 16), 32, tiles // 2)
    result = aten._weight_int4pack_mm(x.to(device), weight, group, pairs.to(device))
    close(result, x.double() @ ((codes.double() - 8) * scales + zeros).t(), dtype)

    points = torch.randint(0, 16, (groups, n), dtype=torch.int8)
    result = aten._weight_int4pack_mm_with_scales_and_zeros(
        x.to(device), weight.view(n, k // 8), group, pairs[..., 0].to(device), points.to(device)
    )
    close(result, x.double() @ ((codes - points.t().repeat_interleave(group, 1)).double() * scales).t(), dtype)


@pytest.mark.parametrize(("n", "k"), [(72, 4096), (8208, 4096), (40, 4128)])
def test_long_rows(device: torch.device, n: int, k: int) -> None:
    """Of many outputs and of few, whose sums more threads share."""
    x, codes, pairs = torch.randn(1, k), torch.randint(0, 16, (n, k), dtype=torch.int32), torch.randn(k // 32, n, 2)
    result = aten._weight_int4pack_mm(x.to(device), packed(codes, device, 2), 32, pairs.to(device))
    scales, zeros = (t.t().double().repeat_interleave(32, 1) for t in pairs.unbind(2))
    close(result, x.double() @ ((codes.double() - 8) * scales + zeros).t(), torch.float32)
    codes, scales = torch.randint(-128, 128, (n, k), dtype=torch.int8), torch.rand(n)
    result = aten._weight_int8pack_mm(x.to(device), codes.to(device), scales.to(device))
    close(result, (x.double() @ codes.double().t()) * scales.double(), torch.float32)


@pytest.mark.parametrize("k", [96, 100])
def test_products_on_matrices(device: torch.device, monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """Emulated, as on a GPU with tensor cores: a prompt of float16. Rows of 100 numbers come one by one."""
    chosen = pretend(monkeypatch, NVIDIA)
    x, codes = torch.randn(40, k).half(), torch.randint(-128, 128, (72, k), dtype=torch.int8)
    scales = torch.rand(72).half()
    result = aten._weight_int8pack_mm(x.to(device), codes.to(device), scales.to(device))
    close(result, (x.double() @ codes.double().t()) * scales.double(), torch.float16)
    if k % 32 == 0:
        numbers, pairs = torch.randint(0, 16, (72, k), dtype=torch.int32), torch.randn(3, 72, 2).half()
        result = aten._weight_int4pack_mm(x.to(device), packed(numbers, device, 2), 32, pairs.to(device))
        scale, zero = (t.t().double().repeat_interleave(32, 1) for t in pairs.unbind(2))
        close(result, x.double() @ ((numbers.double() - 8) * scale + zero).t(), torch.float16)
    assert chosen


def test_weights_are_read_packed(device: torch.device) -> None:
    """One dispatch of a plan whose buffers are the packed weights: nothing as large as numbers is written."""
    from torch_webgpu.plan import trace

    codes = torch.randint(0, 16, (64, 256), dtype=torch.int32)
    weight, pairs = packed(codes, device, 8), torch.randn(4, 64, 2, device=device)
    for rows in (1, 5):
        x = torch.randn(rows, 256, device=device)
        plan = trace(lambda x, w, s: aten._weight_int4pack_mm(x, w, 64, s), x, weight, pairs)
        inputs = sum(t.nbytes for t in (x, weight, pairs))
        sizes = [b.size_bytes for b in plan.buffers if b.role != "errors"]
        assert len(plan.steps) == 1
        assert sum(sizes) <= inputs + rows * 64 * 4 + 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"group": 48}, "qGroupSize to be 32, 64, 128 or 256"),
        ({"x": torch.zeros(1, 64)}, "A to be a matrix of 128 columns"),
        ({"x": torch.zeros(1, 128, dtype=torch.int32)}, "A to be either 32-bit or 16-bit float"),
        ({"pairs": torch.zeros(3, 8, 2)}, "scales and zeros for 2 groups of 8 rows"),
    ],
)
def test_refusals(device: torch.device, change: dict[str, object], words: str) -> None:
    given = {"x": torch.zeros(1, 128), "group": 64, "pairs": torch.zeros(2, 8, 2)} | change
    weight = packed(torch.zeros(8, 128, dtype=torch.int32), device, 8)
    with pytest.raises(RuntimeError, match=words):
        aten._weight_int4pack_mm(given["x"].to(device), weight, given["group"], given["pairs"].to(device))
    with pytest.raises(RuntimeError, match="innerKTiles need to be 2, 4, or 8"):
        aten._convert_weight_to_int4pack(torch.zeros(8, 64, dtype=torch.uint8, device=device), 3)


@settings(max_examples=8, deadline=None)
@given(m=st.integers(17, 40), k=st.integers(1, 5), n=st.integers(1, 5))
def test_int8_by_int8(device: torch.device, m: int, k: int, n: int) -> None:
    a, b = (torch.randint(-128, 128, size, dtype=torch.int8) for size in ((m, 8 * k), (8 * k, 8 * n)))
    assert torch.equal(torch._int_mm(a.to(device), b.to(device)).cpu(), torch._int_mm(a, b))


@pytest.mark.parametrize(("dtype", "error"), [("int8", 0.02), ("int4", 0.2)])
def test_quantized_layers(device: torch.device, dtype: str, error: float) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 24), torch.nn.Linear(24, 8)).eval()
    quantized = torch.webgpu.quantize_(copy.deepcopy(model), dtype)
    assert type(quantized[1]) is torch.nn.Linear or dtype == "int8"  # 24 is no multiple of a group
    x = torch.randn(2, 3, 64)
    with torch.no_grad():
        expected, plain = quantized(x), model(x)
        assert 1e-5 < (expected - plain).abs().max() / plain.abs().max() < error
        on_device, x = quantized.to(device), x.to(device)
        torch.testing.assert_close(on_device(x).cpu(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(torch.compile(on_device)(x).cpu(), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="not to 'int2'"):
        torch.webgpu.quantize_(model, "int2")
    with pytest.raises(ValueError, match="not 16"):
        torch.webgpu.quantize_(model, "int4", group_size=16)


def test_which_layers_are_quantized() -> None:
    """A layer that two modules share stays one; a model that is a layer is returned as a new one; others by name."""
    shared = torch.nn.Linear(32, 32)
    model = torch.nn.ModuleDict({"a": torch.nn.Sequential(shared), "b": torch.nn.Sequential(shared, torch.nn.ReLU())})
    model["c"] = torch.nn.Linear(32, 4)
    names = torch.webgpu.quantize_(model, "int4", filter_fn=lambda module, name: name != "c")
    assert names is model
    assert model["a"][0] is model["b"][0] is not shared
    assert type(model["c"]) is torch.nn.Linear
    alone = torch.webgpu.quantize_(shared)
    assert alone is not shared
    assert {name: t.dtype for name, t in alone.named_buffers()} == {"weight": torch.int8, "scales": torch.float32}


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_layers_whose_weight_lies_transposed(device: torch.device, dtype: str) -> None:
    """Transformers' Conv1D, of which GPT-2 is made, is the linear layer that it computes."""
    conv = pytest.importorskip("transformers.pytorch_utils").Conv1D(24, 64)
    torch.nn.init.normal_(conv.bias)
    linear = torch.nn.Linear(64, 24)
    with torch.no_grad():
        linear.weight.copy_(conv.weight.t())
        linear.bias.copy_(conv.bias)
    model = torch.nn.Sequential(conv)
    quantized, expected = torch.webgpu.quantize_(model, dtype)[0], torch.webgpu.quantize_(linear, dtype)
    assert all(torch.equal(a, b) for a, b in zip(quantized.buffers(), expected.buffers()))
    x = torch.randn(2, 3, 64)
    with torch.no_grad():
        on_cpu = expected(x)
        assert torch.equal(quantized(x), on_cpu)
        torch.testing.assert_close(quantized.to(device)(x.to(device)).cpu(), on_cpu, rtol=1e-5, atol=1e-5)
