"""What is recorded is data: kernels are named by functions of modules and by values, in every family of operators."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from types import FunctionType

import pytest
import torch
import torch.nn.functional as F

from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern, Operation


def with_gradients(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
    fn(*leaves).sum().backward()


def image(d: torch.device, *shape: int) -> torch.Tensor:
    return torch.rand(*(shape or (2, 3, 8, 8)), device=d)


def places(d: torch.device, *values: int) -> torch.Tensor:
    return torch.tensor(values or (0, 2, 1), device=d)


def cells(d: torch.device) -> None:
    for kind in (torch.nn.LSTM, torch.nn.GRU):
        kind(3, 4).to(d)(image(d, 5, 2, 3))[0].sum().backward()


def ctc(d: torch.device) -> None:
    targets = places(d, 1, 2, 1, 2).view(2, 2)
    with_gradients(lambda x: F.ctc_loss(x.log_softmax(-1), targets, (5, 5), (2, 2)), image(d, 5, 2, 3))


def sums_in_order(d: torch.device) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        image(d, 3, 4).index_add_(0, places(d), image(d, 3, 4))
    finally:
        torch.use_deterministic_algorithms(False)


def fused_step(d: torch.device) -> None:
    parameters = [torch.nn.Parameter(image(d, n)) for n in (3, 5)]
    for p in parameters:
        p.grad = image(d, p.numel())
    torch.optim.Adam(parameters, fused=True).step()


HAND_WRITTEN: dict[str, Callable[[torch.device], object]] = {
    "product": lambda d: with_gradients(F.linear, image(d, 4, 8), image(d, 5, 8), image(d, 5)),
    "batched product": lambda d: torch.baddbmm(image(d, 2, 3, 3), *image(d, 2, 2, 3, 3), alpha=2),
    "convolution": lambda d: with_gradients(F.conv2d, image(d), image(d, 4, 3, 3, 3), image(d, 4)),
    "transposed convolution": lambda d: with_gradients(F.conv_transpose2d, image(d), image(d, 3, 4, 3, 3)),
    "maximum pooling": lambda d: with_gradients(lambda x: F.max_pool2d(x, 2), image(d)),
    "adaptive pooling": lambda d: with_gradients(lambda x: F.adaptive_avg_pool2d(x, 3), image(d)),
    "fractional pooling": lambda d: F.fractional_max_pool2d(image(d), 2, output_size=3),
    "interpolation": lambda d: with_gradients(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), image(d)),
    "bytes": lambda d: F.interpolate((image(d) * 255).byte(), (5, 5), mode="bilinear"),
    "padding": lambda d: with_gradients(lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), image(d)),
    "sampling": lambda d: with_gradients(
        lambda x, g: F.grid_sample(x, g, align_corners=False), image(d), image(d, 2, 5, 5, 2)
    ),
    "patches": lambda d: with_gradients(lambda x: F.unfold(x, 3), image(d)),
    "sort": lambda d: image(d, 5, 9).sort(descending=True),
    "search": lambda d: torch.searchsorted(image(d, 9), image(d, 3), right=True),
    "read through an index": lambda d: image(d, 4, 5)[places(d)],
    "write through an index": lambda d: image(d, 4, 5).index_put_((places(d),), image(d, 3, 5), accumulate=True),
    "serial write": lambda d: places(d).scatter_reduce(0, places(d), places(d), "prod"),
    "coordinates": lambda d: torch.nonzero_static(image(d, 4) > 0.5, size=3),
    "bags": lambda d: F.embedding_bag(places(d), image(d, 4, 5), places(d, 0, 2), mode="max"),
    "sums in order": sums_in_order,
    "cells": cells,
    "likelihood": lambda d: F.nll_loss(image(d, 3, 4), places(d)),
    "paths": ctc,
    "norms": lambda d: torch._foreach_norm([image(d, 3), image(d, 5)]),
    "collection": lambda d: torch.stack([image(d, 2).sum() for _ in range(9)]),
}
REST: dict[str, Callable[[torch.device], object]] = {
    "elements": lambda d: (image(d, 4, 5) * 2 + 1).relu() @ image(d, 5),
    "reductions": lambda d: (torch.softmax(image(d, 4, 5), -1), image(d, 4, 5).cumsum(0), image(d, 4).var()),
    "normalisation": lambda d: with_gradients(lambda x: F.layer_norm(x, (8,)), image(d)),
    "random": lambda d: F.dropout(torch.randn(9, device=d), 0.5),
    "attention": lambda d: F.scaled_dot_product_attention(*image(d, 3, 1, 2, 5, 8)),
    "lists": lambda d: torch._foreach_addcdiv([image(d, 3), image(d, 5)], *[[image(d, 3), image(d, 5)]] * 2, value=2),
    "fused step": fused_step,
}


@pytest.fixture
def recorded(device: torch.device) -> Iterator[list[Operation]]:
    """The operations that this thread has submitted since."""
    torch.webgpu.synchronize()
    lane, found = engine().lane(device.index or 0), list[Operation]()

    def listen(entries: list[tuple[Operation, tuple[int, ...], tuple[int | float, ...]]]) -> None:
        found.extend([op for op, _, _ in entries])

    lane.listeners.append(listen)
    yield found
    lane.listeners.remove(listen)


@pytest.mark.parametrize("family", HAND_WRITTEN | REST)
def test_operations_are_data(device: torch.device, recorded: list[Operation], family: str) -> None:
    (HAND_WRITTEN | REST)[family](device)
    torch.webgpu.synchronize()
    externs = [op.body for op in recorded if isinstance(op.body, Extern)]
    assert externs or (recorded and family in REST)
    for body in externs:
        assert isinstance(body.lower, FunctionType)
        assert body.lower.__closure__ is None
        assert "<" not in body.lower.__qualname__, body.lower
    for op in recorded:
        assert pickle.loads(pickle.dumps(op)) is op
