"""PyTorch's multi-tensor optimizers over cheaper lists: the same results, no tensors for what nobody looks at."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_webgpu.aten.foreach import optimizer_lists
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.tensor import Mailbox

Optimizer = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizer] = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, weight_decay=0.1, foreach=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr_decay=0.1, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, foreach=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, weight_decay=0.1, maximize=True, foreach=True),
    "Adam capturable": lambda p: torch.optim.Adam(p, capturable=True, foreach=True),
    "Adamax": lambda p: torch.optim.Adamax(p, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, foreach=True),
    "ASGD": lambda p: torch.optim.ASGD(p, foreach=True),
    "NAdam": lambda p: torch.optim.NAdam(p, foreach=True),
    "RAdam": lambda p: torch.optim.RAdam(p, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True, foreach=True),
    "Rprop": lambda p: torch.optim.Rprop(p, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=True),
}
SHAPES = ((3, 5), (7,), (1030,), ())


def multi_tensor_functions() -> dict[str, tuple[Any, Any]]:
    """The modules and functions by name."""
    found = {}
    for module_name, module in sys.modules.items():
        if module_name.startswith("torch.optim."):
            for name, function in vars(module).items():
                if name.startswith("_multi_tensor_") and isinstance(function, FunctionType):
                    found[name] = (module, function)
    return found


@contextmanager
def originals() -> Iterator[None]:
    """PyTorch's functions in place of ours."""
    with pytest.MonkeyPatch.context() as patch:
        for name, (module, function) in multi_tensor_functions().items():
            patch.setattr(module, name, function.__wrapped__)  # type: ignore[attr-defined]
        yield


def parameters(device: Any) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.nn.Parameter((torch.rand(s, generator=generator) + 0.5).to(device)) for s in SHAPES]
    for p in made:
        p.grad = torch.rand(p.shape, generator=generator).to(device) - 0.3
    return made


def trained(make: Optimizer, device: Any, steps: int = 3) -> list[torch.Tensor]:
    params = parameters(device)
    optimizer = make(params)
    for _ in range(steps):
        optimizer.step()
    states = [v for p in params for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    return [t.detach().cpu() for t in (*params, *states)]


def test_every_function_is_ours(device: Any) -> None:
    functions = multi_tensor_functions()
    assert len(functions) >= 11
    for name, (_, function) in functions.items():
        assert hasattr(function, "__wrapped__"), name
        # Ours is PyTorch's code, over other globals.
        assert any(
            isinstance(cell.cell_contents, FunctionType)
            and cell.cell_contents is not function.__wrapped__
            and cell.cell_contents.__code__ is function.__wrapped__.__code__
            for cell in function.__closure__ or ()
        ), name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_the_original(device: Any, name: str) -> None:
    ours = trained(OPTIMIZERS[name], device)
    with originals():
        theirs = trained(OPTIMIZERS[name], device)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    if "capturable" not in name:
        for a, b in zip(ours, trained(OPTIMIZERS[name], "cpu"), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("name", ["Adam", "Adam amsgrad", "RMSprop", "SGD"])
def test_without_fusion(device: Any, name: str, batching: bool) -> None:
    """Then the lists in between are stored, and their memory comes back."""
    expected = trained(OPTIMIZERS[name], "cpu")
    torch.webgpu.disable_fusion()
    if not batching:
        torch.webgpu.disable_batching()
    try:
        before = in_use()
        actual = trained(OPTIMIZERS[name], device)
        assert in_use() == before
    finally:
        torch.webgpu.enable_fusion()
        torch.webgpu.enable_batching()
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def in_use() -> tuple[int, int]:
    gc.collect()
    torch.webgpu.synchronize()
    return torch.webgpu.memory_allocated(), engine().device(0).stats.buffers


def test_a_step_makes_no_tensors(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    params = parameters(device)
    optimizer = torch.optim.Adam(params, foreach=True)
    for _ in range(2):
        optimizer.step()
    made: list[int] = []
    original = Mailbox.make_many

    def make_many(mailbox: Any, image: Any, allocations: Any) -> Any:
        made.append(len(allocations))
        return original(mailbox, image, allocations)

    monkeypatch.setattr(Mailbox, "make_many", make_many)
    optimizer.step()
    assert not made
    with originals():
        optimizer.step()
    assert made == [len(params)]


def as_ours(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as if it were one of PyTorch's."""
    facade = optimizer_lists.facade()
    assert isinstance(function, FunctionType)
    ours = FunctionType(function.__code__, {**function.__globals__, "torch": facade}, function.__name__)
    return torch.no_grad()(optimizer_lists.scoped(function, ours))


def looks(params: Any, grads: Any) -> Any:
    doubled = torch._foreach_mul(grads, 2.0)
    torch._foreach_add_(doubled, 1.0)
    first = doubled[0].clone()
    torch._foreach_mul_(doubled, [1.0, 2.0, 3.0, 4.0])
    total = torch.stack([t.sum() for t in doubled])
    halves = torch._foreach_div(doubled, 2.0)
    torch._foreach_add_(params, halves, alpha=0.5)
    torch._foreach_addcmul_(params, halves, halves, value=2.0)
    return [first, total, *doubled, *torch._foreach_norm(halves), torch.cat([h.reshape(-1) for h in halves])]


def test_what_is_looked_at_is_there(device: Any) -> None:
    results = []
    for where, function in ((device, as_ours(looks)), ("cpu", torch.no_grad()(looks))):
        params = parameters(where)
        found = function(params, [p.grad for p in params])
        results.append([t.detach().cpu() for t in (*found, *params)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def keeps(params: Any, grads: Any) -> Any:
    return torch._foreach_add(params, grads)


def test_results_outlive_the_call(device: Any) -> None:
    params = parameters(device)
    sums = as_ours(keeps)(params, [p.grad for p in params])
    torch._foreach_zero_([p.detach() for p in params])
    for t, p in zip(sums, parameters("cpu"), strict=True):
        torch.testing.assert_close(t.cpu(), (p + p.grad).detach())


def changes(params: Any, grads: Any) -> Any:
    torch._foreach_add_(grads, 1.0)
    grads[1] = grads[1] * 2.0
    torch._foreach_add_(grads, 1.0)
    return grads


def test_a_list_that_changes_is_looked_at_again(device: Any) -> None:
    results = []
    for where, function in ((device, as_ours(changes)), ("cpu", torch.no_grad()(changes))):
        params = parameters(where)
        results.append([t.cpu() for t in function(params, [p.grad for p in params])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_versions_are_counted(device: Any) -> None:
    params = parameters(device)
    optimizer = torch.optim.Adam(params, foreach=True)
    optimizer.step()
    before = [p._version for p in params]
    optimizer.step()
    assert [p._version for p in params] == [v + 1 for v in before]
    weight = torch.ones(4, device=device, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    loss = (weight * weight).sum()
    torch.optim.SGD([weight], 0.1, foreach=True).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_see_every_operator(device: Any) -> None:
    params = parameters(device)
    optimizer = torch.optim.Adam(params, foreach=True)
    optimizer.step()
    with Seen() as seen:
        optimizer.step()
    assert {"_foreach_lerp_.Scalar", "_foreach_sqrt.default", "_foreach_addcdiv_.ScalarList"} <= set(seen.names)


def test_profilers_see_every_operator(device: Any) -> None:
    params = parameters(device)
    optimizer = torch.optim.Adam(params, foreach=True)
    optimizer.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    assert {"aten::_foreach_sqrt", "aten::_foreach_addcdiv_"} <= {event.name for event in profile.events()}


class Marked(torch.Tensor):
    pass


def test_subclasses_keep_their_operators(device: Any) -> None:
    params = [p.detach().as_subclass(Marked).requires_grad_() for p in parameters(device)]
    for p, plain in zip(params, parameters(device), strict=True):
        p.grad = plain.grad
    optimizer = torch.optim.Adam(params, foreach=True)
    optimizer.step()
    expected = trained(lambda p: torch.optim.Adam(p, foreach=True), "cpu", 1)
    for a, b in zip(params, expected):
        torch.testing.assert_close(a.detach().as_subclass(torch.Tensor).cpu(), b, rtol=1e-4, atol=1e-5)


def test_compiled_steps_are_the_originals(device: Any) -> None:
    params = parameters(device)
    optimizer = torch.optim.SGD(params, 0.1, momentum=0.9, foreach=True)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        step()
    expected = trained(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True), "cpu")
    for a, b in zip(params, expected):
        torch.testing.assert_close(a.detach().cpu(), b, rtol=1e-5, atol=1e-6)


def test_captured_steps(device: Any) -> None:
    params = parameters(device)
    optimizer = torch.optim.Adam(params, capturable=True, foreach=True)
    optimizer.step()
    graph = torch.webgpu.Graph()
    with torch.webgpu.graph(graph):
        optimizer.step()
    graph.replay()
    expected = trained(lambda p: torch.optim.Adam(p, foreach=True), "cpu", 2)
    for a, b in zip(params, expected):
        torch.testing.assert_close(a.detach().cpu(), b, rtol=1e-4, atol=1e-5)
