"""``torch.library.opcheck`` finds on webgpu what it finds on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.device.processes import assert_ends_well
from torch.testing._internal import optests
from torch.testing._internal.optests import generate_tests

KEYS = {"cpu": "CPU", "webgpu": "PrivateUse1"}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


@pytest.fixture
def library(device: torch.device) -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("tests_opcheck", "FRAGMENT") as library:
        yield library


def checked(op: Any, device: torch.device) -> dict[str, Any]:
    torch._dynamo.reset()
    found = torch.library.opcheck(op, (torch.ones(3, device=device, requires_grad=True),), raise_exception=False)
    return {name: result if result == "SUCCESS" else type(result) for name, result in found.items()}


def test_an_operator_that_is_right(device: torch.device, library: torch.library.Library) -> None:
    op = torch.library.custom_op(
        "tests_opcheck::squared", lambda x: x * x, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    op.register_fake(torch.empty_like)
    op.register_autograd(
        lambda ctx, grad: 2 * ctx.saved_tensors[0] * grad,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    assert set(checked(op, device).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
def test_gradients_in_the_wrong_place_are_seen(device: torch.device, library: torch.library.Library) -> None:
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", torch.empty_like, "Meta")
    for key in KEYS.values():
        library.impl("doubled", Doubled.apply, key)
    op = torch.ops.tests_opcheck.doubled.default
    found = checked(op, device)
    assert found["test_autograd_registration"] is AssertionError
    assert found == checked(op, torch.device("cpu"))


def test_a_kernel_at_the_devices_autograd_key_will_do(device: torch.device, library: torch.library.Library) -> None:
    library.define("tripled(Tensor x) -> Tensor")
    library.impl("tripled", lambda x: x * 3, KEYS[device.type])
    library.impl("tripled", Doubled.apply, f"Autograd{KEYS[device.type]}")
    x = torch.ones(3, device=device, requires_grad=True)
    optests.autograd_registration_check(torch.ops.tests_opcheck.tripled.default, (x,), {})


def test_devices_are_still_listed() -> None:
    """A canary for aten/dispatch/opcheck.py: allow_webgpu."""
    x = torch.ones(3, device="webgpu", requires_grad=True)
    for module in (optests, generate_tests):
        with pytest.raises(NotImplementedError, match="webgpu"):
            module.autograd_registration_check.__wrapped__(torch.ops.aten.sin.default, (x,), {})


def test_importing_webgpu_imports_no_tests_of_pytorch() -> None:
    assert_ends_well("import sys, torch_webgpu; assert 'torch.testing._internal.optests' not in sys.modules")
