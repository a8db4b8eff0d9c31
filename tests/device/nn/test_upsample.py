"""Interpolation, padding and grid sampling on the device against the CPU, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check, same

SIZES = [(16, 18), (5, 4), (13, 11), (8, 9), (1, 1)]
TWO_DIMS = ["nearest", "nearest-exact", "bilinear", "bicubic", "area"]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("mode", TWO_DIMS)
def test_sizes(device, mode, size):
    x = torch.randn(2, 3, 8, 9)
    check(device, lambda x: F.interpolate(x, size, mode=mode), x, backward=True, tol=1e-4)
    if mode in ("bilinear", "bicubic"):
        for options in ({"align_corners": True}, {"antialias": True}):
            check(device, lambda x, o=options: F.interpolate(x, size, mode=mode, **o), x, backward=True, tol=1e-4)


@pytest.mark.parametrize("scale", [1.7, 0.6, 2])
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("mode", TWO_DIMS)
def test_scales(device, mode, scale, recompute):
    def fn(x):
        return F.interpolate(x, scale_factor=scale, mode=mode, recompute_scale_factor=recompute)

    check(device, fn, torch.randn(2, 3, 8, 9), backward=True, tol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "area"])
def test_one_and_three_dimensions(device, mode):
    check(device, lambda x: F.interpolate(x, 13, mode=mode), torch.randn(2, 3, 8), backward=True, tol=1e-4)
    volume = "trilinear" if mode == "linear" else mode
    check(
        device, lambda x: F.interpolate(x, (7, 4, 9), mode=volume), torch.randn(2, 3, 4, 5, 6), backward=True, tol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_half_types(device, mode, dtype):
    x = torch.randn(2, 3, 8, 9).to(dtype)
    check(device, lambda x: F.interpolate(x, (13, 11), mode=mode), x, backward=True, tol=2e-2)


def test_bytes(device):
    x = torch.randint(0, 256, (2, 3, 8, 9), dtype=torch.uint8)
    check(device, lambda x: F.interpolate(x, (5, 11)), x)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("options", [{}, {"align_corners": True}, {"antialias": True}], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_weighted_bytes(device, mode, options, channels):
    """Bit for bit as the CPU's, whose weights are rounded to 16 bits."""
    for shape, size in (((17, 23), (9, 11)), ((17, 23), (40, 31)), ((64, 48), (7, 5)), ((9, 9), (9, 20))):
        x = torch.randint(0, 256, (2, channels, *shape), dtype=torch.uint8)
        for value in (x, x.to(memory_format=torch.channels_last), x[:, :, ::2, 1:]):
            check(device, lambda x, s=size: F.interpolate(x, s, mode=mode, **options), value)
        check(device, lambda x: F.interpolate(x, scale_factor=0.6, mode=mode, **options), x)
    for value in (x[:0], torch.full((1, channels, 3, 1), 255, dtype=torch.uint8)):
        check(device, lambda x: F.interpolate(x, (4, 5), mode=mode, **options), value)


def test_bytes_of_other_dimensions_are_refused(device):
    for mode, shape in (("linear", (2, 3, 7)), ("trilinear", (2, 3, 4, 5, 6))):
        x = torch.zeros(shape, dtype=torch.uint8)
        assert not same(device, lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m), x)


DTYPES = [torch.int8, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_that_the_cpu_refuses(device, dtype):
    """In its words, which depend on the layout."""
    volume = torch.ones(2, 5, 4, 4, 4).to(dtype)
    for x, modes in (
        (volume[:, :, 0, 0], ["nearest", "nearest-exact", "linear"]),
        (volume[:, :, 0].contiguous(), TWO_DIMS[:4]),
        (volume[:, :1, 0].contiguous(memory_format=torch.channels_last), TWO_DIMS[:4]),
        (volume[:0, :, 0], ["nearest", "bilinear"]),
        (volume, ["nearest", "nearest-exact", "trilinear"]),
    ):
        for mode in modes:
            accepted = same(device, lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m), x)
            assert accepted == (dtype == torch.uint8 and (x.dim() == 4 or "nearest" in mode))
    for mode in ("bilinear", "bicubic"):
        x = volume[:, :, 0].contiguous()
        accepted = same(device, lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m, antialias=True), x)
        assert accepted == (dtype == torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["upsample_nearest", "_upsample_nearest_exact", "upsample_bi", "_upsample_bi"])
def test_no_gradients_but_floats(device, dtype, name):
    grad = torch.ones(1, 2, 8, 8).to(dtype)
    ops = torch.ops.aten
    if "nearest" in name:
        calls = [lambda g: getattr(ops, f"{name}2d_backward")(g, [8, 8], [1, 2, 4, 4])]
    else:
        suffix = "_aa" if name[0] == "_" else ""
        calls = [
            lambda g, m=mode: getattr(ops, f"{name[:-2]}{m}2d{suffix}_backward")(g, [8, 8], [1, 2, 4, 4], False)
            for mode in ("bilinear", "bicubic")
        ]
    for call in calls:
        assert not same(device, call, grad)


def test_layouts(device):
    x = torch.randn(2, 4, 8, 9)
    for value in (
        x.to(memory_format=torch.channels_last),
        x.transpose(2, 3),
        x[:, ::2, 1:, ::2],
        x[:, :1].expand(2, 4, 8, 9),
    ):
        check(device, lambda x: F.interpolate(x, (5, 11), mode="bilinear"), value, backward=True, tol=1e-4)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
def test_padding(device, mode):
    pads = {(2, 3, 9): [(1, 2)], (2, 3, 8, 9): [(1, 2, 3, 0), (-1, 2, 3, -2)], (2, 3, 4, 5, 6): [(1, 2, 3, 0, 2, 1)]}
    for shape, options in pads.items():
        for pad in options:
            check(device, lambda x, pad=pad: F.pad(x, pad, mode), torch.randn(shape), backward=True)
    check(device, lambda x: F.pad(x, (1, 2, 3, 1), mode), torch.randn(2, 3, 8, 9).bfloat16(), backward=True, tol=2e-2)


def test_padding_integers(device):
    x = torch.randint(-9, 9, (2, 3, 8, 9))
    for mode in ("replicate", "constant"):
        check(device, lambda x, mode=mode: F.pad(x, (1, 2, 3, 1), mode), x)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_grid_sample(device, mode, padding, align):
    def fn(x, grid):
        return F.grid_sample(x, grid, mode, padding, align)

    check(device, fn, torch.randn(2, 3, 6, 7), torch.randn(2, 4, 5, 2) * 1.2, backward=True, tol=1e-3)
    if mode != "bicubic":
        check(device, fn, torch.randn(2, 3, 4, 5, 6), torch.randn(2, 4, 5, 3, 3) * 1.2, backward=True, tol=1e-3)


def test_shuffles(device):
    check(device, lambda x: F.pixel_shuffle(x, 2), torch.randn(2, 8, 3, 4), backward=True)
    check(device, lambda x: F.pixel_unshuffle(x, 2), torch.randn(2, 8, 4, 6), backward=True)
    check(device, lambda x: torch.channel_shuffle(x, 2), torch.randn(2, 8, 4, 4), backward=True)
    check(
        device,
        lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False),
        torch.randn(2, 2, 3),
        backward=True,
        tol=1e-5,
    )
