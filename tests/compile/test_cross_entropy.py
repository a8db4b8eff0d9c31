"""The loss of a compiled training step, which keeps scores instead of log-probabilities: against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

ROWS, CLASSES, FEATURES = 13, 37, 8
NAME = "cross-entropy"


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, a weight, and targets of which two are ignored."""
    torch.manual_seed(0)
    features, weight = torch.randn(ROWS, FEATURES), torch.randn(CLASSES, FEATURES)
    targets = torch.randint(0, CLASSES, (ROWS,))
    targets[[2, 5]] = -100
    return features, weight, targets


def gradients(
    loss: Callable[..., torch.Tensor], device: Any, *tensors: torch.Tensor, run: Callable[..., Any] = lambda fn: fn
) -> list[torch.Tensor]:
    """The loss, and the gradients of all floating tensors."""
    moved = [t.detach().clone().to(device) for t in tensors]
    leaves = [t.requires_grad_() for t in moved if t.is_floating_point()]
    value = run(loss)(*moved)
    value.sum().backward()
    return [value.detach().cpu(), *(t.grad.cpu() for t in leaves)]


def rewritten() -> int:
    return torch.webgpu.compile_stats().patterns.get(NAME, 0)


def agree(loss: Callable[..., torch.Tensor], *tensors: torch.Tensor, tolerance: float = 1e-5, count: int = 1) -> None:
    torch._dynamo.reset()
    before = rewritten()
    found = gradients(loss, "webgpu", *tensors, run=torch.compile)
    assert rewritten() - before == count
    for one, other in zip(found, gradients(loss, "cpu", *tensors), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions_and_weights(reduction: str, weighted: bool) -> None:
    classes = torch.rand(CLASSES) if weighted else None

    def loss(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        weight = None if classes is None else classes.to(x.device)
        return F.cross_entropy(x @ w.t(), t, weight=weight, reduction=reduction)

    agree(loss, *inputs())


def test_another_target_is_ignored_or_all_are() -> None:
    x, w, t = inputs()
    t = t.clamp(min=3)
    agree(lambda x, w, t: F.cross_entropy(x @ w.t(), t, ignore_index=3), x, w, t)
    agree(lambda x, w, t: F.cross_entropy(x @ w.t(), t), x, w, torch.full_like(t, -100))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_scores_in_16_bits(dtype: torch.dtype) -> None:
    def loss(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        scores = x.to(dtype) @ w.to(dtype).t()
        return F.cross_entropy(scores.view(1, ROWS, CLASSES).float().view(-1, CLASSES), t)

    agree(loss, *inputs(), tolerance=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_sizes_that_are_not_known(dtype: torch.dtype) -> None:
    """How many rows is a symbol; batches of other lengths are no new graphs."""

    def loss(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        scores = (x.to(dtype) @ w.to(dtype).t()).view(1, -1, CLASSES).float()
        return F.cross_entropy(scores.view(-1, CLASSES), t)

    torch._dynamo.reset()
    before = rewritten()
    run = torch.compile(loss, dynamic=True)
    x, w, t = inputs()
    for rows in (13, 9, 11):
        found = gradients(loss, "webgpu", x[:rows], w, t[:rows], run=lambda _: run)
        for one, other in zip(found, gradients(loss, "cpu", x[:rows], w, t[:rows]), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    assert rewritten() - before == 1


def test_large_scores_keep_what_is_small_beside_them() -> None:
    t = inputs()[2]
    scores = torch.randn(ROWS, CLASSES) + 1e4
    agree(lambda s, t: F.cross_entropy(s * 1.0, t), scores, t, tolerance=1e-6)


def test_scores_that_are_not_finite() -> None:
    scores, t = torch.randn(ROWS, CLASSES), inputs()[2]
    scores[0, 1], scores[1], scores[3, 2], scores[4, 5] = -torch.inf, -torch.inf, torch.inf, torch.nan
    agree(lambda s, t: F.cross_entropy(s * 1.0, t, reduction="none"), scores, t)


def test_log_probabilities_that_something_else_uses_stay() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        log = (x @ w.t()).log_softmax(1)
        return F.nll_loss(log, t) + log.square().mean()

    agree(twice, *inputs(), count=0)
    agree(lambda x, w, t: F.cross_entropy(x @ w.t(), t, label_smoothing=0.1), *inputs(), count=0)


def test_a_target_that_is_no_class_is_an_error() -> None:
    x, w, t = inputs()
    t[4] = CLASSES
    torch._dynamo.reset()
    with pytest.raises(IndexError):
        gradients(lambda x, w, t: F.cross_entropy(x @ w.t(), t), "webgpu", x, w, t, run=torch.compile)


def test_no_log_probabilities_are_kept() -> None:
    """What lives between the passes: scores in 16 bits, not float32 beside them."""
    rows, classes = 64, 4096
    w, x = torch.randn(classes, 8, device="webgpu").bfloat16(), torch.randn(rows, 8, device="webgpu").bfloat16()
    t = torch.randint(0, classes, (rows,), device="webgpu")
    w.requires_grad_()
    torch._dynamo.reset()
    step = torch.compile(lambda x, w, t: F.cross_entropy((x @ w.t()).float(), t))
    step(x, w, t).backward()
    torch.webgpu.synchronize()
    before = torch.webgpu.memory_allocated()
    value = step(x, w, t)
    torch.webgpu.synchronize()
    kept = torch.webgpu.memory_allocated() - before
    scores = rows * classes * 2
    assert scores <= kept < 1.5 * scores
    value.backward()
