"""Recurrent layers: packed sequences, initial states, dropout between layers; and a sequence task that is learnt."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence
from torch.utils._pytree import tree_leaves

LAYERS = [nn.LSTM, nn.GRU, nn.RNN]
layers = pytest.mark.parametrize("cls", LAYERS, ids=lambda cls: cls.__name__)


def both(model: nn.Module, device: torch.device, run: Any) -> None:
    """``run(model, device)`` gives the same results and parameter gradients on the device as on the CPU."""
    results = []
    for where in (device, torch.device("cpu")):
        twin = copy.deepcopy(model).to(where)
        outputs = [t for t in tree_leaves(run(twin, where)) if t.is_floating_point()]
        sum(t.square().sum() for t in outputs).backward()
        results.append([t.detach().cpu() for t in outputs] + [p.grad.cpu() for p in twin.parameters()])
    torch.testing.assert_close(*results, atol=2e-5, rtol=1e-4)


@layers
@pytest.mark.parametrize("sorted_lengths", [True, False])
def test_packed_sequences(device, cls, sorted_lengths):
    torch.manual_seed(0)
    x, lengths = torch.randn(5, 3, 4), torch.tensor([5, 3, 1] if sorted_lengths else [2, 5, 3])

    def run(model: nn.Module, where: torch.device) -> Any:
        packed = pack_padded_sequence(x.to(where), lengths, enforce_sorted=sorted_lengths)
        out, state = model(packed)
        assert out.data.device.type == where.type
        padded, found = pad_packed_sequence(out, padding_value=-1.0)
        assert found.tolist() == lengths.tolist()
        return padded, state

    both(cls(4, 6, num_layers=2, bidirectional=True), device, run)


@layers
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "bias": False}, {"bidirectional": True}], ids=str)
def test_given_states_and_unbatched_inputs(device, cls, options):
    torch.manual_seed(0)
    directions = 2 if options.get("bidirectional") else 1
    x, h = torch.randn(4, 3, 5), torch.randn(directions, 4 if options.get("batch_first") else 3, 6)

    def run(model: nn.Module, where: torch.device) -> Any:
        state = h.to(where)
        state = (state, state * 2) if cls is nn.LSTM else state
        return model(x.to(where), state), model(x[0].to(where))

    both(cls(5, 6, **options), device, run)


def test_projections_and_relu(device):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5)
    both(nn.LSTM(5, 6, proj_size=2), device, lambda model, where: model(x.to(where)))
    both(nn.RNN(5, 6, nonlinearity="relu"), device, lambda model, where: model(x.to(where)))


@layers
def test_dropout_between_layers_only_when_training(device, cls):
    model, x = cls(4, 64, num_layers=2, dropout=0.5).to(device), torch.randn(3, 2, 4, device=device)
    assert not torch.equal(model(x)[0], model(x)[0])
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])


def test_sequences_of_different_lengths(device):
    parts = [torch.arange(float(n), device=device) for n in (3, 1, 2)]
    assert pad_sequence(parts, batch_first=True, padding_value=9).tolist() == [[0, 1, 2], [0, 9, 9], [0, 1, 9]]
    packed = pack_sequence(parts, enforce_sorted=False)
    assert packed.data.tolist() == [0, 0, 0, 1, 1, 2]
    assert packed.to("cpu").data.device.type == "cpu"
    assert pad_packed_sequence(packed, batch_first=True)[0].tolist() == [[0, 1, 2], [0, 0, 0], [0, 1, 0]]


def test_a_sequence_task_is_learnt(device):
    """Does the sequence of bits hold an odd number of ones? A GRU learns it in a few dozen steps."""
    torch.manual_seed(0)
    x = torch.randint(0, 2, (64, 4, 1)).float()
    y = (x.sum((1, 2)) % 2).to(device)
    rnn, head = nn.GRU(1, 16, batch_first=True).to(device), nn.Linear(16, 1).to(device)
    optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=0.05)
    x = x.to(device)
    for _ in range(80):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(head(rnn(x)[0][:, -1])[:, 0], y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
