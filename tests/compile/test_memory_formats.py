"""Convolutions laid out over a graph: what they are given inside, and that nothing of it shows outside."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from torch_webgpu.compile import memory_formats
from torch_webgpu.compile.matching import aten
from torch_webgpu.kernels.conv import conv_layout
from torch_webgpu.target import MatrixConfig

from .against_eager import assert_equal

DEVICE = "webgpu"
Graphs = list[GraphModule]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """The graphs that are laid out, on an adapter whose tensor cores multiply anything."""
    found: Graphs = []
    apply = memory_formats.apply

    def noted(gm: GraphModule) -> GraphModule:
        found.append(apply(gm))
        return found[-1]

    monkeypatch.setattr(memory_formats, "apply", noted)
    monkeypatch.setattr(memory_formats, "on_tensor_cores", lambda node: True)
    return found


def formats(gm: GraphModule) -> set[bool]:
    """Of the operands and results of convolutions, whether they have their channels last."""
    convolutions = list(memory_formats.convolutions(gm))
    tensors = [t for node in convolutions for t in memory_formats.operands(node)]
    tensors += [node.meta["val"] for node in convolutions if node.target is aten.convolution.default]
    return {t.is_contiguous(memory_format=memory_formats.FORMATS[t.dim()]) for t in tensors}


def copies(gm: GraphModule) -> int:
    return sum(node.target is aten.clone.default for node in gm.graph.nodes)


def block(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, **options), nn.BatchNorm2d(8), nn.ReLU(inplace=True))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.other = nn.Conv2d(3, 8, 3, stride=2), block(), block(bias=False)
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.stem(x), 2)
        x = self.other(self.one(x)) + x
        return self.last(x.mean((2, 3)))


def layouts(tensors: Any) -> list[tuple[int, ...]]:
    return [t.stride() for t in tensors]


def test_a_network_is_laid_out_as_a_whole(graphs: Graphs) -> None:
    eager = Residual().to(DEVICE)
    model = deepcopy(eager)
    compiled = torch.compile(model)
    x = torch.randn(2, 3, 19, 17, device=DEVICE)
    expected, found = eager(x), compiled(x)
    assert_equal(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    for p, q in zip(model.parameters(), eager.parameters()):
        assert p.grad.stride() == p.stride()
        assert_equal(p.grad, q.grad)
    assert_equal(list(model.buffers()), list(eager.buffers()))
    (joint,) = graphs
    assert formats(joint) == {True}
    # The image, a weight for each convolution, and a gradient of each.
    assert copies(joint) == 7
    with torch.no_grad():
        assert_equal(compiled.eval()(x), eager.eval()(x))
    assert len(graphs) == 2
    assert formats(graphs[1]) == {True}


def viewed(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = F.conv2d(x, w)
    return y.view(len(y), -1), y.permute(2, 0, 3, 1), y[:, 1:], y.as_strided((2, 3), (3, 1), 1)


def random(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = F.conv2d(x, w)
    return F.dropout(y, 0.5), torch.rand_like(y), y.bernoulli(0.5)


def reduced(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = F.conv2d(x, w)
    return y.cumsum(1), y.argmax(), y.flatten(1).softmax(1), y.sort(dim=3).values


def transposed(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = F.conv_transpose2d(x, w.transpose(0, 1), stride=2)
    return F.interpolate(y, scale_factor=2), F.pixel_shuffle(y[:, :4], 2), F.group_norm(y, 2)


def of_a_transposed_image(x: torch.Tensor, w: torch.Tensor) -> Any:
    return F.conv2d(x.transpose(2, 3), w), x.transpose(2, 3) * 2


def written(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = F.conv2d(x, w)
    y[:, 0] = 1
    return x.copy_(x * 2), y.relu_()


@pytest.mark.parametrize("function", [viewed, random, reduced, transposed, of_a_transposed_image, written])
def test_results_and_their_layouts_are_those_of_eager_mode(graphs: Graphs, function: Callable[..., Any]) -> None:
    # Sums of whole numbers are the same in any order.
    x, w = (torch.randint(-3, 4, shape, device=DEVICE).float() for shape in ((2, 3, 7, 9), (6, 3, 3, 3)))
    copy = x.clone()
    torch.manual_seed(1)
    expected = function(copy, w)
    torch.manual_seed(1)
    found = torch.compile(function)(x, w)
    assert_equal(found, expected)
    assert layouts(found) == layouts(expected)
    assert formats(graphs[0]) == {True}


def test_three_dimensions(graphs: Graphs) -> None:
    x, w = torch.randn(2, 3, 5, 6, 7, device=DEVICE), torch.randn(4, 3, 2, 3, 3, device=DEVICE, requires_grad=True)
    found = torch.compile(F.conv3d)(x, w)
    expected = F.conv3d(x, w)
    assert_equal(found, expected)
    assert found.stride() == expected.stride()
    assert_equal(*(torch.autograd.grad(y.square().sum(), w)[0] for y in (found, expected)))
    assert formats(graphs[0]) == {True}


def test_who_lays_out_lines_only_is_left_alone(graphs: Graphs) -> None:
    torch.compile(F.conv1d)(torch.randn(2, 3, 9, device=DEVICE), torch.randn(4, 3, 3, device=DEVICE))
    assert copies(graphs[0]) == 0


def test_unknown_sizes_are_left_alone(graphs: Graphs) -> None:
    w = torch.randn(4, 3, 3, 3, device=DEVICE)
    compiled = torch.compile(lambda x: F.conv2d(x, w), dynamic=True)
    for size in (6, 9):
        x = torch.randn(2, 3, size, 7, device=DEVICE)
        assert_equal(compiled(x), F.conv2d(x, w))
    assert [copies(gm) for gm in graphs] == [0]


def test_inductors_option_says_no(graphs: Graphs) -> None:
    x, w = torch.randn(2, 3, 7, 9, device=DEVICE), torch.randn(6, 3, 3, 3, device=DEVICE)
    torch.compile(F.conv2d, options={"layout_optimization": False})(x, w)
    assert not graphs


@pytest.mark.parametrize("has_them", [False, True])
def test_what_tensor_cores_multiply_is_laid_out(monkeypatch: pytest.MonkeyPatch, has_them: bool) -> None:
    """Where the adapter has such, and channels come in whole runs."""
    config = MatrixConfig("f16", "f32", 16, 16, 16, 32)
    monkeypatch.setattr(conv_layout, "config_for", lambda target, operand: config if has_them else None)
    monkeypatch.setattr(conv_layout, "tiles_for", lambda target, config: [config])
    found: list[bool] = []

    def backend(gm: GraphModule, inputs: Any) -> Any:
        found.append(memory_formats.pays(gm))
        return gm

    for channels in (8, 5):
        x, w = (torch.randn(2, channels, 7, 9, device=DEVICE), torch.randn(8, channels, 3, 3, device=DEVICE))
        torch.compile(lambda x, w: F.conv2d(x, w), backend=aot_autograd(fw_compiler=backend))(x.half(), w.half())
    assert found == [has_them, False]


class Encoder(nn.Module):
    """A convolution over time, and what transformers of sounds do with it: columns that residual layers add up, and
    heads that are copied for attention.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.places = nn.Conv1d(5, 16, 3, padding=1), nn.Parameter(torch.randn(12, 16))
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(4)])
        self.products = nn.ModuleList([nn.Linear(16, 48) for _ in range(2)])
        self.outs = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x).transpose(1, 2) + self.places
        for k in range(2):
            q, k_, v = self.products[k](self.norms[2 * k](y)).chunk(3, -1)
            heads = [t.unflatten(-1, (2, 8)).transpose(1, 2).contiguous() for t in (q, k_, v)]
            z = F.scaled_dot_product_attention(*heads).transpose(1, 2).contiguous().flatten(2)
            y = y + self.outs[k](z)
            y = y + F.gelu(self.norms[2 * k + 1](y))
        return y


def test_norms_read_rows_and_attention_heads_where_they_lie(graphs: Graphs) -> None:
    eager = Encoder().to(DEVICE)
    model = deepcopy(eager)
    x = torch.randn(2, 5, 12, device=DEVICE)
    compiled = torch.compile(model)
    expected, found = eager(x), compiled(x)
    assert_equal(found, expected, 1e-5)
    expected.sin().sum().backward()
    found.sin().sum().backward()
    for p, q in zip(model.parameters(), eager.parameters()):
        assert_equal(p.grad, q.grad, 1e-4)
    with torch.no_grad():
        assert_equal(compiled.eval()(x), eager.eval()(x), 1e-5)
    for gm in graphs:
        norms = [node for node in gm.graph.nodes if node.target is aten.native_layer_norm.default]
        assert len(norms) == 4
        assert all(node.args[0].meta["val"].is_contiguous() for node in norms)
        attention = [node for node in gm.graph.nodes if node.target is memory_formats.ATTENTION[0]]
        assert len(attention) == 2
        assert not any(a.target is aten.clone.default for node in attention for a in node.all_input_nodes)
    # columns become rows, and for the result columns again
    assert copies(graphs[1]) == 2


def attend(x: torch.Tensor, w: torch.Tensor, p: float) -> Any:
    heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
    q, k = heads.contiguous(), (heads * w).contiguous()
    y = F.scaled_dot_product_attention(q, k, heads.contiguous(), dropout_p=p)
    return y, y.transpose(1, 2).contiguous(), k


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_copies_that_a_program_sees_are_its_own(graphs: Graphs, p: float) -> None:
    x, w = torch.randn(2, 12, 16, device=DEVICE), torch.randn(8, device=DEVICE)
    torch.manual_seed(3)
    expected = attend(x, w, p)
    torch.manual_seed(3)
    found = torch.compile(attend)(x, w, p)
    assert_equal(found, expected, 1e-5)
    assert len({t.untyped_storage().data_ptr() for t in found}) == len(found)
