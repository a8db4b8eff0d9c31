"""Bad arguments are refused with the CPU's exception, word for word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import outcome

from torch_webgpu.aten.dispatch.refusals import MAX_BYTES, may_end_process, refusal

Use = Callable[[Any], Any]

REFUSED: dict[str, Use] = {
    "broadcast": lambda d: torch.ones(10, device=d) + torch.ones(3, device=d),
    "broadcast of two dimensions": lambda d: torch.ones(2, 3, device=d) * torch.ones(4, 3, device=d),
    "broadcast in place": lambda d: torch.ones(4, 3, device=d).mul_(torch.ones(2, 3, device=d)),
    "broadcast in place grows": lambda d: torch.ones(1, device=d).add_(torch.ones(3, device=d)),
    "broadcast of a condition": lambda d: torch.where(
        torch.ones(10, device=d) > 0, torch.ones(3, device=d), torch.ones(1, device=d)
    ),
    "broadcast of a comparison": lambda d: torch.ones(5, device=d) == torch.ones(4, device=d),
    "lerp": lambda d: torch.lerp(torch.ones(10, device=d), torch.ones(3, device=d), 0.3),
    "mse_loss": lambda d: F.mse_loss(torch.ones(3, 4, device=d), torch.ones(3, 5, device=d)),
    "arange of too many": lambda d: torch.arange(-1e20, 1e20, device=d),
    "clamp without bounds": lambda d: torch.ones(2, device=d).clamp(None, None),
    "nll_loss weights": lambda d: F.nll_loss(
        torch.ones(3, 4, device=d), torch.zeros(3, dtype=torch.int64, device=d), weight=torch.ones(3, device=d)
    ),
    "cross_entropy of float classes": lambda d: F.cross_entropy(torch.ones(3, 4, device=d), torch.ones(3, device=d)),
    "cross_entropy of float images": lambda d: F.cross_entropy(
        torch.ones(1, 4, 2, 2, device=d), torch.ones(1, 2, 2, device=d)
    ),
    "cross_entropy of int32 classes": lambda d: F.cross_entropy(
        torch.ones(3, 4, device=d), torch.ones(3, dtype=torch.int32, device=d)
    ),
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1,), device=d),
    "new_empty_strided": lambda d: torch.ones(2, device=d).new_empty_strided((2,), (1, 1)),
    "randint of complex": lambda d: torch.randint(0, 3, (2,), dtype=torch.complex64, device=d),
    "all into float": lambda d: torch.all(torch.ones(2, 2, device=d), 0, out=torch.empty(2, device=d)),
    "any into int": lambda d: torch.any(torch.ones(2, 2, device=d), out=torch.empty((), dtype=torch.int32, device=d)),
    "mean of integers": lambda d: torch.ones(3, dtype=torch.int64, device=d).mean(),
    "cat of other sizes": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(2, 4, device=d)]),
    "amax twice over one dimension": lambda d: torch.ones(2, 3, device=d).amax((0, 0)),
    "layer_norm": lambda d: F.layer_norm(torch.ones(2, 3, device=d), (4,)),
    "amax of nothing": lambda d: torch.ones(0, 3, device=d).amax(),
    "argmax of nothing": lambda d: torch.ones(0, 3, device=d).argmax(),
    "max of nothing": lambda d: torch.ones(2, 0, device=d).max(1),
    "softshrink": lambda d: F.softshrink(torch.ones(2, device=d), -0.5),
    "kthvalue over its input": lambda d: torch.kthvalue(
        x := torch.ones(4, device=d), 1, keepdim=True, out=(x[:1], torch.empty(1, dtype=torch.int64, device=d))
    ),
    "max_unpool2d": lambda d: F.max_unpool2d(
        torch.ones(1, 1, 4, 4, device=d), torch.zeros(1, 1, 4, 1, dtype=torch.int64, device=d), 2
    ),
    "eye": lambda d: torch.eye(2, -3, device=d),
    "addr_ of a number": lambda d: torch.ones((), device=d).addr_(torch.ones(2, device=d), torch.ones(3, device=d)),
    "addr_ of a row": lambda d: torch.ones(3, device=d).addr_(torch.ones(2, device=d), torch.ones(3, device=d)),
    "addr_ broadcast": lambda d: torch.ones(1, 3, device=d).addr_(torch.ones(2, device=d), torch.ones(3, device=d)),
    "addr_ of matrices": lambda d: torch.ones(2, 3, device=d).addr_(torch.ones((), device=d), torch.ones(3, device=d)),
    "addr_ of integers": lambda d: torch.ones(1, 1, dtype=torch.int64, device=d).addr_(
        *[torch.ones(1, dtype=torch.int64, device=d)] * 2, beta=0.5
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_in_the_cpus_words(device: torch.device, name: str) -> None:
    expected = outcome(REFUSED[name], "cpu")
    assert isinstance(expected, tuple), "the CPU accepts it"
    assert outcome(REFUSED[name], device) == expected
    assert outcome(REFUSED[name], device) == expected, "the second time"


def test_large_arguments_are_not_computed_with_to_ask(device: torch.device) -> None:
    size = MAX_BYTES // 4 + 1
    x, y = torch.empty(size, device=device), torch.empty(3, device=device)
    assert refusal(torch.ops.aten.add.Tensor, (x, y), {}) is None
    with pytest.raises(RuntimeError):
        x + y


def test_kernels_that_end_the_process_are_not_asked(device: torch.device) -> None:
    """On the CPU each of these is a segmentation fault."""
    indices, log_probs = torch.zeros(2, 3, dtype=torch.int32, device=device), torch.zeros(2, 1, 3, device=device)
    lengths = torch.zeros(1, dtype=torch.int64, device=device)
    aten = torch.ops.aten
    assert refusal(aten._convert_indices_from_coo_to_csr.default, (indices, -7), {}) is None
    arguments = (lengths, log_probs, lengths, [9], [9], lengths, log_probs, 0)
    assert refusal(aten._ctc_loss_backward.default, arguments, {}) is None
    assert may_end_process(aten._ctc_loss_backward.out)
    assert not may_end_process(aten.add.Tensor)
    assert refusal(aten.sum.default, (log_probs,), {"dtype": -7}) is None
    assert not may_end_process(aten.sum.default, (log_probs,), {"dtype": torch.float32})


def test_what_only_a_meta_kernel_refuses_stays_an_error(device: torch.device) -> None:
    assert refusal(torch.ops.aten.add.Tensor, (torch.ones(2, device=device), 1), {}) is None


def test_accepted_out_dtypes_stay_accepted(device: torch.device) -> None:
    x = torch.tensor([[True, False], [True, True]], device=device)
    out = torch.empty(2, dtype=torch.uint8, device=device)
    assert torch.all(x, 0, out=out).tolist() == [1, 0]
