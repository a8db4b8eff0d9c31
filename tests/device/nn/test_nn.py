"""What PyTorch's module database (tests/conformance/test_modules.py) does not show of ``torch.nn``.

Margin losses, transformers as a whole, parametrizations, clipping, modules that move, share weights or are lazy.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parametrizations, parametrize
from torch.utils._pytree import tree_leaves


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def compare(device: torch.device, model: nn.Module, *inputs: torch.Tensor, tol: float = 1e-4, **kwargs: Any) -> None:
    """Training step and evaluation of copies of ``model`` on the CPU and the device: outputs, gradients, buffers."""
    found: list[list[torch.Tensor]] = []
    for where in ("cpu", device):
        twin = copy.deepcopy(model).to(where).train()
        args = [t.detach().to(where).requires_grad_(t.is_floating_point()) for t in inputs]
        options = {k: v.to(where) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        trained = [t for t in tree_leaves(twin(*args, **options)) if t is not None]
        sum(t.square().mean() for t in trained).backward()
        gradients = [p.grad for p in (*twin.parameters(), *args) if p.grad is not None]
        with torch.no_grad():
            evaluated = [t for t in tree_leaves(twin.eval()(*args, **options)) if t is not None]
        found.append([t.detach().cpu() for t in (*trained, *gradients, *evaluated, *twin.buffers())])
    torch.testing.assert_close(found[1], found[0], atol=tol, rtol=tol, equal_nan=True)


# ---- losses


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_margin_losses(device, reduction):
    labels = torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 2], [2, 1, 0, 3]])
    classes, weight = torch.tensor([1, 0, 3]), torch.tensor([0.5, 1.0, 2.0, 3.0])

    def multilabel(x: torch.Tensor) -> Any:
        single = F.multilabel_margin_loss(x[0], labels[0].to(x.device), reduction=reduction)
        return F.multilabel_margin_loss(x, labels.to(x.device), reduction=reduction), single

    def multi(p: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: F.multi_margin_loss(
            x, classes.to(x.device), p, 0.7, weight.to(x.device) if p == 2 else None, reduction=reduction
        )

    for fn in (multilabel, multi(1), multi(2)):
        check(device, fn, seeded(3, 4), backward=True)


# ---- transformers

causal = nn.Transformer.generate_square_subsequent_mask
padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
options = {"dropout": 0.0, "batch_first": True}


@pytest.mark.parametrize(
    ("model", "extra"),
    [
        (nn.TransformerEncoderLayer(16, 2, 32, **options), {}),
        (nn.TransformerEncoderLayer(16, 2, 32, norm_first=True, activation="gelu", **options), {}),
        (nn.TransformerEncoderLayer(16, 2, 32, **options), {"src_mask": causal(5), "is_causal": True}),
        (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, **options), 2, enable_nested_tensor=False),
            {"src_key_padding_mask": padding},
        ),
    ],
    ids=["post-norm", "pre-norm", "causal", "padded"],
)
def test_transformer_encoders(device, model, extra):
    compare(device, model, seeded(2, 5, 16), **extra)


def test_transformers(device):
    torch.manual_seed(0)
    x, y = seeded(2, 5, 16), seeded(2, 3, 16, seed=1)
    compare(device, nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, **options), 2), x, y)
    compare(device, nn.Transformer(16, 2, 1, 1, 32, **options), x, y, tgt_mask=causal(3))


@pytest.mark.parametrize(
    ("settings", "extra"),
    [
        ({}, {}),
        ({}, {"need_weights": False}),
        ({"add_bias_kv": True, "add_zero_attn": True}, {}),
        ({"bias": False}, {"key_padding_mask": padding, "average_attn_weights": False}),
    ],
    ids=["plain", "no weights", "extra keys", "padded"],
)
def test_multihead_attention(device, settings, extra):
    torch.manual_seed(0)
    x = seeded(2, 5, 16)
    compare(device, nn.MultiheadAttention(16, 4, batch_first=True, **settings), x, x, x, **extra)


# ---- parametrizations


@pytest.mark.parametrize(
    "wrap",
    {
        "weight_norm": parametrizations.weight_norm,
        "weight_norm dim 1": lambda m: parametrizations.weight_norm(m, dim=1),
        "spectral_norm": parametrizations.spectral_norm,
        "orthogonal exp": lambda m: parametrizations.orthogonal(m, orthogonal_map="matrix_exp"),
        "orthogonal cayley": lambda m: parametrizations.orthogonal(m, orthogonal_map="cayley"),
        "orthogonal householder": lambda m: parametrizations.orthogonal(m, orthogonal_map="householder"),
        "old weight_norm": nn.utils.weight_norm,
        "old spectral_norm": nn.utils.spectral_norm,
    }.items(),
    ids=lambda item: item[0],
)
def test_parametrized_weights(device, wrap):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old ones are deprecated; some factorizations run on the CPU
        model = wrap[1](nn.Linear(4, 4))
        if "old" not in wrap[0]:
            compare(device, model, seeded(3, 4), tol=1e-3)
        model = wrap[1](nn.Linear(4, 4).to(device))
        assert model(seeded(3, 4).to(device)).shape == (3, 4)


def test_a_parametrization_of_ones_own(device):
    class Symmetric(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.triu() + x.triu(1).t()

        def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
            return x.triu()

    layer = nn.Linear(3, 3).to(device)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    layer.weight = torch.arange(9.0, device=device).view(3, 3)
    assert layer.weight.tolist() == [[0, 1, 2], [1, 4, 5], [2, 5, 8]]
    with parametrize.cached():
        layer(layer(torch.ones(1, 3, device=device))).sum().backward()
    assert layer.parametrizations.weight.original.grad.tril(-1).abs().sum().item() == 0
    parametrize.remove_parametrizations(layer, "weight")
    assert torch.equal(layer.weight, layer.weight.t())


# ---- gradients


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("norm", [2.0, 1.0, float("inf")])
def test_clipping(device, foreach, norm):
    def clipped(where: Any) -> list[torch.Tensor]:
        parameters = [nn.Parameter(torch.zeros(3, 4, device=where)) for _ in range(3)]
        for k, p in enumerate(parameters):
            p.grad = seeded(3, 4, seed=k).to(where)
        total = clip_grad_norm_(parameters, 0.5, norm, error_if_nonfinite=True, foreach=foreach)
        clip_grad_value_(parameters, 0.1, foreach=foreach)
        return [total.cpu(), *(p.grad.cpu() for p in parameters)]

    torch.testing.assert_close(clipped(device), clipped("cpu"))


def test_clipping_refuses_what_is_not_finite(device):
    p = nn.Parameter(torch.zeros(2, device=device))
    p.grad = torch.tensor([1.0, float("inf")], device=device)
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert nn.utils.parameters_to_vector([p]).shape == (2,)


# ---- modules


def test_modules_move_in_place_and_keep_tied_weights(device):
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = [*model.parameters()]
    model.to(device)
    assert model[1].weight is model[0].weight
    assert [id(p) for p in model.parameters()] == [id(p) for p in before]
    tokens = torch.tensor([1, 2, 3], device=device)
    weight = model[0].weight.detach().clone()
    F.cross_entropy(model(tokens), tokens).backward()
    optimizer.step()
    assert not torch.equal(model[1].weight, weight)
    assert model[1].weight.data_ptr() == model[0].weight.data_ptr()
    assert next(model.cpu().parameters()).device.type == "cpu"
    assert next(model.half().to(device).parameters()).dtype == torch.float16
    assert next(getattr(model, device.type)().parameters()).device.type == device.type


def test_modules_are_made_on_the_device(device):
    with torch.device(device):
        inside = nn.Conv2d(1, 2, 3)
    model = nn.Sequential(inside, nn.BatchNorm2d(2, device=device), nn.Flatten(), nn.LazyLinear(3, device=device))
    assert model(torch.ones(2, 1, 4, 4, device=device)).shape == (2, 3)
    assert {p.device.type for p in model.parameters()} == {b.device.type for b in model.buffers()} == {device.type}
    empty = nn.Linear(2, 2, device="meta").to_empty(device=device)
    empty.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    assert empty(torch.ones(1, 2, device=device)).tolist() == [[1, 1]]


def test_running_statistics_and_counters(device):
    compare(device, nn.BatchNorm1d(3, momentum=None), seeded(5, 3))
    compare(device, nn.InstanceNorm1d(3, affine=True, track_running_stats=True), seeded(2, 3, 4))
    model = nn.BatchNorm1d(3).to(device)
    for _ in range(3):
        model(torch.ones(2, 3, device=device))
    assert model.num_batches_tracked.item() == 3
    model.reset_running_stats()
    assert model.running_var.tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", [n for n in dir(nn.init) if n.endswith("_") and not n.startswith("_")])
def test_initialisations(device, name):
    arguments = {"constant_": (3.0,), "sparse_": (0.5,)}.get(name, ())
    shape = (3, 3, 3) if name == "dirac_" else (4, 4)
    t = torch.full(shape, float("nan"), device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # orthogonal_ factorizes on the CPU
        getattr(nn.init, name)(t, *arguments)
    assert t.isfinite().all().item()
    if name in ("eye_", "orthogonal_"):
        torch.testing.assert_close((t @ t.t()).cpu(), torch.eye(4), atol=1e-5, rtol=0)


def test_embeddings(device):
    torch.manual_seed(0)
    for model in (
        nn.Embedding(5, 4, padding_idx=0),
        nn.Embedding(5, 4, max_norm=1.0),
        nn.Embedding(5, 4, scale_grad_by_freq=True),
        nn.EmbeddingBag(5, 4, mode="max"),
        nn.EmbeddingBag(5, 4, mode="mean", padding_idx=1),
    ):
        compare(device, model, torch.tensor([[1, 2, 0], [3, 3, 1]]))
    bags, weights = torch.tensor([0, 2, 5]), torch.rand(6)
    flat = torch.tensor([1, 2, 0, 3, 3, 1])
    compare(device, nn.EmbeddingBag(5, 4, mode="sum"), flat, offsets=bags, per_sample_weights=weights)
