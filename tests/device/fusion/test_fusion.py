"""Fusion means nothing but speed: random programs of operations, views, in-place writes and frees against the CPU.

The programs compute with integers, so that results must be equal whatever was fused, reordered or left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_webgpu.engine.flush_reason import ASKED
from torch_webgpu.engine.record import engine
from torch_webgpu.layout import overlaps_itself

DTYPES = (torch.int32, torch.int64, torch.uint8, torch.bool)
SHAPES = ((4, 6), (6, 6), (6,), (4, 1), (2, 4, 6), (1, 6))

Pair = tuple[torch.Tensor, torch.Tensor]
"""The same tensor on the CPU and on the device."""


@contextmanager
def fusion(window: int | None) -> Iterator[None]:
    """Fusion with a window of groups, or off for None."""
    eng = engine()
    eng.flush(ASKED)
    # No timer: which operations share a batch must not depend on the machine's mood.
    with eng.using(fusion=window is not None, fusion_window=window or 0, delay_ms=0.0):
        try:
            yield
        finally:
            eng.flush(ASKED)


class Program:
    """Does the same random thing to tensors on both devices, step by step."""

    dtypes: tuple[torch.dtype, ...] = DTYPES
    shapes: tuple[tuple[int, ...], ...] = SHAPES

    def __init__(self, draw: st.DataObject) -> None:
        self.draw = draw
        self.pairs: list[Pair] = []

    def pick(self, options: object) -> object:
        return self.draw.draw(st.sampled_from(options))  # type: ignore[arg-type]

    def pair(self) -> Pair:
        return self.pairs[self.draw.draw(st.integers(0, len(self.pairs) - 1))]

    def create(self) -> None:
        self.made(self.pick(self.shapes), self.pick(self.dtypes))

    def made(self, shape: object, dtype: object) -> Pair:
        seed = self.draw.draw(st.integers(0, 1000))
        host = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)  # type: ignore[call-overload]
        self.pairs.append((host, host.to("webgpu")))
        return self.pairs[-1]

    def both(self, fn: object, *pairs: Pair) -> None:
        """Appends ``fn`` of the pairs, where the CPU finds it well-formed."""
        try:
            expected = fn(*(p[0] for p in pairs))  # type: ignore[operator]
        except (RuntimeError, IndexError):
            return
        self.pairs.append((expected, fn(*(p[1] for p in pairs))))  # type: ignore[operator]

    def unary(self) -> None:
        fn = self.pick((
            lambda a: a + 3, lambda a: a * 5, lambda a: a.bitwise_not(), lambda a: a.clamp(min=7), lambda a: a > 20,
            lambda a: a.to(torch.int32), lambda a: a.to(torch.uint8), lambda a: a.to(torch.int64), lambda a: a.clone(),
            lambda a: torch.full_like(a, 3), lambda a: a.new_ones(4, 1), lambda a: a.new_zeros(()),
        ))  # fmt: skip
        self.both(fn, self.pair())

    def binary(self) -> None:
        fn = self.pick((torch.add, torch.mul, torch.maximum, torch.eq, torch.bitwise_xor, torch.sub,
                        lambda a, b: torch.where(a > 10, a, b)))  # fmt: skip
        self.both(fn, self.pair(), self.pair())

    def reduction(self) -> None:
        dim, keep = self.pick((0, -1)), self.pick((True, False))
        fn = self.pick((lambda a: a.sum(dim, keepdim=keep), lambda a: a.amax(dim, keepdim=keep), lambda a: a.sum()))
        self.both(fn, self.pair())

    def view(self) -> None:
        fn = self.pick((
            lambda a: a[1:], lambda a: a[..., 1:4], lambda a: a.transpose(0, -1), lambda a: a[..., ::2], lambda a: a[0],
            lambda a: a.unsqueeze(1), lambda a: a.view(-1), lambda a: a[..., :1].expand(a.shape),
        ))  # fmt: skip
        a = self.pair()
        if a[0].dim():
            self.both(fn, a)

    def inplace(self) -> None:
        fn = self.pick((
            lambda a, b: a.add_(b), lambda a, b: a.mul_(3), lambda a, b: a.copy_(b), lambda a, b: a.fill_(9),
            lambda a, b: a.bitwise_or_(b), lambda a, b: a.copy_(a + b),
        ))  # fmt: skip
        a, b = self.pair(), self.pair()
        copy, before = a[0].clone(), a[0].clone()
        try:
            fn(copy, b[0])
        except RuntimeError:
            return
        try:
            fn(a[0], b[0])
        except RuntimeError:  # an expanded tensor cannot be written, nor one that the other overlaps in part
            with pytest.raises(RuntimeError, match="single memory location"):
                fn(a[1], b[1])
            return
        # What PyTorch leaves undefined, operands with gaps that overlap, is read-then-write here.
        if not overlaps_itself(tuple(a[0].shape), a[0].stride()):  # of what does, only fill_ can be written
            a[0].copy_(before)
            fn(a[0], b[0].clone())
        fn(a[1], b[1])

    def free(self) -> None:
        if len(self.pairs) > 3:
            del self.pairs[self.draw.draw(st.integers(0, len(self.pairs) - 1))]

    def flush(self) -> None:
        engine().flush(ASKED)

    def steps(self) -> tuple[object, ...]:
        return (self.unary, self.binary, self.view, self.inplace, self.inplace, self.reduction, self.free, self.create)

    def run(self) -> None:
        self.create()
        self.create()
        for _ in range(self.draw.draw(st.integers(3, 25))):
            self.pick(self.steps())()  # type: ignore[operator]
        if self.draw.draw(st.booleans()):
            self.flush()
        for expected, actual in self.pairs:
            torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("window", [64, 1, None])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_random_programs_match_the_cpu(window: int | None, data: st.DataObject) -> None:
    with fusion(window):
        Program(data).run()


@pytest.mark.parametrize("late", [True, False], ids=["read after", "read before"])
def test_points_see_rows_as_of_their_place_in_the_program(late: bool) -> None:
    """A value per row is written in place after the reduction; a per-point operation reads it, before or after."""

    def program(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = torch.arange(30.0, device=device).view(6, 5), torch.ones(6, 5, device=device)
        row = torch.arange(6.0, device=device).view(6, 1)
        total = (x * y).sum(1, keepdim=True)
        before = x * row
        row.sub_(total)
        return (x * row if late else before), row

    with fusion(64):
        for actual, expected in zip(program("webgpu"), program("cpu"), strict=True):
            torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


def test_the_controls_and_what_they_count() -> None:
    x = torch.ones(64, device="webgpu")
    with fusion(64):
        before = torch.webgpu.get_fusion_stats()
        y = (x + 1) * 2
        torch.webgpu.flush_batch()
        after = torch.webgpu.get_fusion_stats()
        assert after["fusions"] - before["fusions"] == 2
        torch.webgpu.disable_fusion()
        assert not torch.webgpu.is_fusion_enabled()
        z = (x + 1) * 2
        torch.webgpu.flush_batch()
        torch.webgpu.enable_fusion()
        torch.webgpu.set_fusion_window(0)
        w = (x + 1) * 2
        torch.webgpu.flush_batch()
        last = torch.webgpu.get_fusion_stats()
        assert last["fusions"] == after["fusions"]
        assert last["bypasses"] == after["bypasses"] + 2
    for result in (y, z, w):
        assert result.cpu().eq(4).all()


def test_what_nobody_sees_is_counted_as_eliminated() -> None:
    x, other = torch.ones(64, device="webgpu"), torch.ones(3, device="webgpu")
    with fusion(64):
        before = torch.webgpu.get_fusion_stats()["eliminated"]
        _ = other + 5
        y = x + 1
        del _
        torch.webgpu.flush_batch()
        assert torch.webgpu.get_fusion_stats()["eliminated"] == before + 1
    assert y.cpu().eq(2).all()


@pytest.mark.parametrize("control", ["set_fusion_window", "set_fusion_min_size"])
def test_negative_limits_are_refused(control: str) -> None:
    with pytest.raises(ValueError, match="negative: -1"):
        getattr(torch.webgpu, control)(-1)


def test_functions_of_much_code_are_computed_point_by_point(device: str) -> None:
    """What is too much code to have several copies of, in every way in which points are laid out and reduced."""

    def much(x: torch.Tensor) -> torch.Tensor:
        return torch.polygamma(2, torch.lgamma(x) + 3) * torch.special.bessel_y0(x) + torch.digamma(x)

    torch.manual_seed(0)
    for shape, dtype in (((6, 36), torch.float32), ((5, 7), torch.float16), ((3, 9), torch.bfloat16)):
        x = (torch.rand(shape) + 0.5).to(dtype)
        for view in (lambda t: t, lambda t: t.T, lambda t: t[1:, ::2], lambda t: t[:0]):
            want = much(view(x).float()).to(dtype)
            bound = 3e-5 if dtype == torch.float32 else 5 * torch.finfo(dtype).eps
            torch.testing.assert_close(much(view(x.to(device))).cpu(), want, rtol=bound, atol=bound)
    x = torch.rand(6, 36) + 0.5
    for reduced in (lambda t: much(t).sum(1), lambda t: much(t).softmax(0), lambda t: much(t).amax(0)):
        torch.testing.assert_close(reduced(x.to(device)).cpu(), reduced(x), rtol=1e-4, atol=1e-4)


def test_a_chain_is_cut_where_it_would_take_long_to_compile(device: str) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.sigmoid(torch.polygamma(2, x + 1))
        return x

    x = torch.rand(9) + 1
    explained = torch.webgpu.explain(chain, x.to(device))
    torch.testing.assert_close(explained.result.cpu(), chain(x), rtol=1e-4, atol=1e-4)
    others = explained.kernels[1:]
    assert others
    assert {kernel.reason for kernel in others} == {"together they would take long to compile"}
    assert "does not join what came before: together they would take long to compile" in str(explained)


OPERATIONS: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    lambda a, b: a.add_(b.sum()),
    lambda a, b: a.mul(2),
    lambda a, b: a.flip(0),
    lambda a, b: a.flatten()[1:].mul_(0.5),
    lambda a, b: a.cumsum(0),
    lambda a, b: a.to(torch.float16).float(),
    lambda a, b: a @ b.t() if a.dim() == b.dim() == 2 and a.shape[1] == b.shape[1] else a.sin(),
)


@pytest.mark.parametrize("seed", range(8))
def test_independent_dispatches_of_a_batch_as_one(seed: int) -> None:
    """Random programs over a few tensors, with writes into them and into parts of them, as on a GPU."""
    choose = random.Random(seed)
    script = [(choose.choice(OPERATIONS), choose.random(), choose.random()) for _ in range(40)]

    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        known = [torch.randn(shape).to(device) for shape in ((4, 6), (6,), (3, 6), (1, 6), (17,), (2, 3, 5))]
        for operation, one, other in script:
            known.append(operation(known[int(one * len(known))], known[int(other * len(known))]))
        return [t.cpu() for t in known]

    apart = run("webgpu")
    with engine().using(horizontal_fusion=True):
        together = run("webgpu")
        assert all(map(torch.equal, together, apart))
    for got, want in zip(apart, run("cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_horizontal_fusion_makes_fewer_dispatches() -> None:
    """Products of one vector with three matrices, in eager mode: what is asked for decides, else the adapter."""
    x, weights = torch.randn(1, 32, device="webgpu"), [torch.randn(32, n, device="webgpu") for n in (8, 16, 24)]

    def dispatches(horizontal: bool | None) -> tuple[int, list[torch.Tensor]]:
        with engine().using(horizontal_fusion=horizontal), torch.webgpu.profile() as p:
            results = [x @ w for w in weights]
        return len(p.events), results

    (one, together), (three, apart) = dispatches(True), dispatches(False)
    assert (one, three) == (1, 3)
    assert all(map(torch.equal, together, apart))
    assert dispatches(None)[0] == (3 if engine().device(0).target.software else 1)
