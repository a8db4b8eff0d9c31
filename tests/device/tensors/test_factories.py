"""Factories: what they contain, their dtypes, strides and errors, and that nothing falls back to the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.device.against_cpu import outcome

Make = Callable[[torch.device], torch.Tensor]

MAKE: dict[str, Make] = {
    "arange": lambda d: torch.arange(7, device=d),
    "arange empty": lambda d: torch.arange(3, 3, device=d),
    "arange step": lambda d: torch.arange(-3, 20, 4, device=d),
    "arange down": lambda d: torch.arange(10, -5, -3, device=d),
    "arange int32 of floats": lambda d: torch.arange(0.0, -8.000001, -4.0, dtype=torch.int32, device=d),
    "arange int64 of floats": lambda d: torch.arange(0.0, -8.000001, -4.0, dtype=torch.int64, device=d),
    "arange of parts": lambda d: torch.arange(0.0, 5.0, 0.6, dtype=torch.int16, device=d),
    "arange float": lambda d: torch.arange(0, 1, 0.1, device=d),
    "arange float down": lambda d: torch.arange(2.5, -2.5, -0.7, device=d),
    "arange float32 of ints": lambda d: torch.arange(1000, dtype=torch.float32, device=d),
    "arange half": lambda d: torch.arange(0, 10, 0.5, dtype=torch.float16, device=d),
    "arange bfloat16": lambda d: torch.arange(0, 10, dtype=torch.bfloat16, device=d),
    "arange double": lambda d: torch.arange(0, 1, 0.01, dtype=torch.float64, device=d),
    "arange uint8": lambda d: torch.arange(3, 250, 13, dtype=torch.uint8, device=d),
    "arange int32": lambda d: torch.arange(-5, 5, dtype=torch.int32, device=d),
    "arange large": lambda d: torch.arange(2**40, 2**40 + 5, device=d),
    "arange truncated": lambda d: torch.arange(0.5, 6.5, 1.5, dtype=torch.int64, device=d),
    "range": lambda d: torch.range(0, 3, 0.5, device=d),
    "linspace": lambda d: torch.linspace(-1, 1, 11, device=d),
    "linspace one": lambda d: torch.linspace(3, 7, 1, device=d),
    "linspace none": lambda d: torch.linspace(3, 7, 0, device=d),
    "linspace half": lambda d: torch.linspace(0, 1, 20, dtype=torch.float16, device=d),
    "linspace int": lambda d: torch.linspace(0, 10, 7, dtype=torch.int64, device=d),
    "linspace double": lambda d: torch.linspace(0, 1, 33, dtype=torch.float64, device=d),
    "linspace complex": lambda d: torch.linspace(0, 1 + 2j, 5, dtype=torch.complex64, device=d),
    "linspace tensors": lambda d: torch.linspace(torch.tensor(1.0, device=d), 2, 5, device=d),
    "logspace": lambda d: torch.logspace(-2, 2, 9, device=d),
    "logspace base": lambda d: torch.logspace(0, 5, 6, base=2.0, device=d),
    "logspace int": lambda d: torch.logspace(0, 3, 4, dtype=torch.int32, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "eye wide": lambda d: torch.eye(2, 5, dtype=torch.int64, device=d),
    "eye bool": lambda d: torch.eye(5, 3, dtype=torch.bool, device=d),
    "eye half": lambda d: torch.eye(3, dtype=torch.float16, device=d),
    "full": lambda d: torch.full((2, 3), 7, device=d),
    "full float": lambda d: torch.full((3,), 0.1, device=d),
    "full bool": lambda d: torch.full((3,), True, device=d),
    "full complex": lambda d: torch.full((3,), 1 - 2j, device=d),
    "full inf": lambda d: torch.full((3,), float("inf"), dtype=torch.bfloat16, device=d),
    "full 0-dim": lambda d: torch.full((), 3.5, device=d),
    "full wraps": lambda d: torch.full((3,), -1, dtype=torch.uint8, device=d),
    "full int64": lambda d: torch.full((3,), -(2**62) - 1, device=d),
    "full uint64": lambda d: torch.full((3,), 2**63 + 5, dtype=torch.uint64, device=d),
    "ones": lambda d: torch.ones(2, 0, 3, device=d),
    "zeros": lambda d: torch.zeros(5, dtype=torch.int16, device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2, 3, device=d).t()),
    "ones_like": lambda d: torch.ones_like(torch.zeros(2, 3, device=d), dtype=torch.uint8),
    "full_like": lambda d: torch.full_like(torch.zeros(2, 3, device=d), 4.5, dtype=torch.float16),
    "new_zeros": lambda d: torch.ones(1, dtype=torch.int32, device=d).new_zeros(3),
    "new_ones": lambda d: torch.ones(1, dtype=torch.int32, device=d).new_ones(3, dtype=torch.bool),
    "new_full": lambda d: torch.ones(1, device=d).new_full((2, 2), 3),
    "new_tensor": lambda d: torch.ones(1, device=d).new_tensor([1, 2]),
    "tril_indices": lambda d: torch.tril_indices(4, 3, device=d),
    "tril_indices offset": lambda d: torch.tril_indices(5, 6, -2, dtype=torch.int32, device=d),
    "tril_indices none": lambda d: torch.tril_indices(0, 3, device=d),
    "triu_indices": lambda d: torch.triu_indices(3, 5, device=d),
    "triu_indices offset": lambda d: torch.triu_indices(6, 4, 1, device=d),
    "triu_indices below": lambda d: torch.triu_indices(3, 3, -2, device=d),
    "complex": lambda d: torch.complex(torch.arange(3.0, device=d), torch.ones(3, device=d)),
    "polar": lambda d: torch.polar(torch.arange(3.0, device=d), torch.ones(3, device=d)),
    "hann": lambda d: torch.hann_window(9, device=d),
    "hann symmetric": lambda d: torch.hann_window(9, periodic=False, device=d),
    "hamming": lambda d: torch.hamming_window(8, device=d),
    "blackman": lambda d: torch.blackman_window(8, device=d),
    "bartlett": lambda d: torch.bartlett_window(8, device=d),
    "kaiser": lambda d: torch.kaiser_window(9, device=d),
    "kaiser symmetric": lambda d: torch.kaiser_window(9, periodic=False, beta=5.0, device=d),
    "kaiser one": lambda d: torch.kaiser_window(1, device=d),
    "vander": lambda d: torch.vander(torch.arange(1.0, 4.0, device=d), 4),
    "scalar_tensor": lambda d: torch.scalar_tensor(3, device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "tensor float": lambda d: torch.tensor([1.5, 2], dtype=torch.bfloat16, device=d),
    "tensor empty": lambda d: torch.tensor([], device=d),
    "tensor nested": lambda d: torch.tensor([torch.tensor(1.0), torch.tensor(2.0)], device=d),
    "as_tensor": lambda d: torch.as_tensor(np.arange(4), device=d),
    "as_tensor list": lambda d: torch.as_tensor([True, False], device=d),
    "asarray": lambda d: torch.asarray(np.arange(4.0), dtype=torch.float32, device=d),
    "from_numpy": lambda d: torch.from_numpy(np.arange(6, dtype=np.int16).reshape(2, 3).T).to(d),
    "cartesian_prod": lambda d: torch.cartesian_prod(torch.arange(2, device=d), torch.arange(3, device=d)),
    "combinations": lambda d: torch.combinations(torch.arange(4, device=d)),
    "meshgrid": lambda d: torch.meshgrid(torch.arange(2, device=d), torch.arange(3, device=d), indexing="ij")[1],
    "diag_embed": lambda d: torch.diag_embed(torch.arange(3.0, device=d), 1),
    "block_diag": lambda d: torch.block_diag(torch.ones(2, 2, device=d), torch.arange(3, device=d)),
}


@pytest.fixture
def no_fallback(device: torch.device) -> Iterator[None]:
    if device.type != "webgpu":
        yield
        return
    before = dict(torch.webgpu.fallback_stats())
    yield
    after = torch.webgpu.fallback_stats()
    assert {op: n for op, n in after.items() if n != before.get(op)} == {}


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("name", MAKE)
def test_contents(name: str, device: torch.device) -> None:
    got, want = MAKE[name](device), MAKE[name](torch.device("cpu"))
    assert got.device.type == device.type
    assert not want.numel() or got.stride() == want.stride()
    torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("steps", [2, 3, 50, 1001])
def test_linspace_hits_both_ends(steps: int, device: torch.device) -> None:
    x = torch.linspace(0.1, 0.7, steps, device=device)
    assert x[0].item() == np.float32(0.1)
    assert x[-1].item() == np.float32(0.7)
    torch.testing.assert_close(x.cpu(), torch.linspace(0.1, 0.7, steps), rtol=3e-7, atol=0)


def test_long_ranges_are_exact(device: torch.device) -> None:
    n = 70_000 * 256 // 64
    assert torch.equal(torch.arange(n, device=device).cpu(), torch.arange(n))
    x = torch.arange(0, 2**24, 2**10, dtype=torch.float32, device=device)
    assert torch.equal(x.cpu(), torch.arange(0, 2**24, 2**10, dtype=torch.float32))


RANGES: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((5,), {}), ((5.0,), {}), ((True,), {}), ((0,), {}), ((-0.0, 2.0), {}), ((7, 1, -2), {}), ((1, 2, 0.25), {}),
    ((5,), {"dtype": torch.float16}), ((2.9,), {"dtype": torch.int32}), ((3, 260), {"dtype": torch.uint8}),
    ((5,), {"dtype": torch.complex64}), ((5,), {"layout": torch.sparse_coo}), ((0, 1, 0), {}), ((2, 1), {}),
    ((0, float("inf")), {}), ((0, float("nan")), {}), ((3,), {"dtype": torch.bool}), ((5,), {"requires_grad": True}),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "options"), RANGES, ids=str)
def test_new_ranges(numbers: tuple[Any, ...], options: dict[str, Any], device: torch.device) -> None:
    def make(place: torch.device | str) -> Any:
        try:
            return torch.arange(*numbers, **options, device=place)
        except (RuntimeError, NotImplementedError) as error:
            return error

    want = make("cpu")
    for _ in range(3):  # the second is made of what the first recorded
        got = make(device)
        if isinstance(want, Exception):
            assert isinstance(got, (RuntimeError, NotImplementedError))
            continue
        assert got.requires_grad == want.requires_grad
        assert got.dtype == want.dtype
        torch.testing.assert_close(got.detach().cpu(), want.detach())
        if got.dtype != torch.bool:
            got.detach().add_(1)  # nobody else's memory


TOO_LARGE: list[Callable[[Any], torch.Tensor]] = [
    lambda device: torch.empty(2**62, dtype=torch.int64, device=device),
    lambda device: torch.zeros(2**61, device=device),
    lambda device: torch.empty(2**40, 2**40, device=device),
    lambda device: torch.empty_strided((2, 2), (2**62, 1), device=device),
    lambda device: torch.arange(2**62, device=device),
]


@pytest.mark.parametrize("make", TOO_LARGE)
def test_more_bytes_than_a_number_counts_are_refused(make: Callable[[Any], torch.Tensor], device: torch.device) -> None:
    errors = []
    for place in ("cpu", device):
        with pytest.raises(RuntimeError, match="Storage size calculation overflowed") as raised:
            make(place)
        errors.append(str(raised.value).splitlines()[0])
    assert errors[0] == errors[1]


def test_new_ranges_have_the_default_dtype(device: torch.device) -> None:
    for dtype in (torch.float32, torch.float16, torch.float32):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            assert [torch.arange(2.5, device=device).dtype for _ in range(2)] == [dtype, dtype]
        finally:
            torch.set_default_dtype(before)


FORMATS = [torch.contiguous_format, torch.channels_last, torch.preserve_format]
OUT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "arange": (torch.arange, (2, 9, 2)),
    "linspace": (torch.linspace, (0.0, 1.0, 4)),
    "logspace": (torch.logspace, (0.0, 1.0, 4)),
    "eye": (torch.eye, (2, 3)),
    "full": (torch.full, ((2, 2), 5.0)),
    "ones": (torch.ones, (2, 3)),
    "zeros": (torch.zeros, (4,)),
    "range": (torch.range, (0, 4)),
}


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("name", OUT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_out(name: str, dtype: torch.dtype, device: torch.device) -> None:
    make, args = OUT[name]
    want = make(*args, out=torch.empty(0, dtype=dtype))
    got = torch.empty(0, dtype=dtype, device=device)
    assert make(*args, out=got) is got
    torch.testing.assert_close(got.cpu(), want)
    strided = torch.zeros(*want.shape, 2, dtype=dtype, device=device)[..., 1]
    make(*args, out=strided)
    torch.testing.assert_close(strided.cpu(), want)


@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last, torch.preserve_format], ids=str
)
def test_empty_like_and_strides(memory_format: torch.memory_format, device: torch.device) -> None:
    for x in (torch.empty(2, 3, 4, 5), torch.empty(2, 4, 5, 3).permute(0, 3, 1, 2), torch.empty(2, 3, 4, 5)[:, ::2]):
        want = torch.empty_like(x, memory_format=memory_format)
        got = torch.empty_like(x.to(device), memory_format=memory_format)
        on_device = torch.empty_strided(x.shape, x.stride(), device=device)
        assert torch.empty_like(on_device, memory_format=memory_format).stride() == want.stride()
        assert got.shape == want.shape
    assert torch.empty(2, 3, 4, 5, device=device, memory_format=torch.channels_last).stride() == (60, 1, 15, 3)
    assert (
        torch.empty_permuted((2, 3, 4), (2, 0, 1), device=device).stride()
        == torch.empty_permuted((2, 3, 4), (2, 0, 1)).stride()
    )
    assert torch.empty_strided((3, 2), (1, 5), device=device).stride() == (1, 5)
    assert torch.ones(2, device=device).new_empty_strided((2, 2), (1, 2)).stride() == (1, 2)


def test_errors_are_pytorchs(device: torch.device) -> None:
    for make in (
        lambda d: torch.arange(0, 5, 0, device=d),
        lambda d: torch.arange(0, 5, -1, device=d),
        lambda d: torch.arange(0, float("inf"), device=d),
        lambda d: torch.empty(2, -1, device=d),
        lambda d: torch.linspace(0, 1, -1, device=d),
        lambda d: torch.eye(-1, device=d),
        lambda d: torch.full((2,), 300, dtype=torch.uint8, device=d),
        lambda d: torch.full((2,), 1e6, dtype=torch.float16, device=d),
        lambda d: torch.full((2,), 2**40, dtype=torch.int32, device=d),
        lambda d: torch.zeros(3, device=d).fill_(torch.ones(2, device=d)),
        lambda d: torch.zeros(2, device=d, dtype=torch.int32).fill_(1j),
        lambda d: torch.tril_indices(-1, 2, device=d),
    ):
        with pytest.raises((RuntimeError, TypeError)) as on_cpu:
            make(torch.device("cpu"))
        with pytest.raises(on_cpu.type):
            make(device)
    if device.type == "webgpu":
        with pytest.raises(RuntimeError, match="pinned"):
            torch.empty(3, device=device, pin_memory=True)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("name", OUT)
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (5, 4), (4,), (0, 3)], ids=str)
def test_out_of_any_shape(name: str, shape: tuple[int, ...], device: torch.device) -> None:
    """Into a part of a larger tensor: what is resized, what is written, and what is warned of."""
    make, args = OUT[name]

    def write(d: Any) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        whole = torch.full((6, 9), 7.0, device=d)
        out = whole[1 : 1 + shape[0], 2 : 2 + shape[1]] if len(shape) == 2 else whole[2, 1::2]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make(*args, out=out)
        return whole.cpu(), out.cpu(), [str(w.message).split("(Triggered")[0].strip() for w in caught]

    (whole, out, said), (on_cpu, out_on_cpu, cpu_said) = write(device), write("cpu")
    torch.testing.assert_close(out, out_on_cpu)
    torch.testing.assert_close(whole, on_cpu)
    assert said == cpu_said


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("value", [-1, -2, 255, 300, -129, 2**31, 2**40, 1.7, -1.7, True], ids=str)
def test_filled_integers_wrap_or_are_refused(dtype: torch.dtype, value: float, device: torch.device) -> None:
    """Also in the registers of a kernel that fuses the fill with what reads it."""
    index, mask = torch.tensor([0, 2]), torch.tensor([True, False, True])

    def results(d: Any) -> list[Any]:
        x = torch.zeros(3, dtype=dtype, device=d)
        fills: list[Callable[[], torch.Tensor]] = [
            lambda: torch.full((2, 2), value, dtype=dtype, device=d),
            lambda: x.clone().fill_(value),
            lambda: x.index_fill(0, index.to(d), value),
            lambda: x.scatter(0, index.to(d), value),
            lambda: x.masked_fill(mask.to(d), value),
            lambda: torch.scalar_tensor(value, dtype=dtype, device=d),
        ]
        return [
            outcome(lambda fill=fill: torch.stack([fill().sum().long(), *fill().reshape(-1).long()])) for fill in fills
        ]

    for found, expected in zip(results(device), results("cpu"), strict=True):
        assert type(found) is type(expected)
        assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected


@pytest.mark.parametrize("dtype", [torch.uint64, torch.complex128], ids=str)
def test_numbers_in_dtypes_without_kernels(dtype: torch.dtype, device: torch.device) -> None:
    for make in (torch.ones, torch.zeros, lambda *n, **options: torch.full(n, 7, **options)):
        assert torch.equal(make(2, 3, dtype=dtype, device=device).cpu(), make(2, 3, dtype=dtype))


def test_filling_an_expanded_tensor(device: torch.device) -> None:
    for dtype in (torch.float32, torch.uint8):
        x = torch.zeros(2, 1, dtype=dtype, device=device)
        assert x.expand(2, 5).fill_(3).tolist() == [[3] * 5] * 2
        assert x.tolist() == [[3], [3]]


def test_default_device(device: torch.device) -> None:
    with torch.device(device):
        assert torch.zeros(2).device.type == device.type
        assert torch.tensor([1]).device.type == device.type
        assert torch.nn.Linear(2, 2).weight.device.type == device.type
        assert torch.arange(3).sum().item() == 3
    torch.set_default_device(device)
    try:
        assert torch.rand(2).device.type == device.type
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"
