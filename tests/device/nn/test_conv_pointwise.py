"""Convolutions with kernels of one position, which are matrix products where positions lie in a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check
from tests.device.choices import forget

from torch_webgpu.kernels.conv import conv

LAST = {"memory_format": torch.channels_last}
# How an image is made of one of 2 x 6 x 9 x 8, and whether its forward pass is a product.
IMAGES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "channels first": (lambda x: x, True),
    "channels last": (lambda x: x.to(**LAST), True),
    "one": (lambda x: x[:1], True),
    "some channels": (lambda x: x.repeat(1, 2, 1, 1)[:, 3:9], True),
    "some channels, last": (lambda x: x.repeat(1, 2, 1, 1).to(**LAST)[:, 3:9], True),
    "turned": (lambda x: x.transpose(2, 3), False),
    "every other row": (lambda x: x.repeat(1, 1, 2, 1)[:, :, ::2], False),
    "the same images": (lambda x: x[:1].expand(2, -1, -1, -1), True),
    "the same row": (lambda x: x[:, :, :1].expand(-1, -1, 9, -1), False),
    "one position": (lambda x: x[:, :, :1, :1], True),
    "none": (lambda x: x[:0], True),
}


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Of each convolution that is lowered, its direction and whether it became a product."""
    found: list[tuple[str, bool]] = []
    as_product = conv.as_product

    def noted(op, c):
        product = as_product(op, c)
        found.append((c.mode, product is not None))
        return product

    monkeypatch.setattr(conv, "as_product", noted)
    forget(monkeypatch)
    return found


@pytest.mark.parametrize("name", IMAGES)
def test_images(device, products, name):
    make, is_product = IMAGES[name]
    x, w, b = torch.randn(2, 6, 9, 8), torch.randn(16, 6, 1, 1), torch.randn(16)
    check(device, lambda x, w, b: F.conv2d(make(x), w, b), x, w, b, backward=True, tol=1e-4)
    assert ("forward", is_product) in products or name == "none"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(device, products, dtype):
    x, w, b = (torch.randn(*shape).to(dtype) for shape in ((2, 6, 9, 8), (16, 6, 1, 1), (16,)))
    for given in (x, x.to(**LAST)):
        check(device, F.conv2d, given, w, b, backward=True, tol=6e-2)
    assert ("forward", True) in products


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_transposed_and_other_ranks(device, products, last):
    x = torch.randn(2, 6, 9, 8)
    w = torch.randn(6, 10, 1, 1)
    check(device, F.conv_transpose2d, x.to(**LAST) if last else x, w, torch.randn(10), backward=True, tol=1e-4)
    check(device, F.conv1d, torch.randn(2, 6, 9), torch.randn(10, 6, 1), backward=True, tol=1e-4)
    volume = torch.randn(2, 6, 3, 4, 5)
    volume = volume.to(memory_format=torch.channels_last_3d) if last else volume
    check(device, F.conv3d, volume, torch.randn(10, 6, 1, 1, 1), torch.randn(10), backward=True, tol=1e-4)
    assert {mode for mode, is_product in products if is_product} >= {"forward", "adjoint"}


def test_what_follows_is_part_of_the_product(device, products):
    x, w, b = torch.randn(2, 6, 9, 8), torch.randn(16, 6, 1, 1), torch.randn(16)
    for given in (x, x.to(**LAST)):
        check(device, lambda x, w, b: F.relu(F.conv2d(x, w, b) + x[:, :1]), given, w, b, backward=True, tol=1e-4)
        check(device, lambda x, w, b: F.conv2d(x, w).mul_(b.view(-1, 1, 1)).half(), given, w, b, tol=1e-2)


def test_random_numbers_are_those_of_their_places(device, products):
    """A dropout after a convolution counts elements as the tensor does, not as the product."""
    x, w = torch.randn(2, 6, 9, 8, device=device), torch.randn(16, 6, 1, 1, device=device)
    torch.manual_seed(3)
    together = F.dropout(F.conv2d(x, w), 0.5)
    y = F.conv2d(x, w)
    torch.webgpu.synchronize()
    torch.manual_seed(3)
    apart = F.dropout(y, 0.5)
    assert torch.equal(together.cpu() == 0, apart.cpu() == 0)


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding": 1}, {"groups": 2}])
def test_others_are_none(device, products, options):
    w = torch.randn(16, 6 // options.get("groups", 1), 1, 1)
    check(device, lambda x, w: F.conv2d(x, w, **options), torch.randn(2, 6, 9, 8), w, backward=True, tol=1e-4)
    assert not any(is_product for _, is_product in products)
