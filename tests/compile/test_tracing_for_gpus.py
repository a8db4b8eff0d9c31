"""Tracing with fake tensors, as Dynamo does it, for a GPU whose kernels are chosen by sizes that no software adapter
is given: what is asked of a call there must follow from shapes and layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.choices import forget
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_webgpu import target
from torch_webgpu.engine.record import engine

Function = Callable[..., torch.Tensor]


def attention(queries: int, keys: int, width: int = 64, **options: Any) -> tuple[Function, list[tuple[int, ...]]]:
    shapes = [(8, 16, n, width) for n in (queries, keys, keys)]
    return partial(F.scaled_dot_product_attention, **options), shapes


def encoder(x: torch.Tensor) -> torch.Tensor:
    return nn.TransformerEncoderLayer(768, 12, batch_first=True, device=x.device, dtype=x.dtype)(x)


def self_attention(x: torch.Tensor) -> torch.Tensor:
    layer = nn.MultiheadAttention(768, 12, batch_first=True, device=x.device, dtype=x.dtype)
    return layer(x, x, x, need_weights=False)[0]


def recurrent(kind: type[nn.RNNBase], x: torch.Tensor) -> torch.Tensor:
    return kind(512, 512, 2, bidirectional=True, device=x.device, dtype=x.dtype)(x)[0]


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True)


PROGRAMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "attention": attention(1024, 1024),
    "causal attention": attention(1024, 1024, is_causal=True),
    "attention with dropout": attention(1024, 1024, dropout_p=0.1),
    "attention of one token": attention(1, 4096),
    "attention to a text": attention(4096, 77, 40),
    "wide attention": attention(2048, 2048, 128),
    "grouped attention": (grouped, [(8, 16, 1024, 64)] * 3),
    "an encoder": (encoder, [(32, 197, 768)]),
    "self attention": (self_attention, [(32, 197, 768)]),
    "linear": (F.linear, [(8, 512, 768), (50257, 768)]),
    "a product": (torch.matmul, [(16, 1024, 1024), (16, 1024, 1024)]),
    "convolution": (partial(F.conv2d, padding=1), [(32, 64, 56, 56), (64, 64, 3, 3)]),
    "depthwise convolution": (partial(F.conv2d, padding=3, groups=96), [(32, 96, 56, 56), (96, 1, 7, 7)]),
    "transposed convolution": (partial(F.conv_transpose2d, stride=2), [(32, 64, 56, 56), (64, 64, 2, 2)]),
    "LSTM": (partial(recurrent, nn.LSTM), [(64, 64, 512)]),
    "GRU": (partial(recurrent, nn.GRU), [(64, 64, 512)]),
    "embedding": (lambda w: F.embedding(torch.zeros(64, 256, dtype=torch.long, device=w.device), w), [(65, 384)]),
    "sums through an index": (
        lambda x, s: x.index_add(0, torch.zeros(len(s), dtype=torch.long, device=x.device), s),
        [(170_000, 128), (1_200_000, 128)],
    ),
    "layer norm": (lambda x: F.layer_norm(x, (768,)), [(4096, 768)]),
    "cross entropy": (
        lambda x: F.cross_entropy(x, torch.zeros(len(x), dtype=torch.long, device=x.device)),
        [(4096, 50257)],
    ),
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``webgpu:0`` is said to be an H200, and fake tensors have no addresses, as in Dynamo's tracing."""
    torch.zeros(1, device="webgpu").cpu()
    monkeypatch.setattr(engine().device(0), "target", target.named("h200-dawn"))
    forget(monkeypatch)
    with torch._functorch.config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
        yield
    forget(monkeypatch)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_tracing(gpu: None, name: str, dtype: torch.dtype, needs_grad: bool) -> None:
    fn, shapes = PROGRAMS[name]
    with FakeTensorMode(), torch.set_grad_enabled(needs_grad):
        tensors = [torch.empty(shape, dtype=dtype, device="webgpu", requires_grad=needs_grad) for shape in shapes]
        y = fn(*tensors)
        assert y.device.type == "webgpu"
        assert y.dtype == dtype
        if needs_grad:
            for t, grad in zip(tensors, torch.autograd.grad(y.sum(), tensors), strict=True):
                assert grad.shape == t.shape
    if (
        name != "GRU"
    ):  # PyTorch knows no layouts of `_thnn_fused_gru_cell`: its fake tensors run it on zeros, as on CUDA
        assert not engine().lane(0).entries
