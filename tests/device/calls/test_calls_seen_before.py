"""Copies, clones, casts, fills and dropouts that were seen before do what they did the first time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_webgpu.engine.record import Engine, engine

TIMES = 3


@pytest.fixture(autouse=True)
def batching() -> Iterator[None]:
    """A flush at every operation leaves nothing to trace."""
    with engine().using(batching=True):
        yield


def views(t: torch.Tensor) -> list[torch.Tensor]:
    """Views of one shape: dense, transposed, strided, shifted, expanded."""
    base = torch.cat([t.flatten(), t.flatten()])
    return [
        t,
        t.t().contiguous().t(),
        base[: t.numel()].view_as(t),
        base[4 : 4 + t.numel()].view_as(t),
        base[1 : 1 + t.numel()].view_as(t),
        base[::2].view_as(t),
        t[:1].expand(t.shape),
    ]


def test_copies_between_any_views(device: torch.device) -> None:
    values = torch.arange(48.0).view(6, 8)
    for _ in range(TIMES):
        for source in range(7):
            for target in range(6):
                results = []
                for where in ("cpu", device):
                    t = views(torch.zeros(6, 8).to(where))[target]
                    results.append(t.copy_(views(values.to(where))[source]).cpu())
                assert torch.equal(*results), (source, target)


def test_copies_onto_oneself_and_onto_what_overlaps(device: torch.device) -> None:
    for _ in range(TIMES):
        results = []
        for where in ("cpu", device):
            base = torch.arange(64.0).to(where)
            base[8:40].copy_(base[8:40])
            base[8:40].copy_(base[4:36].clone())
            base[:32].view(4, 8).copy_(base[32:].view(8, 4).t())
            results.append(base.cpu())
        assert torch.equal(*results)
        x = torch.arange(40.0, device=device)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[4:36].copy_(x[:32])
        x[:40:2].copy_(x[:20])  # what has gaps is not judged, and as if the source had been copied before
        assert torch.equal(x.cpu(), torch.stack([torch.arange(20.0), torch.arange(1.0, 40, 2)], 1).flatten())


def test_lazy_conjugates_are_not_taken_for_plain_ones(device: torch.device) -> None:
    values = torch.randn(4, 4, dtype=torch.complex64)
    for _ in range(TIMES):
        for change in (lambda z: z, torch.conj, lambda z: torch._neg_view(z), lambda z: torch._neg_view(z.conj())):
            z = change(values.to(device))
            expected = change(values).resolve_conj().resolve_neg()
            assert torch.equal(torch.empty_like(expected, device=device).copy_(z).cpu(), expected)
            assert torch.equal(z.clone().cpu(), expected)
            assert torch.equal(z.to(torch.complex64, copy=True).cpu(), expected)


@pytest.mark.parametrize("memory_format", [torch.preserve_format, torch.contiguous_format, torch.channels_last])
def test_clones_and_casts_are_laid_out_as_on_cpu(memory_format: torch.memory_format, device: torch.device) -> None:
    base = torch.arange(240.0).view(2, 3, 4, 10)
    shapes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t,
        lambda t: t.transpose(1, 3),
        lambda t: t[:, :, ::2],
        lambda t: t[:, :1].expand(2, 3, 4, 10),
        lambda t: t[:0],
    ]
    for _ in range(TIMES):
        for view in shapes:
            expected, actual = view(base), view(base.to(device))
            for make in (
                lambda t: t.clone(memory_format=memory_format),
                lambda t: t.to(torch.float16, memory_format=memory_format),
                lambda t: t.to(torch.int32, memory_format=memory_format),
                lambda t: t.to(t.device, copy=True, memory_format=memory_format),
            ):
                want, got = make(expected), make(actual)
                assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)
                assert got.untyped_storage().data_ptr() != actual.untyped_storage().data_ptr() or not got.numel()
                assert torch.equal(got.cpu(), want)


def test_fills_keep_their_sign_and_their_type(device: torch.device) -> None:
    for dtype in (torch.float32, torch.float16, torch.int32, torch.bool):
        for _ in range(TIMES):
            for value in (0.0, -0.0, 1, True, 2.5, -128, 127, 300, float("inf"), float("nan")):
                results = []
                for where in ("cpu", device):
                    t = torch.zeros(3, 5, dtype=dtype).to(where)
                    try:
                        results.append(t.fill_(value).cpu())
                    except (RuntimeError, ValueError, OverflowError) as error:
                        results.append(error)
                if isinstance(results[0], Exception):
                    assert isinstance(results[1], type(results[0]))
                    continue
                torch.testing.assert_close(results[1], results[0], rtol=0, atol=0, equal_nan=True)
                if dtype.is_floating_point:
                    assert torch.equal(results[1].signbit(), results[0].signbit()), value


def test_dropouts_draw_on(device: torch.device) -> None:
    x = torch.ones(64, 64, device=device)
    torch.manual_seed(3)
    first = [F.dropout(x, p) for p in (0.1, 0.5, 0.5, 0.9, 0.0, 1.0)]
    torch.manual_seed(3)
    again = [F.dropout(x, p) for p in (0.1, 0.5, 0.5, 0.9, 0.0, 1.0)]
    for one, other, p in zip(first, again, (0.1, 0.5, 0.5, 0.9, 0.0, 1.0), strict=True):
        assert torch.equal(one.cpu(), other.cpu())
        kept = one.cpu() != 0
        assert abs(kept.float().mean() - (1 - p)) < 0.05
        if p < 1:
            torch.testing.assert_close(one.cpu()[kept], torch.full_like(one.cpu()[kept], 1 / (1 - p)))
    assert not torch.equal(first[1].cpu(), first[2].cpu())
    assert F.dropout(x, 0.5, training=False) is x


def test_dropouts_of_a_graph_draw_on(device: torch.device) -> None:
    x = torch.ones(64, 64, device=device)
    for _ in range(TIMES):
        F.dropout(x, 0.5)
    graph = torch.webgpu.Graph()
    with torch.webgpu.graph(graph):
        y = F.dropout(x, 0.5)
    results = []
    for _ in range(2):
        graph.replay()
        results.append(y.cpu())
    assert not torch.equal(*results)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_cells_and_their_gradients(kind: type[nn.Module], device: torch.device) -> None:
    torch.manual_seed(0)
    cell = kind(6, 5)
    on_device = kind(6, 5).to(device)
    on_device.load_state_dict(cell.state_dict())
    for _ in range(TIMES):
        x = torch.randn(3, 6)
        for module, where in ((cell, "cpu"), (on_device, device)):
            module.zero_grad()
            out = module(x.to(where))
            hidden = out[0] if isinstance(out, tuple) else out
            hidden.sum().backward()
        for ours, theirs in zip(on_device.parameters(), cell.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wanted", [(0,), (1, 2), (0, 1, 2), (2,)])
def test_gradients_that_nobody_wants(wanted: tuple[int, ...], device: torch.device) -> None:
    torch.manual_seed(1)
    tensors = [torch.randn(4, 8), torch.randn(8), torch.randn(8)]
    for _ in range(TIMES):
        grads = []
        for where in ("cpu", device):
            given = [t.to(where).requires_grad_(k in wanted) for k, t in enumerate(tensors)]
            out = F.layer_norm(given[0], (8,), given[1], given[2])
            grads.append(torch.autograd.grad(out.square().sum(), [given[k] for k in wanted]))
        for theirs, ours in zip(*grads, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


def test_a_training_step_goes_no_long_way(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its operations is looked up by its layouts in Python any more."""
    model = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(2, 4, 16, device=device), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3], device=device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x).view(-1, 4), y).backward()
        optimizer.step()

    for _ in range(4):
        step()
    slow, record = [], Engine.record
    monkeypatch.setattr(
        Engine, "record", lambda self, name, *a, **k: (slow.append(name), record(self, name, *a, **k))[1]
    )
    step()
    assert slow == []
