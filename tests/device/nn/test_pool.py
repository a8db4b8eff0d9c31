"""Pooling, unpooling, unfold and fold on the device against the CPU, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check

from torch_webgpu.aten.nn.pool import averaging

SHAPES = {1: (2, 3, 13), 2: (2, 3, 12, 13), 3: (2, 3, 5, 6, 7)}
MAX_OPTIONS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "stride": 1, "padding": 1, "dilation": 2, "ceil_mode": True},
]
AVERAGE_OPTIONS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
]


def of_dims(name: str, dims: int):
    return getattr(F, f"{name}{dims}d")


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("options", MAX_OPTIONS, ids=str)
def test_max_pool(device, dims, options):
    fn = of_dims("max_pool", dims)
    check(device, lambda x: fn(x, return_indices=True, **options), torch.randn(SHAPES[dims]), backward=True)


CELLS = {1: (2, 3, 12), 2: (2, 3, 12, 6), 3: (2, 3, 6, 6, 12)}
CELL_OPTIONS = [
    {"kernel_size": 2},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": 2, "stride": 3, "dilation": 2},
    {"kernel_size": 6},  # in three dimensions more than are written out
    {"kernel_size": 2, "stride": 1},  # windows overlap
    {"kernel_size": 2, "padding": 1, "ceil_mode": True},
]


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("options", CELL_OPTIONS, ids=str)
def test_max_pool_of_whole_cells(device, dims, options):
    """Where windows are cells of the input, each output's gradient goes to one input of its own cell."""
    shape = CELLS[dims]

    def pool(x):
        return of_dims("max_pool", dims)(x, return_indices=True, **options)

    check(device, pool, torch.randn(shape), backward=True)
    check(device, pool, torch.randn(shape[1:]), backward=True)
    check(device, pool, torch.randn(shape).transpose(0, 1), backward=True)
    check(
        device,
        lambda x: pool(x)[0] * torch.arange(3.0, device=x.device)[(..., *(None,) * dims)],
        torch.randn(shape),
        backward=True,
    )
    check(device, lambda x: pool(x)[0].sum(), torch.randn(shape), backward=True)  # an expanded gradient


def test_max_pool_of_cells_among_channels(device):
    x = torch.randn(2, 3, 8, 6).contiguous(memory_format=torch.channels_last)
    check(device, lambda x: F.max_pool2d(x, 2, return_indices=True), x, backward=True)
    check(device, lambda x: F.max_pool2d(x[:, 1:, :, 2:], 2), x, backward=True)
    nan = torch.tensor([[[1.0, float("nan"), 2.0, -0.0], [0.0, float("inf"), 3.0, 3.0]]])
    check(device, lambda x: F.max_pool2d(x, 2, return_indices=True), nan, backward=True)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("options", AVERAGE_OPTIONS, ids=str)
def test_avg_pool(device, dims, options):
    check(device, lambda x: of_dims("avg_pool", dims)(x, **options), torch.randn(SHAPES[dims]), backward=True)


@pytest.mark.parametrize("dims", [2, 3])
def test_no_average_is_over_nothing(device, dims):
    for where in ("cpu", device):
        with pytest.raises(RuntimeError, match="divisor must be not zero"):
            of_dims("avg_pool", dims)(torch.ones(SHAPES[dims], device=where), 2, divisor_override=0)
    with pytest.raises(RuntimeError, match="divisor must be not zero"):  # whatever the meta kernel said
        averaging(dims, [2], [], [0], True, 0)


def test_avg_pool_divisor(device):
    check(device, lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), torch.randn(2, 3, 8, 9), backward=True)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_adaptive(device, dims, size):
    x = torch.randn(SHAPES[dims])
    check(device, lambda x: of_dims("adaptive_avg_pool", dims)(x, size), x, backward=True, tol=1e-5)
    check(device, lambda x: of_dims("adaptive_max_pool", dims)(x, size, return_indices=True), x, backward=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(device, dtype):
    for shape in ((2, 3, 8, 8), (3, 7, 9)):
        x = torch.randn(shape).to(dtype)
        check(device, lambda x: F.max_pool2d(x, 3, 2, 1), x, backward=True, tol=1e-2)
        check(device, lambda x: F.avg_pool2d(x, 3, 2, 1), x, backward=True, tol=1e-2)
        check(device, lambda x: F.adaptive_avg_pool2d(x, (3, 4)), x, backward=True, tol=1e-2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_integers(device, dtype):
    x = torch.randint(0, 99, (2, 3, 8, 9)).to(dtype)
    check(device, lambda x: F.max_pool2d(x, 2), x)
    if dtype == torch.int64:
        check(device, lambda x: F.avg_pool2d(x - 50, 2), x)


def test_nan_and_infinity(device):
    x = torch.randn(2, 3, 8, 9)
    x[0, 0, 3, 4] = float("nan")
    x[1] = -float("inf")
    check(device, lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)


def test_layouts(device):
    x = torch.randn(2, 5, 8, 10)
    for value in (x.to(memory_format=torch.channels_last), x.transpose(2, 3), x[:, ::2, 1:, ::2], x[0], x[:0]):
        check(device, lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), value, backward=True)
        check(device, lambda x: F.avg_pool2d(x, 3, 2, 1), value, backward=True)


def test_channels_last_is_kept(device):
    x = torch.randn(2, 4, 8, 10).to(memory_format=torch.channels_last).to(device)
    assert F.max_pool2d(x, 2).is_contiguous(memory_format=torch.channels_last)


def test_unpool(device):
    for dims in (1, 2, 3):

        def fn(x, dims=dims):
            return of_dims("max_unpool", dims)(*of_dims("max_pool", dims)(x, 2, return_indices=True), 2)

        check(device, fn, torch.randn((2, 3, 8, 4, 6)[: dims + 2]), backward=True)


def test_fractional(device):
    for dims, size in ((2, (4, 5)), (3, (4, 5, 3))):
        samples = torch.rand(2, 3, dims)
        fn = of_dims("fractional_max_pool", dims)
        check(
            device,
            lambda x, s, fn=fn, size=size: fn(x, 2, size, _random_samples=s.detach(), return_indices=True),
            torch.randn((2, 3, 9, 10, 7)[: dims + 2]),
            samples,
            backward=True,
        )


@pytest.mark.parametrize("dims", [2, 3])
def test_fractional_needs_samples_for_every_plane(device, dims):
    pool = F.fractional_max_pool2d if dims == 2 else F.fractional_max_pool3d
    for samples in ((1, 3, dims), (2, 1, dims), (2, 3, 1)):
        with pytest.raises(RuntimeError, match="Expect _random_samples") as on_cpu:
            pool(torch.ones(2, 3, *[8] * dims), 2, output_size=4, _random_samples=torch.rand(samples))
        x = torch.ones(2, 3, *[8] * dims, device=device)
        with pytest.raises(RuntimeError) as raised:
            pool(x, 2, output_size=4, _random_samples=torch.rand(samples, device=device))
        assert str(raised.value) == str(on_cpu.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_unfold_and_fold(device, dtype):
    x = torch.randn(2, 3, 9, 10).to(dtype)
    options = {"padding": 1, "stride": 2, "dilation": 2}
    check(device, lambda x: F.unfold(x, 3, **options), x, backward=True, tol=3e-2)
    check(device, lambda x: F.fold(x, (9, 10), 3, **options), F.unfold(x, 3, **options), backward=True, tol=3e-2)
    check(device, lambda x: F.unfold(x, (3, 2)), x[0], backward=True, tol=3e-2)
