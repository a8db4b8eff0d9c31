"""``torch.set_float32_matmul_precision``: which products it is for, and from when on.

What a product was computed in shows in one number, of which each setting keeps other bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from tests.device.choices import forget

from torch_webgpu.kernels.matmul.matrix_tile import MatrixTile
from torch_webgpu.kernels.matmul.tile import Blocking

from .matrices_emulated import BITS, NVIDIA, PIPELINED, pretend, pretend_halves, used

SETTINGS = ("highest", "high", "medium")
ORDER = [setting for order in permutations(SETTINGS) for setting in order]


@pytest.fixture(autouse=True)
def chosen(monkeypatch) -> Iterator[list[Blocking[MatrixTile]]]:
    yield from pretend_halves(monkeypatch)


PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": torch.mm,
    "out": lambda a, b: torch.mm(a, b, out=torch.empty_like(a)),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b: torch.addmm(torch.zeros_like(a[0]), a, b),
    "addmm without": lambda a, b: torch.addmm(a, a, b, beta=0),
    "baddbmm": lambda a, b: torch.baddbmm(torch.zeros_like(a)[None], a[None], b[None]),
    "addbmm": lambda a, b: torch.addbmm(torch.zeros_like(a), a[None], b[None]),
    "linear": lambda a, b: F.linear(a, b, torch.zeros_like(a[0])),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_each_call_takes_the_setting_in_force(device, name):
    for setting in ORDER:
        torch.set_float32_matmul_precision(setting)
        for _ in range(3):  # kernels run once or twice; then it is known what they record
            assert used(PRODUCTS[name], device) == setting


@pytest.mark.parametrize("setting", SETTINGS[1:])
def test_halves_in_a_pipeline(device, monkeypatch, setting):
    chosen = pretend(monkeypatch, NVIDIA, PIPELINED)
    torch.set_float32_matmul_precision(setting)
    assert used(torch.mm, device) == setting
    assert [found.tile for found in chosen] == [PIPELINED]


def test_calls_that_no_guard_recognises(device):
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a.flatten()[:1], a.flatten()])[1:].view(a.shape) @ b

    for setting in ORDER:
        torch.set_float32_matmul_precision(setting)
        assert [used(product, device) for _ in range(3)] == [setting] * 3


def test_each_of_the_interfaces_of_pytorch(device):
    """Also where a program mixes them, and PyTorch no longer answers what the setting is."""
    with torch.backends.__allow_nonbracketed_mutation():  # PyTorch's own tests forbid it for the process
        set_each(device)


def set_each(device):
    backends = torch.backends
    matmul = backends.cuda.matmul
    assert used(torch.mm, device) == "highest"
    matmul.allow_tf32 = True
    assert used(torch.mm, device) == torch.get_float32_matmul_precision() == "high"
    matmul.allow_tf32 = False
    assert used(torch.mm, device) == torch.get_float32_matmul_precision() == "highest"
    try:
        backends.fp32_precision = "tf32"
        assert used(torch.mm, device) == "highest"  # which was asked for of products
        matmul.fp32_precision = "tf32"
        backends.fp32_precision = "ieee"
        assert used(torch.mm, device) == "high"
        matmul.fp32_precision = "ieee"
        assert used(torch.mm, device) == "highest"
    finally:
        backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("medium")
    assert used(torch.mm, device) == "medium"


@pytest.mark.parametrize("later", SETTINGS)
@pytest.mark.parametrize("first", SETTINGS)
def test_gradients_take_the_setting_in_force_when_they_are_computed(device, first, later):
    def gradient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = torch.zeros_like(a, requires_grad=True)
        torch.set_float32_matmul_precision(first)
        y = x @ b
        torch.set_float32_matmul_precision(later)
        return torch.autograd.grad(y, x, a)[0]

    assert used(gradient, device) == later


def test_a_captured_graph_keeps_the_setting_it_was_captured_under(device):
    a, b = torch.full((64, 64), BITS).to(device), torch.eye(64).to(device)
    graph = torch.webgpu.Graph()
    torch.set_float32_matmul_precision("medium")
    with torch.webgpu.graph(graph):
        y = a @ b
    torch.set_float32_matmul_precision("highest")
    graph.replay()
    assert used(lambda *_: y, device) == "medium"


def test_what_it_is_not_for(device, chosen):
    torch.set_float32_matmul_precision("medium")
    x, w = torch.randn(2, 16, 12, 12), torch.randn(16, 16, 3, 3)
    F.conv2d(x.to(device), w.to(device)).cpu()
    q, k, v = (torch.randn(1, 2, 40, 32).to(device) for _ in range(3))
    F.scaled_dot_product_attention(q, k, v).cpu()
    (q[0, 0] @ k[0, 0, 0]).cpu()
    assert not chosen


def test_small_products_are_exact(device, monkeypatch):
    monkeypatch.undo()
    forget(monkeypatch)
    torch.set_float32_matmul_precision("medium")
    assert used(torch.mm, device) == "highest"
