"""The 8-bit floats on the device against the CPU: every code, rounding, moving elements, scaled products, errors."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import outcome
from tests.device.processes import assert_ends_well

from torch_webgpu.aten.dispatch.fallback import fallback_stats
from torch_webgpu.engine.record import engine

FLOAT8 = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
CODES = torch.arange(256, dtype=torch.int32).to(torch.uint8)
float8 = pytest.mark.parametrize("dtype", FLOAT8, ids=str)


def codes(t: torch.Tensor) -> torch.Tensor:
    return t.cpu().contiguous().view(torch.uint8)


def same_floats(actual: torch.Tensor, expected: torch.Tensor) -> None:
    if engine().device(0).info["adapter_type"] != "CPU":
        # WGSL lets an adapter flush subnormal numbers to zero, as GPUs do where they compute with one.
        flushed = (expected.float().abs() < torch.finfo(torch.float32).tiny) & (actual.cpu() == 0)
        expected = torch.where(flushed, expected * 0, expected)
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    a, e = (t.cpu().double() for t in (actual, expected))
    assert torch.equal(a.signbit() & ~a.isnan(), e.signbit() & ~e.isnan())


@pytest.fixture
def no_fallback():
    before = fallback_stats()
    yield
    assert fallback_stats() == before


@pytest.mark.float64
@float8
def test_every_code_to_other_types(device, dtype, no_fallback):
    x = CODES.view(dtype)
    for target in (*FLOATS, *FLOAT8):
        same_floats(x.to(device).to(target).float(), x.to(target).float())
    numbers = x[~x.float().isnan()]
    for target in (torch.int32, torch.int64, torch.complex64, torch.bool):
        small = numbers if target == torch.complex64 else numbers[numbers.float().abs() < 2**31]
        assert torch.equal(small.to(device).to(target).cpu(), small.to(target))


def hard_numbers(dtype: torch.dtype) -> torch.Tensor:
    """Every number of the type, the ties between them and their neighbours, and floats of all magnitudes."""
    numbers = CODES.view(dtype).float()
    numbers = numbers[numbers.isfinite()].unique()
    ties = (numbers[1:] + numbers[:-1]) / 2
    around = [torch.nextafter(ties, torch.full_like(ties, end)) for end in (-torch.inf, torch.inf)]
    beyond = numbers.abs().max() * torch.tensor([1.01, 17 / 16, 1.1, 1.125, 1.25, 1.5, 2, 1e30])
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, -1e-45])
    any_bits = torch.randint(-(2**31), 2**31, (20_000,)).to(torch.int32).view(torch.float32)
    return torch.cat([numbers, ties, *around, beyond, -beyond, special, any_bits])


@pytest.mark.float64
@float8
def test_rounding(device, dtype, no_fallback):
    x = hard_numbers(dtype)
    for source in (x, x.half(), x.bfloat16(), x.double()):
        # A NaN's sign may be lost on the way.
        on_device, on_cpu = codes(source.to(device).to(dtype)), codes(source.to(dtype))
        wrong = (on_device != on_cpu) & ~source.isnan()
        assert not wrong.any(), (source[wrong][:8], on_device[wrong][:8], on_cpu[wrong][:8])
        assert on_device.view(dtype).float()[source.isnan()].isnan().all()
    for whole in (
        torch.arange(-70_000, 70_000, 7),
        torch.arange(-128, 128).to(torch.int8),
        torch.tensor([True, False]),
    ):
        assert torch.equal(codes(whole.to(device).to(dtype)), codes(whole.to(dtype)))


def index_put(t):
    t = t.clone()
    t[torch.tensor([2, 0], device=t.device)] = t.flip(0)[:2]
    t[1:2, ::2] = 1.5
    return t


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone of a view": lambda t: t[1:, ::2].t().clone(),
    "contiguous": lambda t: t.t().contiguous(),
    "expand": lambda t: t[:1].expand(3, 7).contiguous(),
    "cat": lambda t: torch.cat([t[:, 1:4], t.flip(0)], 1),
    "stack": lambda t: torch.stack([t, t]),
    "index": lambda t: t[torch.tensor([1, 0, 1], device=t.device)],
    "mask": lambda t: t[t.float() > 0],
    "index_select": lambda t: t.index_select(1, torch.tensor([6, 0], device=t.device)),
    "embedding": lambda t: F.embedding(torch.tensor([1, 1, 0], device=t.device), t),
    "where": lambda t: torch.where(t.float() > 0, t, t.flip(0)),
    "flip": lambda t: t.flip(0),
    "roll": lambda t: t.roll(1, 1),
    "repeat": lambda t: t.repeat(2, 2),
    "fill": lambda t: t.clone().fill_(0.5),
    "zero": lambda t: t.clone().zero_(),
    "view as integers": lambda t: t.view(torch.int8),
    "empty": lambda t: t[:0].clone(),
}


@float8
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_moving_elements(device, dtype, move, no_fallback):
    x = torch.randn(3, 7).to(dtype)
    actual, expected = move(x.to(device)), move(x)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert torch.equal(codes(actual), codes(expected))


@pytest.mark.parametrize("dtype", FLOAT8[:4], ids=str)
def test_writing_elements(device, dtype, no_fallback):
    x = torch.randn(3, 7).to(dtype)
    assert torch.equal(codes(index_put(x.to(device))), codes(index_put(x)))


@float8
def test_making_printing_and_reading(device, dtype):
    made = torch.full((2, 3), 1.5, dtype=dtype, device=device)
    assert torch.equal(codes(made), codes(torch.full((2, 3), 1.5, dtype=dtype)))
    assert torch.equal(codes(torch.ones(3, dtype=dtype, device=device)), codes(torch.ones(3, dtype=dtype)))
    assert codes(torch.zeros(3, dtype=dtype, device=device)).tolist() == [0, 0, 0]
    x = torch.tensor([1.0, 0.5, 2.0], dtype=dtype, device=device)
    assert (x.tolist(), x[1].item()) == ([1.0, 0.5, 2.0], 0.5)
    assert repr(x).split() == repr(x.cpu()).replace("dtype=", "device='webgpu:0', dtype=").split()


@float8
def test_saving_and_loading(device, dtype):
    x = CODES.view(dtype).to(device)
    file = io.BytesIO()
    torch.save({"x": x, "view": x[3:9]}, file)
    for place in ("cpu", device):
        file.seek(0)
        loaded = torch.load(file, map_location=place)
        assert (loaded["x"].device.type, loaded["x"].dtype) == (torch.device(place).type, dtype)
        assert torch.equal(codes(loaded["x"]), CODES)
        assert torch.equal(codes(loaded["view"]), CODES[3:9])


REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "add": lambda t: t + t,
    "add a number": lambda t: t + 1,
    "mul in place": lambda t: t.mul_(2),
    "promotion": lambda t: t.float() * t,
    "exp": lambda t: t.exp(),
    "sum": lambda t: t.sum(),
    "max": lambda t: t.max(),
    "sort": lambda t: t.sort(),
    "cumsum": lambda t: t.cumsum(0),
    "softmax": lambda t: t.softmax(0),
    "masked_fill": lambda t: t.masked_fill(t.float() > 0, 1.0),
    "gather": lambda t: t.gather(0, torch.zeros(1, 4, dtype=torch.long, device=t.device)),
    "index_add": lambda t: t.index_add(0, torch.tensor([0], device=t.device), t[:1]),
    "foreach": lambda t: torch._foreach_add([t], [t]),
    "random": lambda t: t.normal_(),
}


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
@pytest.mark.parametrize("dtype", FLOAT8[:2], ids=str)
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_what_the_cpu_refuses(device, dtype, refused):
    x = torch.randn(4, 4).to(dtype)
    expected = outcome(refused, x)
    assert isinstance(expected[0], type)
    assert outcome(refused, x.to(device)) == expected


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
@pytest.mark.parametrize(
    "fn",
    [lambda t: t == t.flip(0), lambda t: t.isnan(), lambda t: t.abs(), lambda t: t @ t.t()],
    ids="eq isnan abs mm".split(),
)
def test_what_else_the_cpu_does(device, fn):
    x = torch.randn(16, 16).to(torch.float8_e4m3fn)
    assert torch.equal(fn(x.to(device)).cpu().float(), fn(x).float())


def scaled(device, a, b, scale_a, scale_b, bias=None, **options):
    given = [t if t is None else t.to(device) for t in (a, b, scale_a, scale_b, bias)]
    return torch._scaled_mm(*given, **options)


A = torch.randn(16, 48).to(torch.float8_e4m3fn)
B = torch.randn(32, 48).to(torch.float8_e4m3fn).t()
ONE, HALF = torch.tensor(1.5), torch.tensor([[0.5]])
ROWS, COLUMNS = torch.linspace(0.5, 2, 16)[:, None], torch.linspace(3, 0.1, 32)[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2, None], ids=str)
@pytest.mark.parametrize("scales", [(ONE, HALF), (ROWS, COLUMNS)], ids=["per tensor", "by row"])
@pytest.mark.parametrize("bias", [None, torch.randn(32)], ids=["", "bias"])
def test_scaled_mm(device, dtype, scales, bias, no_fallback):
    # Not the CPU's operator: before 2.13 it takes one scale only.
    product = (A.double() * scales[0]) @ (B.double() * scales[1])
    expected = (product if bias is None else product + bias).float().to(dtype or A.dtype)
    actual = scaled(device, A, B, *scales, bias, out_dtype=dtype).cpu()
    assert actual.dtype == expected.dtype
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float8_e5m2: 0.25, None: 0.125}
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance[dtype], atol=1e-4)


def test_scaled_mm_of_other_types_and_layouts(device, no_fallback):
    options = {"out_dtype": torch.float32}
    for a, b in ((A.to(torch.float8_e5m2), B), (A, B.contiguous()), (A[:, :7], B[:7]), (A[:0], B)):
        expected = scaled("cpu", a, b, ONE, ONE, **options)
        torch.testing.assert_close(scaled(device, a, b, ONE, ONE, **options).cpu(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
@pytest.mark.parametrize(
    "given",
    [
        (A, B[:16], ONE, ONE),
        (A.float(), B, ONE, ONE),
        (A, B, ROWS, ONE),
        (A, B, ONE.half(), ONE),
        (A, B, ONE, ONE, ONE),
    ],
    ids=["shapes", "float32", "one scale by row", "float16 scale", "bias"],
)
def test_scaled_mm_refuses_as_on_cpu(device, given):
    expected = outcome(lambda: scaled("cpu", *given))
    if isinstance(expected, torch.Tensor):
        pytest.skip("the CPU of this PyTorch takes it")
    assert outcome(lambda: scaled(device, *given)) == expected


@pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", "CPU"),
    reason="the CPU of this PyTorch has no torch.nn.functional.scaled_mm to compare with",
)
@pytest.mark.parametrize("recipe", ["TensorWise", "RowWise"])
def test_functional_scaled_mm(device, recipe, no_fallback):
    kind = getattr(F.ScalingType, recipe)
    scales = (ONE, ONE) if recipe == "TensorWise" else (ROWS, COLUMNS)

    def on(place):
        a, b, scale_a, scale_b = (t.to(place) for t in (A, B, *scales))
        return F.scaled_mm(a, b, scale_a, kind, scale_b, kind, output_dtype=torch.float32).cpu()

    torch.testing.assert_close(on(device), on("cpu"), rtol=1e-5, atol=1e-4)


def test_kernels_look_for_such_types_only_once_there_are_some():
    script = """
        from torch_webgpu.aten.tensors import storage_only
        x = torch.ones(2, device="webgpu") + 1
        assert not storage_only.guard_kernels.cache_info().currsize
        y = x.view(torch.int8).view(torch.float8_e5m2)
        assert storage_only.guard_kernels.cache_info().currsize
        with pytest.raises(NotImplementedError, match="add_stub"):
            y + y
        assert (x + 1).tolist() == [3, 3]
    """
    assert_ends_well(script, TORCH_WEBGPU_FALLBACK="silent")
