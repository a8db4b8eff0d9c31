"""torch.webgpu.explain: what is said is what happens."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import pytest
import torch

from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.runtime import devices

webgpu = torch.webgpu


def ones(*shape: int) -> torch.Tensor:
    x = torch.ones(shape, device="webgpu")
    webgpu.synchronize()
    return x


def test_a_chain_is_one_kernel() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2 + 1)

    explained = webgpu.explain(chain, ones(4, 6))
    assert torch.equal(explained.result.cpu(), torch.full((4, 6), 3.0))
    (flush,) = explained.flushes
    assert [operation.name for operation in flush.operations] == ["mul", "add", "relu"]
    assert flush.operations[0].inputs == flush.operations[0].outputs == ("f32[4, 6]",)
    (kernel,) = explained.kernels
    assert kernel.operations == (0, 1, 2)
    assert kernel.name == "mul+add+relu"
    assert kernel.dispatches == ("mul+add+relu",)
    assert kernel.reason == ""
    text = str(explained)
    assert text.startswith("chain: 3 operations recorded, 1 kernel, 0 eliminated, 1 flush")
    assert "mul(f32[4, 6]) → f32[4, 6]" in text
    assert "the function had ended" in text
    assert repr(explained) == text


def test_what_nobody_sees_is_named() -> None:
    def wasteful(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        other.exp()
        return x + 1

    explained = webgpu.explain(wasteful, ones(8), ones(3))
    (flush,) = explained.flushes
    assert flush.eliminated == [0]
    assert len(flush.kernels) == 1
    assert "eliminated, since nobody can see what they compute:\n      0  exp(f32[3])" in str(explained)


def test_what_nobody_sees_in_a_kernel_is_named_too() -> None:
    def wasteful(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y.exp()
        return y.softmax(1) * 2

    explained = webgpu.explain(wasteful, ones(4, 8))
    (flush,) = explained.flushes
    assert [flush.operations[n].name for n in flush.eliminated] == ["exp"]
    assert sorted(n for kernel in flush.kernels for n in kernel.operations) == [0, 2, 3]


def test_a_value_that_is_read_ends_a_flush() -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.sum().item() > 0:
            y = y * 2
        return y

    explained = webgpu.explain(reads, ones(8))
    first, second = explained.flushes
    assert first.cause.startswith("a value was read, at test_explain.py:")
    assert second.cause == "the function had ended"
    assert [kernel.reason for kernel in second.kernels] == [
        "flush 1 computed its input, and ended before it was recorded"
    ]


def test_full_batches_and_flush_batch_are_causes() -> None:
    def four(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x + 1
        return x

    def asks(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        webgpu.flush_batch()
        return y * 2

    with engine().using(threshold=3):
        assert "3 operations are a batch" in webgpu.explain(four, ones(8)).flushes[0].cause
    assert "flush_batch()" in webgpu.explain(asks, ones(8)).flushes[0].cause


def test_a_cut_by_content_names_what_it_is_before() -> None:
    def with_product(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x + 1
        return x @ x

    def long(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):  # each another operation: a hash picks some
            x = x[:-1] + 1
        return x

    with engine().using(threshold=8):
        first, _ = webgpu.explain(with_product, ones(8, 8)).flushes
        *cut, _ = webgpu.explain(long, ones(64)).flushes
    assert first.cause.startswith("a batch that is half full ends before a hand-written kernel, here mm, at test_expl")
    assert {("8 operations" if len(flush.operations) == 8 else "nearly full") in flush.cause for flush in cut} == {True}


@pytest.mark.parametrize(
    ("act", "cause"),
    [
        (lambda y: webgpu.synchronize(), "the program synchronized"),
        (lambda y: webgpu.empty_cache(), "memory was listed or given back"),
        (lambda y: webgpu.Event().record(), "an event was recorded"),
        (lambda y: webgpu.disable_fusion(), "it was recorded under other settings"),
        (lambda y: y.copy_(torch.zeros(8)), "the host wrote into a tensor that it uses"),
        (lambda y: y.resize_(1000), "a storage that it uses was resized"),
        (lambda y: in_a_thread(y.neg_), "another thread was about to use what it computes"),
    ],
)
def test_who_asks_for_a_flush_says_why(act: Callable[[torch.Tensor], object], cause: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        act(y)
        return y

    try:
        assert webgpu.explain(function, ones(8)).flushes[0].cause.split(", at ")[0] == cause
    finally:
        webgpu.enable_fusion()


def in_a_thread(call: Callable[[], object]) -> None:
    thread = Thread(target=call)
    thread.start()
    thread.join()


def test_an_operator_without_a_kernel_is_named() -> None:
    def falls_back(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals((x + x.T).to(torch.complex128))

    causes = [flush.cause for flush in webgpu.explain(falls_back, torch.eye(4, device="webgpu")).flushes]
    assert any("_linalg_eigvals ran on the CPU" in cause for cause in causes), causes


def reasons(fn: object, *args: torch.Tensor) -> list[str]:
    return [kernel.reason for kernel in webgpu.explain(fn, *args).kernels]  # type: ignore[arg-type]


def test_why_a_chain_was_broken() -> None:
    x = ones(4, 6)
    assert "its shape (6,)" in reasons(lambda a, b: (a + 1, b + 1), x, ones(6))[1]
    assert "another order" in reasons(lambda a: (y := a + 1, y.t().contiguous()), ones(6, 6))[1]
    assert "needed by itself" in reasons(lambda a: (y := a + 1, y.sum(1)), x)[1]
    with engine().using(fusion_min_size=1000):
        assert "fewer than 1000 elements" in reasons(lambda a: (a.repeat(50, 1) + 1, a * 2), x)[-1]
    with engine().using(fusion_window=0):
        assert "fusion window" in reasons(lambda a: (a + 1) * 2, x)[1]
    with engine().using(fusion=False):
        assert reasons(lambda a: (a + 1) * 2, x) == ["fusion is off"] * 2


def test_the_buffer_limit_is_a_reason() -> None:
    tensors = [ones(8) for _ in range(40)]
    found = reasons(lambda *all_: [t + 1 for t in all_], *tensors)
    assert any("a kernel has at most" in reason for reason in found), found


def test_hand_written_kernels_have_names_of_their_own() -> None:
    explained = webgpu.explain(torch.mm, ones(8, 8), ones(8, 8))
    (kernel,) = explained.kernels
    assert kernel.name == "mm"
    assert all(dispatch.startswith("matmul") for dispatch in kernel.dispatches)


def test_the_same_again_is_the_same() -> None:
    """The second time the plan comes out of the cache."""
    x = ones(4, 6)
    assert str(webgpu.explain(torch.softmax, x, 1)) == str(webgpu.explain(torch.softmax, x, 1))


def test_an_error_leaves_nothing_behind() -> None:
    before = engine().settings
    with pytest.raises(ZeroDivisionError):
        webgpu.explain(lambda: 1 / 0)
    assert all(device.observer is None for device in devices())
    assert engine().settings == before


def test_a_profile_and_an_explanation_at_once() -> None:
    x = ones(8)
    with webgpu.profile() as p:
        explained = webgpu.explain(torch.sin, x)
    assert [event.operation for event in p.events] == ["sin"]
    assert len(explained.kernels) == 1
