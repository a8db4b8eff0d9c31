"""Random programs, compiled against eager and the CPU: views, in-place writes, written inputs, dtypes, aliases.

All values are small whole numbers, which every dtype holds exactly, so that results must be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from torch_webgpu.layout import overlaps_itself

from .against_eager import check

EXAMPLES = 12
FULL_EXAMPLES = 400
LIMIT = 50
DTYPES = [torch.float32, torch.int64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool]


def bounded(t: torch.Tensor) -> torch.Tensor:
    if t.dtype == torch.bool:
        return t
    return t.remainder(LIMIT) if t.dtype == torch.uint8 else t.clamp(-LIMIT, LIMIT)


def converted(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """A conversion of values that the other dtype has."""
    if dtype == torch.uint8:
        return lambda t: (t if t.dtype == torch.bool else t.abs()).to(dtype)
    return lambda t: t.to(dtype)


def writable(t: torch.Tensor) -> bool:
    return not overlaps_itself(t.shape, t.stride())


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose": lambda t: t.transpose(0, -1) if t.dim() else t,
    "rest": lambda t: t[1:] if t.dim() and t.shape[0] > 1 else t,
    "every other": lambda t: t[..., ::2] if t.dim() else t,
    "last": lambda t: t[-1] if t.dim() and t.shape[0] else t,
    "unsqueeze": lambda t: t.unsqueeze(0) if t.dim() < 4 else t,
    "flat": lambda t: t.reshape(-1),
    "expand": lambda t: t[:1].expand(3, *t.shape[1:]) if t.dim() and t.shape[0] else t,
    "diagonal": lambda t: t.diagonal(0, 0, 1) if t.dim() > 1 else t,
    "split": lambda t: t.split(2, -1)[-1] if t.dim() and t.shape[-1] else t,
    "detach": lambda t: t.detach(),
    "bits": lambda t: t.view(torch.int32).view(torch.float32) if t.dtype == torch.float32 else t,
}
UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "affine": lambda t: bounded(t * 2 + 1),
    "sum": lambda t: bounded(t.float().sum(-1, keepdim=True)).to(t.dtype),
    "cumsum": lambda t: t.long().cumsum(0).remainder(11),
    "clone": lambda t: t.clone(),
    "contiguous": lambda t: t.contiguous(),
    "where": lambda t: torch.where(t > 1, t, torch.zeros_like(t)),
    "doubled": lambda t: torch.cat([t, t]) if t.dim() else t + t,
    "sorted": lambda t: t.long().sort(-1).values if t.dim() else t,
    **{f"to {dtype}": converted(dtype) for dtype in DTYPES},
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, b: bounded(a + fitting(b, a)),
    "maximum": lambda a, b: torch.maximum(a, fitting(b, a).to(a.dtype)),
    "index": lambda a, b: a[fitting(b, a).long().abs().reshape(-1) % a.shape[0]] if a.dim() and a.numel() else a,
    "outer": lambda a, b: bounded(a.reshape(-1)[:3, None] + b.reshape(-1)[None, :2]),
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add_": lambda a, b: a.logical_not_() if a.dtype == torch.bool else a.add_(1).remainder_(LIMIT),
    "zero_": lambda a, b: a.zero_(),
    "fill_": lambda a, b: a.fill_(3),
    "copy_": lambda a, b: a.copy_(converted(a.dtype)(fitting(b, a))),
    "add_ of a tensor": lambda a, b: a.copy_(bounded(a + fitting(b, a).to(a.dtype))),
    "slice": lambda a, b: a[..., :1].fill_(2) if a.dim() else a.fill_(2),
    "mask": lambda a, b: a.masked_fill_(fitting(b, a) > 1, 1),
    "out": lambda a, b: torch.neg(fitting(b, a).clamp(-1, 1).to(a.dtype), out=a) if a.dtype.is_signed else a,
    "index_put_": lambda a, b: (
        a.index_fill_(0, torch.zeros(1, dtype=torch.long, device=a.device), 4) if a.dim() and a.shape[0] else a
    ),
}


def fitting(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """``b``, or a number made of it where it has another shape."""
    return b if b.shape == a.shape else bounded(b.float().sum()).to(b.dtype if b.dtype != torch.bool else torch.float32)


class Instruction(NamedTuple):
    kind: str
    name: str
    first: int
    second: int


class Program(NamedTuple):
    """Instructions over tensors by number, each adding one; ``outputs``: the numbers of what is returned."""

    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    def function(self) -> Callable[..., list[torch.Tensor]]:
        tables: dict[str, dict[str, Any]] = {"view": VIEWS, "unary": UNARY, "binary": BINARY, "write": WRITES}
        steps = [(kind, tables[kind][name], first, second) for kind, name, first, second in self.instructions]
        outputs = self.outputs

        def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
            known = list(inputs)
            for kind, function, first, second in steps:
                a, b = known[first % len(known)], known[second % len(known)]
                if kind in ("view", "unary"):
                    known.append(function(a))
                elif kind == "binary":
                    known.append(function(a, b))
                elif writable(a):
                    # What is written may be what is read.
                    function(a, b.clone())
            return [known[n % len(known)] for n in outputs]

        return run


NUMBERS = st.integers(0, 30)
INSTRUCTIONS = st.one_of(
    *(
        st.builds(Instruction, st.just(kind), st.sampled_from(sorted(table)), NUMBERS, NUMBERS)
        for kind, table in (("view", VIEWS), ("unary", UNARY), ("binary", BINARY), ("write", WRITES))
    )
)
PROGRAMS = st.builds(
    Program,
    st.lists(INSTRUCTIONS, min_size=2, max_size=9).map(tuple),
    st.lists(NUMBERS, min_size=1, max_size=4).map(tuple),
)


@st.composite
def inputs(draw: Any) -> tuple[torch.Tensor, ...]:
    """One to three tensors, the first two of which may lie in one storage, apart or overlapping."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 100)))
    found = []
    for _ in range(draw(st.integers(1, 2))):
        shape = draw(st.lists(st.integers(1, 4), max_size=3))
        dtype = draw(st.sampled_from(DTYPES))
        found.append(torch.randint(-3 if dtype.is_signed else 0, 4, shape, generator=generator).to(dtype))
    if draw(st.booleans()):
        base = torch.randint(0, 5, (12,), generator=generator).to(draw(st.sampled_from(DTYPES)))
        start = draw(st.integers(0, 8))
        found = [base[:6].view(2, 3), base[start : start + 4], *found[:1]]
    return tuple(found)


def holds(program: Program, args: tuple[torch.Tensor, ...]) -> None:
    torch._dynamo.reset()
    check(program.function(), *args, tolerance=0, cpu=0, dynamic=False)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_programs(request: pytest.FixtureRequest) -> None:
    full = request.config.getoption("full")
    run = settings(
        max_examples=FULL_EXAMPLES if full else EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    run(given(program=PROGRAMS, args=inputs())(holds))()
