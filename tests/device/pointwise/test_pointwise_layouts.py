"""Per-element operators on any layout: strides, aliasing, sizes, random shapes, and adapters that lack features."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.device.against_cpu import check, same

from torch_webgpu.engine.record import engine

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
names = lambda value: str(value).removeprefix("torch.")


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    """Everything here has a kernel of its own."""
    before = torch.webgpu.fallback_stats()
    yield
    assert torch.webgpu.fallback_stats() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.bool, torch.int64], ids=names)
def test_strided_operands(dtype: torch.dtype, device: torch.device) -> None:
    def make(*shape: int) -> torch.Tensor:
        return torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(0)).to(dtype)

    x = make(2, 3, 2, 3, 2, 3)
    check(device, lambda x: x.permute(5, 1, 3, 2, 4, 0) + x[:1].permute(5, 1, 3, 2, 4, 0), x)
    check(device, torch.mul, make(5, 7).t(), make(7, 1).expand(7, 5))
    check(device, torch.eq, make(4, 9)[1:, 1::2], make(4))
    check(device, torch.add, make(3, 5, 7), make(5, 1))
    check(device, torch.add, make(3, 5, 7)[:, 1:4, ::2], make(7)[::2])
    image = make(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert (image.to(device) + 1).stride() == (image + 1).stride()
    check(device, lambda x: x + x.mT.mT, image)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.int16, torch.bool], ids=names)
def test_writing_through_views_touches_nothing_else(dtype: torch.dtype, device: torch.device) -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        x[1:, 1::2].add_(x[1:, 1::2])
        x[0, 1:4].mul_(x[0, :3].clone())
        x.t()[2:3].copy_(x[2, :5])
        x.view(-1)[7:10].logical_not_()
        torch.add(x[3], x[2], out=x[4])
        return x

    check(device, written, torch.arange(35).reshape(5, 7).to(dtype))


def test_overlapping_operands_are_read_before_they_are_written(device: torch.device) -> None:
    """Where one has gaps. PyTorch refuses others: errors/test_memory_overlap.py."""
    x = torch.arange(1000.0)
    parts = slice(None, 500), slice(None, None, 2), slice(1, None, 2), slice(250, 750)
    for write, read in itertools.permutations(parts, 2):
        if write.step == read.step:
            continue
        changed, expected = x.to(device), x.clone()
        changed[write].add_(changed[read])
        expected[write] += x[read]
        assert torch.equal(changed.cpu(), expected)
    square = torch.arange(400.0).reshape(20, 20)
    for change in (torch.Tensor.add_, torch.Tensor.mul_):
        changed, expected = square.to(device)[:, :19][:19], square.clone()[:, :19][:19]
        assert torch.equal(change(changed, changed.t()).cpu(), change(expected, expected.t().clone()))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.expand(3, 4).add_(1),
        lambda x: x.add_(torch.ones(3, 4, device=x.device)),
        lambda x: x.int().add_(1.5),
        lambda x: torch.add(x, 1, out=torch.empty(4, dtype=torch.int32, device=x.device)),
    ],
)
def test_outputs_that_cannot_take_the_result(write: Any, device: torch.device) -> None:
    same(device, write, torch.ones(1, 4))


def test_tensors_of_two_devices(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device=device) + torch.ones(2)
    assert (torch.ones(2, device=device) + torch.tensor(2.0)).tolist() == [3.0, 3.0]


def test_outputs_are_resized_with_the_strides_of_the_result(device: torch.device) -> None:
    x = torch.randn(4, 5)
    for out in (torch.empty(0), torch.empty(5, 4), torch.empty(5, 4).t()):
        expected, actual = out.clone(), out.to(device)
        torch.exp(x.t(), out=expected)
        torch.exp(x.to(device).t(), out=actual)
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual.cpu(), expected)


def test_several_outputs(device: torch.device) -> None:
    check(device, torch.frexp, torch.tensor([0.0, -0.0, 1.0, -3.5, 1e-40, 1e30, float("inf"), float("nan")]))
    check(device, torch.ops.aten.log_sigmoid_forward, torch.randn(17).half())


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0, 2), (1, 1)])
@pytest.mark.parametrize("dtype", DTYPES, ids=names)
def test_no_and_single_elements(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    x = torch.ones(shape).to(dtype)
    check(device, lambda x: x + x, x)
    check(device, lambda x: x == x[..., :1] if x.dim() else x == x, x)
    check(device, lambda x: x.mul_(x), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.int64], ids=names)
def test_sizes_of_several_windows(dtype: torch.dtype, device: torch.device) -> None:
    """More bytes than one binding has under TORCH_WEBGPU_MAX_BINDING=4096."""
    n = 18_006 // dtype.itemsize  # five windows of each buffer
    x = torch.arange(n).to(dtype)
    check(device, lambda x: x[1:] + x[:-1], x)
    check(device, lambda x: x.view(-1, n).t() * 2, x)
    check(device, lambda x: x[::3].add_(x[1::3]), x[: n // 3 * 3])


def test_more_elements_than_one_row_of_workgroups_has(device: torch.device) -> None:
    n = 65535 * 256 + 77
    x = torch.ones(n, dtype=torch.float32, device=device)
    x[-1] = 5
    y = x * 2 + 1
    assert y[[0, n // 2, n - 2, n - 1]].tolist() == [3, 3, 3, 11]
    assert y.sum(dtype=torch.int64).item() == 3 * (n - 1) + 11


# Any shapes, layouts and dtypes

OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "lt": torch.lt,
    "ne": torch.ne,
    "where": lambda a, b: torch.where(a > b, a, b),
    "logical_or": torch.logical_or,
    "divide": lambda a, b: a / (b.abs() + 1 if b.dtype != torch.bool else b + 1),
    "copy": lambda a, b: a.new_zeros(torch.broadcast_shapes(a.shape, b.shape)).copy_(b),
    "copy to transposed": lambda a, b: (
        b.new_zeros(torch.broadcast_shapes(a.shape, b.shape)[::-1])
        .permute(*range(max(a.dim(), b.dim()))[::-1])
        .copy_(a)
    ),
}
SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def tensors(draw: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor that broadcasts to ``shape``: dimensions of size 1, expanded, strided, permuted, with an offset."""
    dims = [draw(st.sampled_from(["full", "one", "expanded", "strided", "offset"])) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    stored = [{"full": n, "one": 1, "expanded": 1, "strided": 2 * n, "offset": n + 3}[d] for d, n in zip(dims, shape)]
    dtype = draw(st.sampled_from(DTYPES))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    base = torch.randint(-4, 5, [stored[d] for d in order], generator=seed).to(dtype)
    t = base.permute([order.index(d) for d in range(len(shape))])
    for d, (kind, n) in enumerate(zip(dims, shape)):
        if kind == "strided":
            t = t[(slice(None),) * d + (slice(None, None, 2),)]
        elif kind == "offset":
            t = t.narrow(d, 3, n)
        elif kind == "expanded":
            t = t.expand(*t.shape[:d], n, *t.shape[d + 1 :])
    leading_ones = next((d for d, kind in enumerate(dims) if kind != "one"), len(dims))
    return t[(0,) * draw(st.integers(0, leading_ones))]


@st.composite
def broadcasting(draw: Any) -> tuple[torch.Tensor, torch.Tensor]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    return draw(tensors(shape)), draw(tensors(shape))


@SETTINGS
@given(operands=broadcasting(), name=st.sampled_from(sorted(OPERATIONS)))
def test_any_layout(operands: tuple[torch.Tensor, torch.Tensor], name: str, device: torch.device) -> None:
    check(device, OPERATIONS[name], *operands)


# Adapters that lack features

MODES = {
    "INT64=emulated": "int64 and (integer or shifts or conversions or strided) or python_numbers",
    "FLOAT16=emulated": "float16 and (special_pairs or conversions or strided or views) or python_numbers",
    "IMMEDIATES=0": "python_numbers or strided or several_outputs",
    "MAX_BINDING=4096": "strided or views or overlapping or several_windows",
    "BATCHING=0": "views or overlapping",
}


FILES = [str(Path(__file__).with_name(name)) for name in ("test_pointwise.py", "test_pointwise_layouts.py")]


@pytest.mark.parametrize("setting", MODES)
def test_modes(setting: str) -> None:
    """The tests above on a device that pretends to have less."""
    flag, value = setting.split("=")
    if flag == "MAX_BINDING" and engine().device(0).target.max_buffers < 15:
        pytest.skip("three buffers in five windows each are more than the adapter binds")
    chosen = f"({MODES[setting]}) and not modes"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen, *FILES]
    environment = {**os.environ, f"TORCH_WEBGPU_{flag}": value}
    root = Path(__file__).parents[3]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize("dtype", DTYPES, ids=names)
def test_rows_and_columns_broadcast(dtype: torch.dtype, device: torch.device) -> None:
    """Groups of four along the innermost dimension, of operands that vary along other dimensions only, or steeply."""
    make = numbers(dtype)
    check(device, torch.add, make(6, 20), make(20))
    check(device, torch.add, make(6, 20), make(6, 1))
    check(device, torch.add, make(6, 22), make(22))
    check(device, torch.add, make(3, 6, 20), make(3, 1, 20))
    check(device, torch.add, make(6, 20), make(6, 21)[:, 1:])
    check(device, torch.add, make(6, 20), make(6, 40)[:, ::2])
    check(device, torch.add, make(120), make(240)[::2])
    check(device, torch.add, make(7, 24)[1:], make(25)[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=names)
def test_transposed_operands(dtype: torch.dtype, device: torch.device) -> None:
    """Tiles turned in workgroup memory: whole ones, parts of ones, of several operands and among other dimensions."""
    make = numbers(dtype)
    for m, n in ((64, 96), (40, 68), (33, 36), (35, 37)):
        check(device, lambda x: x.t().contiguous(), make(n, m))
        check(device, lambda x, y: x + y.t(), make(m, n), make(n, m))
    check(device, lambda x, y: x.t() + y.t(), make(40, 24), make(40, 24).t().contiguous().t())
    check(device, lambda x, y: x + y.t() + y.t()[:, :1], make(40, 44), make(44, 40))
    check(device, lambda x: x.transpose(1, 2).contiguous(), make(2, 36, 20))
    check(device, lambda x: x.permute(2, 0, 3, 1).contiguous(), make(3, 20, 2, 40))
    check(device, lambda x: x.permute(3, 2, 1, 0).contiguous(), make(17, 2, 3, 20))
    check(device, lambda x: x[:, 1:].t().contiguous(), make(36, 41))
    check(device, lambda x: x[1:, 1:21].t().contiguous(), make(37, 41))
    check(device, lambda x, row: x.t() + row, make(36, 40), make(36))


def numbers(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randint(0, 50, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.bool], ids=names)
def test_many_narrow_elements(dtype: torch.dtype, device: torch.device) -> None:
    """From four million elements on a thread takes several groups of four; the last ones may not exist."""
    make = numbers(dtype)
    for n in ((1 << 22) + 4096, (1 << 22) + 4099):
        x, y = make(n), make(n)
        check(device, lambda x, y: (x + y, x > y, x + y[5]), x, y)
    rest = torch.full((n + 8,), 1, dtype=dtype, device=device)
    rest[:n].add_(x.to(device))
    assert torch.equal(rest[:n].cpu(), x + 1 if dtype != torch.bool else torch.ones_like(x))
    assert rest[n:].cpu().to(torch.int32).tolist() == [1] * 8


@pytest.mark.parametrize("shape", [(2048,), (2048, 1)], ids=["a row", "a column"])
def test_many_narrow_elements_and_what_is_broadcast_over_them(shape: tuple[int, ...], device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(size, generator=generator).bfloat16() for size in ((2048, 2048), shape))
    check(device, torch.add, x, y)
