"""Convolutions on the device against the CPU, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check
from tests.device.choices import forget
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_webgpu.kernels.conv import conv
from torch_webgpu.kernels.matmul import blocked, tile

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


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("shape", conv.TILES, ids=str)
def test_tiles(device, monkeypatch, shape, splits, last):
    """Every tile, whichever the cost model would choose here, with sums in one part and in several."""

    def plan(slices: int, m: int, n: int, k: int, *_: object) -> tile.Blocking:
        return tile.Blocking(shape, splits, -(-k // splits // shape.k) * shape.k)

    monkeypatch.setattr(blocked, "blocking", plan)
    forget(monkeypatch)
    x, w, b = torch.randn(2, 10, 9, 8), torch.randn(12, 5, 3, 3), torch.randn(12)
    x = x.to(memory_format=torch.channels_last) if last else x
    check(device, lambda x, w, b: F.conv2d(x, w, b, 2, padding=1, groups=2), x, w, b, backward=True, tol=1e-3)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_operands_in_groups(device, order, kernel):
    """Channels, positions and taps of which four lie side by side, in groups or not."""
    for channels, groups, width, dtype in (
        (16, 2, 8, torch.float32),
        (8, 1, 7, torch.float32),
        (8, 1, 8, torch.float16),
    ):
        x = torch.randint(-2, 3, (2, channels, 5, width)).to(dtype, memory_format=order)
        w = torch.randint(-2, 3, (24, channels // groups, kernel, kernel)).to(dtype, memory_format=order)
        b = torch.randint(-2, 3, (24,)).to(dtype)
        given = {"padding": kernel // 2, "groups": groups}
        exact = dtype == torch.float32
        check(
            device, lambda *t, given=given: F.conv2d(*t, **given), x, w, b, backward=True, tol=1e-5 if exact else 6e-2
        )


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


FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.mark.parametrize("last", ["input", "weight"])
@pytest.mark.parametrize(
    "name", ["2d strided", "2d grouped", "2d depthwise", "2d pointwise", "3d", "transposed 2d strided", "transposed 3d"]
)
def test_memory_formats(device, name, last):
    """Channels last in, channels last out, and so are the gradients; where what comes back from after it is laid out
    in either way."""
    fn, x_shape, w_shape, options = CASES[name]
    format = FORMATS[len(x_shape)]
    x, w = torch.randn(x_shape), torch.randn(w_shape)
    found = []
    for where in ("cpu", device):
        here, kernel = x.to(where), w.to(where)
        here = here.contiguous(memory_format=format) if last == "input" else here
        kernel = kernel.contiguous(memory_format=format) if last == "weight" else kernel
        y = fn(here.requires_grad_(), kernel.requires_grad_(), **options)
        seed = torch.linspace(-1, 1, y.numel()).view(y.shape).to(where)
        results = [y]
        for layout in (torch.contiguous_format, format):
            back = seed.contiguous(memory_format=layout)
            results += torch.autograd.grad(y, (here, kernel), back, retain_graph=True)
        found.append(results)
    for expected, actual in zip(*found, strict=True):
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("channels", [5, 16])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_with_channels_last(device, dtype, groups, channels):
    x, w = torch.randn(2, groups * channels, 9, 7).to(dtype), (torch.randn(8 * groups, channels, 3, 3) / 8).to(dtype)
    x = x.to(memory_format=torch.channels_last)
    check(device, lambda x, w: F.conv2d(x, w, groups=groups), x, w, backward=True, tol=6e-2)


def test_what_follows_a_convolution_keeps_channels_last(device):
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Upsample(scale_factor=2, mode="bilinear"),
        torch.nn.AvgPool2d(2),
        torch.nn.ConvTranspose2d(8, 4, 2, stride=2),
        torch.nn.AdaptiveAvgPool2d(2),
    ).to(device, memory_format=torch.channels_last)
    y = torch.randn(2, 3, 14, 14, device=device)
    for layer in net:
        y = layer(y)
        assert y.is_contiguous(memory_format=torch.channels_last), layer
    y.sum().backward()
    assert net[0].weight.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("transposed", [False, True])
def test_fake_convolutions_are_laid_out_as_real_ones(device, transposed):
    """And a canary for aten/dispatch/torch_patches.py: lay_out_fake_convolutions."""
    w = torch.randn(4, 4, 3, 3, device=device)
    rest = ([1, 1], [0, 0], [1, 1], transposed, [0, 0], 1)
    for format in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 4, 8, 8, device=device).contiguous(memory_format=format)
        real = torch.ops.aten.convolution(x, w, None, *rest)
        real_grads = torch.ops.aten.convolution_backward(real, x, w, None, *rest, [True, True, False])
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(t) for t in (x, w)]
            fake = torch.ops.aten.convolution(*fakes, None, *rest)
            fake_grads = torch.ops.aten.convolution_backward(fake, *fakes, None, *rest, [True, True, False])
        assert fake.stride() == real.stride()
        assert [g.stride() for g in fake_grads[:2]] == [g.stride() for g in real_grads[:2]]
    backend = torch._C._select_conv_backend(x, w, None, *rest)
    assert torch._C._conv_determine_backend_memory_format.__wrapped__(x, w, backend) == torch.contiguous_format


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
