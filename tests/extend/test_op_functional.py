"""``torch.webgpu.functional``, and methods of tensors behind ``x.webgpu``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_webgpu.errors import AlreadyRegisteredError, NotRegisteredError

functional = torch.webgpu.functional


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for name in list(functional.functions()):
        functional.unregister_function(name)
    for name in list(functional.methods()):
        functional.unregister_method(name)


def swiglu(x: Tensor, y: Tensor) -> Any:
    return "x / (1.0 + exp(-x)) * y"


def test_functions(define: Callable[..., Any], device: torch.device) -> None:
    fn = define("test::swiglu")(swiglu)
    functional.register_function("swiglu", fn)
    assert functional.swiglu is fn
    assert "swiglu" in dir(functional)
    x = torch.randn(3, device=device)
    torch.testing.assert_close(torch.webgpu.functional.swiglu(x, x), fn(x, x))
    with pytest.raises(AlreadyRegisteredError, match="replace=True"):
        functional.register_function("swiglu", fn)
    functional.register_function("swiglu", torch.relu, replace=True)
    assert functional.swiglu is torch.relu
    with pytest.raises(AttributeError, match="did you mean 'swiglu'"):
        functional.swigl  # noqa: B018
    with pytest.raises(AlreadyRegisteredError, match="is part of"):
        functional.register_function("register_method", fn)
    for name, error in (("2x", ValueError), ("_x", ValueError), ("x", TypeError)):
        with pytest.raises(error):
            functional.register_function(name, None)
    functional.unregister_function("swiglu")
    with pytest.raises(NotRegisteredError):
        functional.unregister_function("swiglu")


def test_methods(define: Callable[..., Any], device: torch.device) -> None:
    fn = define("test::swiglu")(swiglu)
    functional.register_method("swiglu", fn)
    functional.register_method("twice", lambda x: x * 2)
    x = torch.randn(3)
    assert x.webgpu().device.type == "webgpu"
    assert x.webgpu(non_blocking=True).device.type == "webgpu"
    assert torch.Tensor.webgpu(x).device.type == "webgpu"
    assert torch.Tensor.webgpu.__name__ == "webgpu"  # which torch.overrides asks of all attributes
    assert torch.nn.Linear(2, 2).webgpu().weight.device.type == "webgpu"
    torch.testing.assert_close(x.webgpu.swiglu(x), fn(x, x))
    torch.testing.assert_close(x.to(device).webgpu.twice().cpu(), x * 2)
    parameter = torch.nn.Parameter(x)
    parameter.webgpu.swiglu(x).sum().backward()
    assert parameter.grad is not None
    assert not hasattr(torch.Tensor, "swiglu")
    assert "swiglu" in dir(x.webgpu)
    with pytest.raises(AttributeError, match="did you mean 'twice'"):
        x.webgpu.twise()
    with pytest.raises(AlreadyRegisteredError):
        functional.register_method("twice", fn)
    compiled = torch.compile(lambda t: t.webgpu.swiglu(t) + 1, backend="webgpu")
    torch.testing.assert_close(compiled(x.to(device)).cpu(), fn(x, x) + 1)
