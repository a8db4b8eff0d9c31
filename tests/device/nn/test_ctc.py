"""The loss of connectionist temporal classification, and its gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check, same

STEPS, BATCH, CLASSES, LABELS = 20, 3, 6, 5


def log_probs(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (STEPS, BATCH, CLASSES))


def labels(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(1, CLASSES, shape or (BATCH, LABELS), dtype=dtype)


CASES: dict[str, dict[str, Any]] = {
    "padded": {},
    "concatenated": {"targets": labels(9)},
    "int32": {"targets": labels(dtype=torch.int32)},
    "repeated labels": {"targets": torch.full((BATCH, LABELS), 2)},
    "blank in the middle": {"blank": 3, "targets": torch.tensor([[1, 2, 4, 5, 0]] * BATCH)},
    "sum": {"reduction": "sum"},
    "each": {"reduction": "none"},
    "no path": {"input_lengths": [20, 2, 12], "target_lengths": [5, 5, 4], "reduction": "none"},
    "no path, ignored": {"input_lengths": [20, 2, 12], "target_lengths": [5, 5, 4], "zero_infinity": True},
    "no labels": {"target_lengths": [0, 3, 0]},
    "no steps": {"input_lengths": [20, 0, 0], "target_lengths": [5, 0, 1], "reduction": "none"},
    "strided": {"targets": labels(BATCH, 2 * LABELS)[:, ::2]},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient(device: torch.device, name: str) -> None:
    case = {"input_lengths": [20, 15, 12], "target_lengths": [5, 3, 1], "targets": labels(), **CASES[name]}
    targets = case.pop("targets")
    finite = name != "no path"

    def loss(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(x.log_softmax(-1), targets, **case)

    check(device, loss, log_probs(), targets, backward=finite and name != "no steps")


def test_gradient_of_what_no_path_gives(device: torch.device) -> None:
    """Infinity less infinity, as on the CPU, only for the sequence that has no path."""
    x, targets = log_probs().log_softmax(-1), labels()
    check(device, lambda x: F.ctc_loss(x, targets.to(x.device), [20, 2, 12], [5, 5, 4]), x, backward=True)


def test_concatenated_targets_with_gaps(device: torch.device) -> None:
    """The CPU's kernel looks for the second sequence's labels as if there were no gaps; their copy has none."""
    x, targets = log_probs().log_softmax(-1), labels(18)
    actual = F.ctc_loss(x.to(device), targets.to(device)[::2], [20, 15, 12], [5, 3, 1])
    torch.testing.assert_close(actual.cpu(), F.ctc_loss(x, targets[::2].contiguous(), [20, 15, 12], [5, 3, 1]))


@pytest.mark.parametrize("transposed", [False, True])
def test_layouts(device: torch.device, transposed: bool) -> None:
    x = (
        log_probs(BATCH, STEPS, CLASSES).transpose(0, 1)
        if transposed
        else log_probs(STEPS, BATCH, 2 * CLASSES)[..., ::2]
    )
    check(device, lambda x, t: F.ctc_loss(x.log_softmax(-1), t, [20, 15, 12], [5, 3, 1]), x, labels(), backward=True)


def test_one_sequence(device: torch.device) -> None:
    check(
        device,
        lambda x, t: F.ctc_loss(x, t, [STEPS], [LABELS]),
        log_probs(STEPS, CLASSES),
        labels(LABELS),
        backward=True,
    )


def test_more_states_than_a_workgroup_has_threads(device: torch.device) -> None:
    x, targets = torch.randn(400, 2, CLASSES), labels(2, 150)
    check(device, lambda x, t: F.ctc_loss(x.log_softmax(-1), t, [400, 380], [150, 140]), x, targets, backward=True)


def test_lengths_on_the_device(device: torch.device) -> None:
    lengths = torch.tensor([20, 15, 12]), torch.tensor([5, 3, 1])
    check(device, F.ctc_loss, log_probs().log_softmax(-1), labels(), *lengths)


def test_it_runs_on_the_device(device: torch.device) -> None:
    before = torch.webgpu.fallback_stats()
    x = log_probs().to(device).requires_grad_()
    F.ctc_loss(x.log_softmax(-1), labels().to(device), [20, 15, 12], [5, 3, 1]).backward()
    assert torch.webgpu.fallback_stats() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"blank": CLASSES},
        {"input_lengths": [STEPS + 1, 1, 1]},
        {"target_lengths": [LABELS + 1, 1, 1]},
        {"target_lengths": [1, 1]},
    ],
)
def test_errors(device: torch.device, wrong: dict[str, Any]) -> None:
    case = {"input_lengths": [20, 15, 12], "target_lengths": [5, 3, 1], **wrong}
    assert not same(device, lambda x, t: F.ctc_loss(x, t, **case), log_probs(), labels())
