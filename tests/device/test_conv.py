"""Convolutions on the device against the CPU, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check

from torch_webgpu.aten import launch
from torch_webgpu.kernels import conv, tile

Shape = tuple[int, ...]

# Function, input, weight, arguments. Few channels in a group take the direct kernels, many the blocked products.
CASES = {
    "1d": (F.conv1d, (2, 3, 9), (16, 3, 3), {"padding": 1}),
    "2d": (F.conv2d, (2, 3, 9, 8), (6, 3, 3, 3), {"padding": 1}),
    "2d strided": (F.conv2d, (2, 3, 9, 8), (6, 3, 3, 3), {"padding": 1, "stride": 2}),
    "2d dilated": (F.conv2d, (2, 5, 9, 8), (6, 5, 3, 3), {"padding": 2, "dilation": 2, "stride": (2, 1)}),
    "2d grouped": (F.conv2d, (2, 12, 9, 8), (14, 6, 3, 3), {"padding": 1, "groups": 2}),
    "2d depthwise": (F.conv2d, (2, 6, 9, 8), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    "2d pointwise": (F.conv2d, (2, 6, 9, 8), (16, 6, 1, 1), {}),
    "2d unbatched": (F.conv2d, (6, 9, 8), (16, 6, 3, 3), {}),
    "2d same": (F.conv2d, (2, 6, 9, 8), (16, 6, 4, 3), {"padding": "same"}),
    "2d split sums": (F.conv2d, (4, 20, 20, 20), (24, 20, 3, 3), {"padding": 1}),
    "3d": (F.conv3d, (2, 3, 4, 5, 6), (8, 3, 3, 3, 2), {"padding": 1}),
    "transposed 1d": (F.conv_transpose1d, (2, 8, 9), (8, 6, 3), {"padding": 1, "stride": 2}),
    "transposed 2d": (F.conv_transpose2d, (2, 3, 9, 8), (3, 6, 3, 3), {"padding": 1}),
    "transposed 2d strided": (
        F.conv_transpose2d,
        (2, 8, 9, 8),
        (8, 6, 3, 3),
        {"padding": 1, "stride": 2, "output_padding": 1},
    ),
    "transposed 2d by phases": (F.conv_transpose2d, (2, 8, 5, 7), (8, 6, 4, 5), {"padding": (3, 1), "stride": (3, 2)}),
    "transposed 2d tap by tap": (F.conv_transpose2d, (2, 8, 5, 7), (8, 6, 1, 2), {"stride": 2, "output_padding": 1}),
    "2d strided channels": (F.conv2d, (2, 7, 12, 11), (6, 7, 3, 2), {"padding": (0, 1), "stride": (3, 2)}),
    "transposed 2d grouped": (
        F.conv_transpose2d,
        (2, 8, 9, 8),
        (8, 6, 3, 3),
        {"padding": 1, "stride": 2, "groups": 2, "dilation": 2},
    ),
    "transposed 3d": (F.conv_transpose3d, (2, 3, 3, 4, 5), (3, 6, 3, 3, 3), {"padding": 1, "stride": 2}),
}


def out_channels(name: str, weight: Shape, options: dict[str, object]) -> int:
    return weight[1] * int(options.get("groups", 1)) if "transposed" in name else weight[0]  # type: ignore[call-overload]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_float32(device, name, bias):
    fn, x, w, options = CASES[name]
    tensors = [torch.randn(x), torch.randn(w), *([torch.randn(out_channels(name, w, options))] if bias else [])]
    check(device, lambda *t: fn(*t, **options), *tensors, backward=True, tol=1e-3)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("shape", conv.TILES, ids=str)
def test_tiles(device, monkeypatch, shape, splits):
    """Every tile, whichever the cost model would choose here, with sums in one part and in several."""

    def plan(slices: int, m: int, n: int, k: int, *_: object) -> tile.Plan:
        return tile.Plan(shape, splits, -(-k // splits // shape.k) * shape.k)

    monkeypatch.setattr(conv, "plan", plan)
    monkeypatch.setattr(launch, "_prepared", {})
    x, w, b = torch.randn(2, 10, 9, 8), torch.randn(12, 5, 3, 3), torch.randn(12)
    check(device, lambda x, w, b: F.conv2d(x, w, b, 2, padding=1, groups=2), x, w, b, backward=True, tol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["1d", "2d", "2d depthwise", "2d grouped", "transposed 2d strided"])
@pytest.mark.parametrize("width", [7, 8])
def test_half_types(device, name, dtype, width):
    fn, x, w, options = CASES[name]
    tensors = [torch.randn(*x[:-1], width), torch.randn(w) / 8, torch.randn(out_channels(name, w, options))]
    check(device, lambda *t: fn(*t, **options), *(t.to(dtype) for t in tensors), backward=True, tol=6e-2)


def test_int64(device):
    x, w = torch.randint(-(2**34), 2**34, (2, 8, 9, 8)), torch.randint(-9, 9, (6, 8, 3, 3))
    check(device, lambda x, w: F.conv2d(x, w, padding=1), x, w)


def test_layouts(device):
    x, w = torch.randn(2, 5, 9, 10), torch.randn(6, 5, 3, 2)
    variants = {
        "channels last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(2, 3),
        "sliced": torch.randn(2, 6, 18, 11)[:, 1:, ::2, 1:],
        "expanded": torch.randn(2, 1, 9, 10).expand(2, 5, 9, 10),
    }
    for value in variants.values():
        check(device, lambda x, w: F.conv2d(x, w, padding=1), value, w, backward=True, tol=1e-3)
        check(device, lambda x, w: F.conv2d(x, w.transpose(2, 3)), value, w, tol=1e-3)
    channels_last = w.to(memory_format=torch.channels_last)
    check(device, lambda x, w: F.conv2d(x, w), variants["channels last"], channels_last, backward=True, tol=1e-3)


def test_nothing(device):
    check(
        device,
        lambda x, w, b: F.conv2d(x, w, b),
        torch.randn(0, 3, 9, 8),
        torch.randn(6, 3, 3, 3),
        torch.randn(6),
        backward=True,
    )


def test_second_derivatives(device):
    def fn(x, w):
        x, w = x.requires_grad_(), w.requires_grad_()
        (gradient,) = torch.autograd.grad(F.conv2d(x, w).pow(3).sum(), w, create_graph=True)
        return torch.autograd.grad(gradient.pow(2).sum(), (x, w))

    check(device, fn, torch.randn(2, 4, 6, 7), torch.randn(6, 4, 3, 2) / 4, tol=1e-2)


def test_mixed_dtypes_are_refused(device):
    with pytest.raises(RuntimeError, match="should be the same"):
        F.conv2d(torch.randn(1, 2, 3, 3, device=device), torch.randn(4, 2, 3, 3, device=device).half())
