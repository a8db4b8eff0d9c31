"""Copies and conversions: every pair of dtypes, any strides, between devices, over parts of words."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest
import torch

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip
STORAGE_ONLY = [torch.uint64, torch.complex32, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]
FORMATS = {
    "contiguous": ((2, 3, 4, 5), torch.contiguous_format),
    "channels_last": ((2, 3, 4, 5), torch.channels_last),
    "channels_last_3d": ((2, 3, 2, 4, 5), torch.channels_last_3d),
}


def values(dtype: torch.dtype) -> torch.Tensor:
    """Thirteen numbers whose conversion to every other dtype is defined, or agreed on among x86 CPUs."""
    whole = torch.arange(-4, 9)
    if dtype.is_floating_point or dtype.is_complex:
        return (whole.double() * 1.7).to(dtype)
    return (whole % 2 == 0) if dtype == torch.bool else whole.to(dtype)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.device.type == "cpu"
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.float64
@pytest.mark.parametrize("source", DTYPES + STORAGE_ONLY, ids=str)
def test_every_conversion(source: torch.dtype, device: torch.device) -> None:
    on_cpu = values(source)
    x = on_cpu.to(device)
    same(x.cpu(), on_cpu)
    for target in DTYPES + STORAGE_ONLY:
        want = on_cpu.to(target)
        same(x.to(target).cpu(), want)
        same(x[1::3].to(target).cpu(), want[1::3])
        same(on_cpu.to(device, target).cpu(), want)
        same(x.to("cpu", target), want)


@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_special_values_and_ties_round_as_on_cpu(target: torch.dtype, device: torch.device) -> None:
    x = torch.tensor(
        [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 65504.0, 65519.9, 65520.0, 1e-8, 5.96e-8, 2.98e-8,
         6.1e-5, 1.00390625, 1.01171875, 2049.0, 2051.0, 3.3895314e38]
    )  # fmt: skip
    got, want = x.to(device).to(target).cpu(), x.to(target)
    same(got, want)
    assert torch.equal(torch.signbit(got[:2]), torch.signbit(want[:2]))


@pytest.mark.float64
def test_large_integers_become_floats_as_on_cpu(device: torch.device) -> None:
    x = torch.tensor([2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**24 + 1, 2**32 - 1, 2**31, -(2**31) - 1])
    for target in (torch.float32, torch.float64, torch.int32, torch.uint8, torch.int16, torch.bool):
        same(x.to(device).to(target).cpu(), x.to(target))


@pytest.mark.parametrize("dtype", DTYPES + STORAGE_ONLY, ids=str)
def test_any_strides_both_ways(dtype: torch.dtype, device: torch.device) -> None:
    base = torch.arange(120).reshape(4, 5, 6) % 11
    base = (base % 2 == 0) if dtype == torch.bool else base.to(dtype)
    on_device = base.to(device)
    for view in (
        lambda t: t.permute(2, 0, 1),
        lambda t: t[1:3, ::2, 1:],
        lambda t: t[:, 1],
        lambda t: t[0, 0, 1:2].expand(4, 3),
        lambda t: t[2, 3, 3],
        lambda t: t[:, :0],
        lambda t: t.transpose(0, 2)[3, 1:4],
    ):
        same(view(on_device).cpu(), view(base))
        same(view(on_device).clone().cpu(), view(base).clone())
        same(view(base).to(device).cpu(), view(base))
        if 0 in view(base).stride():
            continue
        for source in (view(base).contiguous().to(device), view(on_device), view(base)):
            want, got = torch.zeros_like(base), torch.zeros_like(on_device)
            view(want).copy_(source.cpu())
            view(got).copy_(source)
            same(got.cpu(), want)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("start", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_neighbours_in_a_word_are_kept(dtype: torch.dtype, start: int, length: int, device: torch.device) -> None:
    new = torch.arange(length) % 2 + 2
    for source in (new.to(dtype), new.to(device).to(dtype), new.to(device)):
        got = torch.ones(16, dtype=dtype, device=device)
        got[start : start + length].copy_(source)
        want = torch.ones(16, dtype=dtype)
        want[start : start + length].copy_(new)
        same(got.cpu(), want)


PARTS = (
    (slice(None), slice(1, 3), slice(4, 12)),
    (slice(0, 6, 2),),
    (slice(None), slice(None), slice(1, 9)),
    (slice(2, 4), 2, slice(0, 4)),
    (slice(None), slice(None), slice(0, 16, 2)),
)


@pytest.mark.float64
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_of_tensors_are_filled(dtype: torch.dtype, device: torch.device) -> None:
    """In groups of four where they consist of such, and no neighbour changes."""
    torch.manual_seed(0)
    whole = (torch.randn(6, 4, 16) * 3).abs().to(dtype)
    on_gpu = whole.to(device)
    for part in PARTS:
        filling = (torch.randn(whole[part].shape) * 3).abs().to(dtype)
        whole[part] = filling
        on_gpu[part] = filling.to(device)
        same(on_gpu.cpu(), whole)
    turned, filling = whole.transpose(0, 1)[1:3], (torch.randn(2, 6, 16) * 3).abs().to(dtype)
    turned.copy_(filling)
    on_gpu.transpose(0, 1)[1:3].copy_(filling.to(device))
    same(on_gpu.cpu(), whole)
    for dim in range(3):
        tensors = whole, whole.narrow(dim, 0, 4)
        same(torch.cat([t.to(device) for t in tensors], dim).cpu(), torch.cat(tensors, dim))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_memory_formats(name: str, dtype: torch.dtype, device: torch.device) -> None:
    shape, memory_format = FORMATS[name]
    x = torch.randn(shape).mul(20).to(dtype) if dtype.is_floating_point else torch.randint(0, 255, shape, dtype=dtype)
    y = x.to(device)
    for convert in (
        lambda t: t.to(memory_format=memory_format),
        lambda t: t.contiguous(memory_format=memory_format),
        lambda t: t.clone(memory_format=memory_format),
        lambda t: torch.empty_like(t, memory_format=memory_format).copy_(t),
        lambda t: t.to(torch.float32, memory_format=memory_format),
        lambda t: t.contiguous(memory_format=memory_format).clone(memory_format=torch.preserve_format),
        lambda t: t.contiguous(memory_format=memory_format).contiguous(),
        lambda t: t.contiguous(memory_format=memory_format).to(torch.float32),
        lambda t: t.transpose(1, 2).clone(),
    ):
        got, want = convert(y), convert(x)
        assert got.stride() == want.stride()
        same(got.cpu(), want)
    kept = x.to(memory_format=memory_format).to(device)
    assert kept.stride() == x.to(memory_format=memory_format).stride()
    same(kept.cpu(), x)


@pytest.mark.float64
def test_lazy_conjugates_and_negatives(device: torch.device) -> None:
    x = torch.tensor([1 + 2j, -3 - 1j, 0.5j], dtype=torch.complex64)
    y = x.to(device)
    assert y.conj().is_conj()
    assert y.conj().imag.is_neg()
    same(y.conj().cpu().resolve_conj(), x.conj().resolve_conj())
    same(y.conj().resolve_conj().cpu(), x.conj().resolve_conj())
    same(y.conj().imag.cpu().resolve_neg(), x.conj().imag.resolve_neg())
    same(y.conj().imag.to(torch.float16).cpu(), x.conj().imag.to(torch.float16))
    for target_is_conj in (False, True):
        for source in (x, x.conj(), y, y.conj()):
            got, want = torch.zeros_like(y), torch.zeros_like(x)
            (got.conj() if target_is_conj else got).copy_(source)
            (want.conj() if target_is_conj else want).copy_(source.cpu())
            same(got.cpu(), want)
    double = x.to(torch.complex128)
    same(double.to(device).conj().cpu().resolve_conj(), double.conj().resolve_conj())
    same(double.to(device).conj().clone().cpu().resolve_conj(), double.conj().resolve_conj())
    assert y.conj()[1].item() == (-3 + 1j)


def test_broadcasting_and_errors(device: torch.device) -> None:
    x = torch.zeros(2, 3, device=device)
    same(x.copy_(torch.arange(3.0)).cpu(), torch.arange(3.0).expand(2, 3))
    same(x.copy_(torch.tensor(7, device=device)).cpu(), torch.full((2, 3), 7.0))
    with pytest.raises(RuntimeError, match="must match"):
        x.copy_(torch.zeros(4, device=device))
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.zeros(1, device=device).expand(3).copy_(torch.arange(3.0, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64], ids=str)
def test_overlapping_parts_of_one_tensor(dtype: torch.dtype, device: torch.device) -> None:
    """PyTorch refuses them where neither has gaps (errors/test_memory_overlap.py). Others are as if copied first."""
    x = torch.arange(12, dtype=dtype)
    for target, source in (
        (slice(0, 10, 2), slice(5, 10)),
        (slice(1, 11, 2), slice(0, 10, 2)),
        (slice(2, 12, 2), slice(0, 5)),
    ):
        y = x.to(device)
        y[target].copy_(y[source])
        want = x.clone()
        want[target] = x[source].clone()
        same(y.cpu(), want)


def test_non_blocking_is_accepted_both_ways(device: torch.device) -> None:
    x = torch.arange(1000.0)
    y = x.to(device, non_blocking=True)
    x.zero_()
    same(y.to("cpu", non_blocking=True), torch.arange(1000.0))


def test_float64_where_the_adapter_has_none(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type != "webgpu":
        pytest.skip("about adapters without shader-f64")
    from torch_webgpu.engine.record import engine
    from torch_webgpu.engine.store import templates

    adapter = engine().device(0)
    monkeypatch.setattr(adapter, "target", dataclasses.replace(adapter.target, float64=False))
    monkeypatch.setattr(engine(), "templates", templates())  # tensors of which were made before
    for make in (
        lambda: torch.zeros(3, dtype=torch.float64, device=device),
        lambda: torch.zeros(3, dtype=torch.float64).to(device),
        lambda: torch.zeros(3, device=device).double(),
    ):
        with pytest.raises(TypeError, match=r"no 64-bit floats.*torch\.float32"):
            make()
    with pytest.raises(TypeError, match=r"torch\.complex64"):
        torch.zeros(3, dtype=torch.complex128, device=device)
    same(torch.ones(3, dtype=torch.float64).to(device, torch.float32).cpu(), torch.ones(3))


@pytest.mark.parametrize("other", ["cuda", "mps", "xpu", "hpu", "xla"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_other_accelerators_through_the_host(other: str, dtype: torch.dtype, device: torch.device) -> None:
    module = getattr(torch, other, None)
    if module is None or not getattr(module, "is_available", lambda: False)():
        pytest.skip(f"this machine has no {other} device")
    x = (torch.arange(24).reshape(4, 6) % 3).to(dtype)
    there = x.to(other)
    here = there.to(device)
    assert here.device.type == device.type
    same(here.cpu(), x)
    same(there.t()[1:].to(device).cpu(), x.t()[1:])
    same(x.to(device).t().to(other).cpu(), x.t())
    same(torch.zeros_like(there).copy_(x.to(device)).cpu(), x)
    same(torch.zeros(4, 6, device=device).copy_(there).cpu(), x.float())


def test_larger_than_a_binding() -> None:
    program = """
import torch
import torch_webgpu
x = torch.arange(300_000, dtype=torch.int32)
y = x.to("webgpu")
assert torch.equal(y.cpu(), x)
assert torch.equal(y.to(torch.float32).cpu(), x.float())
assert torch.equal(y.view(300, 1000).t().contiguous().cpu(), x.view(300, 1000).t())
assert torch.equal(y.to(torch.uint8)[3:200_001].cpu(), x.to(torch.uint8)[3:200_001])
z = torch.zeros(300_000, dtype=torch.int32, device="webgpu")
z[1::2].copy_(y[::2])
assert torch.equal(z.cpu()[1::2], x[::2])
"""
    from torch_webgpu.engine.record import engine

    # Five windows of what is read and five of what is written; some adapters bind no more than 8.
    few = engine().device(0).target.max_buffers < 10
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TORCH_WEBGPU_MAX_BINDING": str((512 if few else 256) << 10)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view], ids=["conj", "neg"])
def test_lazily_changed_complex_numbers_are_copied_anywhere(lazy, dtype, device):
    numbers = torch.tensor([1 + 2j, 3 - 4j], dtype=dtype)
    expected = lazy(numbers).resolve_conj().resolve_neg()
    for source, target in (("cpu", device), (device, "cpu"), (device, device)):
        into, through = (torch.zeros(2, dtype=dtype, device=target) for _ in range(2))
        into.copy_(lazy(numbers.to(source)))
        lazy(through).copy_(numbers.to(source))
        assert torch.equal(into.cpu(), expected)
        assert torch.equal(through.cpu(), expected)
