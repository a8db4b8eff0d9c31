"""Tensors that die while an exception unwinds: a deleter that ran Python then would bring the process down."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch


class StepError(Exception):
    """Raised in the middle of an expression."""


def explode(*_: object) -> torch.Tensor:
    raise StepError


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def test_temporaries_of_a_failing_call(device):
    """``f(x.clone(), g())``: the clone dies while the exception of ``g`` is set."""
    x = torch.arange(6.0, device=device)
    for _ in range(200):
        with pytest.raises(StepError):
            add(x.clone(), explode())
        with pytest.raises(StepError):
            torch.cat([x * 2, x.view(2, 3).sum(0), explode(x.exp())])
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_temporaries_of_a_failing_operator(device):
    x = torch.ones(2, 3, device=device)
    for _ in range(50):
        with pytest.raises(RuntimeError):
            (x * 2) @ (x + 1)
        with pytest.raises(IndexError):
            (x * 2).sum(7)
        with pytest.raises(RuntimeError):
            torch.add(x * 2, torch.ones(5, device=device) * 3)
    assert (x @ x.t()).tolist() == [[3, 3], [3, 3]]


def test_a_graph_that_dies_in_backward(device):
    class Explosive(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x * 1)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise StepError

    weight = torch.ones(10, device=device, requires_grad=True)
    for _ in range(20):
        with pytest.raises(StepError):
            (Explosive.apply(weight * 3).exp() * weight).sum().backward()
    (weight * 2).sum().backward()
    assert weight.grad.tolist() == [2.0] * 10


def test_a_tensor_in_a_traceback(device):
    """The frames of a kept traceback keep their tensors; letting it go lets them go."""

    def frame() -> None:
        local = torch.ones(10, device=device)
        seen.append(weakref.ref(local))
        explode(local)

    seen: list[weakref.ref[torch.Tensor]] = []
    with pytest.raises(StepError) as caught:
        frame()
    assert seen[0]() is not None
    del caught
    gc.collect()
    assert seen[0]() is None
    assert torch.ones(2, device=device).sum().item() == 2


def test_generators_and_finalizers(device):
    """Generators that are closed, and objects whose finalizers compute."""
    results = []

    def stream():
        x = torch.zeros(3, device=device)
        try:
            while True:
                x = x + 1
                yield x.clone()
        finally:
            results.append(x.sum().item())

    class Owner:
        def __init__(self) -> None:
            self.x = torch.ones(3, device=device)

        def __del__(self) -> None:
            results.append((self.x * 2).sum().item())

    for _, _ in zip(range(5), stream(), strict=False):
        pass
    owner = Owner()
    del owner
    gc.collect()
    assert sorted(results) == [6.0, 15.0]


def test_threads_that_create_and_drop(device):
    """Many threads at once, each with its own tensors, none sees another's numbers."""
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for index in range(50):
                x = torch.full((17,), float(seed), device=device)
                y = (x * 2 + index).view(17)[3:]
                assert y.tolist() == [seed * 2 + index] * 14
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
