"""Plans with one fault each that pass as plans, bound and run: they raise in words or give results, and nothing else of
the program is touched.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from tests.mutants import KINDS, PROGRAMS, mutants, plan_of
from torch.utils import _pytree as pytree

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.errors import WebGPUError
from torch_webgpu.plan import Plan, TensorSpec, bind, trace

EXAMPLES, FULL_EXAMPLES = 320, 2_000
IN_WORDS = (WebGPUError, torch.OutOfMemoryError, IndexError)
MAX_GROUPS, MAX_WORD, MAX_BYTES = 64, 1 << 16, 1 << 26
"""More than this takes a software adapter longer than a test may take, and shows nothing else."""


class Canaries:
    """Tensors of the program that no plan is given, on both sides of what it is."""

    def __init__(self, device: torch.device) -> None:
        self.expected = [torch.arange(n, dtype=torch.float32) * 3 + n for n in (1, 5, 64, 100, 480, 12000)]
        self.tensors = [t.to(device) for t in self.expected]

    def check(self) -> None:
        for t, expected in zip(self.tensors, self.expected, strict=True):
            assert torch.equal(t.cpu(), expected)
            assert torch.equal((t[-1:] * 2 + 1).cpu(), expected[-1:] * 2 + 1)


@pytest.fixture
def canaries(device: torch.device) -> Canaries:
    return Canaries(device)


def values_for(spec: TensorSpec) -> torch.Tensor:
    """Contents for an input, on the CPU."""
    dtype = BY_NAME[spec.dtype].torch
    t = torch.empty_strided(spec.shape, spec.strides, dtype=dtype)
    flat = t.as_strided((t.untyped_storage().nbytes() // t.itemsize,), (1,))
    return t if flat.numel() == 0 else t.copy_(torch.arange(t.numel()).remainder(3).view(t.shape).to(dtype))


def ends_soon(plan: Plan) -> bool:
    steps = [step for step in plan.steps if hasattr(step, "grid")]
    groups = max([step.grid[0] * step.grid[1] * step.grid[2] for step in steps], default=0)
    is_float = [[p.type == "f32" for p in plan.kernels[step.kernel].params] for step in steps]
    words = [w for s, floats in zip(steps, is_float) for w, f in zip(s.words, floats) if isinstance(w, int) and not f]
    known = {number for number, _ in plan.operators}
    few = all(word <= MAX_WORD or word in known or word > 0xFF000000 for word in words)
    return groups <= MAX_GROUPS and few and all(buffer.size_bytes <= MAX_BYTES for buffer in plan.buffers)


def contents_of(program_plans: list[Plan]) -> dict[str, bytes]:
    return {digest: data for plan in program_plans for digest, data in plan.contents.items()}


def run_mutant(text: str, contents: dict[str, bytes], device: torch.device) -> str:
    """Runs a mutant as far as it goes; says how far."""
    try:
        plan = Plan.from_json(text)
    except WebGPUError:
        return "rejected"
    if not ends_soon(plan):
        return "too slow to run"
    inputs = [values_for(spec) for spec in plan.inputs]
    ours = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).copy_(t) for t in inputs]
    how = "run"
    try:
        result = bind(plan, device, contents)(*ours)
        for leaf in pytree.tree_leaves(result):
            assert leaf.device == ours[0].device
            leaf.cpu()
    except IN_WORDS as error:
        how = f"refused as a {type(error).__name__}" if len(str(error)) > 20 else "refused without a word"
    assert how != "refused without a word"
    torch.webgpu.synchronize()
    for t, expected, spec in zip(ours, inputs, plan.inputs, strict=True):
        if plan.buffers[spec.buffer].role != "state":
            torch.testing.assert_close(t.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    return how


COUNTS: Counter[str] = Counter()


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutant_touches_nothing_else(
    kind: str, device: torch.device, canaries: Canaries, pytestconfig: pytest.Config
) -> None:
    contents = contents_of([plan_of(name, None) for name in PROGRAMS])
    examples = (FULL_EXAMPLES if pytestconfig.getoption("full") else EXAMPLES) // len(KINDS)

    def check(text: str) -> None:
        COUNTS[f"{kind}, {run_mutant(text, contents, device)}"] += 1
        canaries.check()

    chosen = settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    chosen(given(mutants(kind, (None,), tame=True))(check))()


@pytest.fixture(scope="module", autouse=True)
def _counts() -> Any:
    """Shown with ``-s``."""
    yield
    print(*[f"{kind}: {count}" for kind, count in sorted(COUNTS.items())], sep="\n")


def test_what_nobody_wrote_is_zero(device: torch.device, canaries: Canaries) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = torch.empty(8, device=x.device)
        kept[:4].add_(x[:4])
        return x + torch.empty_like(x), kept

    x = torch.arange(8.0, device=device)
    bound = bind(trace(fn, x))
    for _ in range(2):
        total, kept = bound(x)
        assert torch.equal(total.cpu(), torch.arange(8.0))
        assert torch.equal(kept.cpu(), torch.tensor([0.0, 1, 2, 3, 0, 0, 0, 0]))
    canaries.check()


def test_outputs_of_another_size_than_their_buffer(device: torch.device) -> None:
    """Five bytes, of which four are also an integer."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y[:4].view(torch.int32)

    y, number = bind(trace(fn, torch.zeros(5, dtype=torch.uint8, device=device)))(
        torch.tensor([0, 1, 2, 3, 4], dtype=torch.uint8, device=device)
    )
    assert y.tolist() == [1, 2, 3, 4, 5]
    assert number.item() == 0x04030201


def test_the_plan_of_a_batch_cannot_be_bound() -> None:
    with pytest.raises(WebGPUError, match="of a batch"):
        bind(Plan((), (), ()))


def test_contents_of_another_size_are_refused(device: torch.device) -> None:
    plan = plan_of("constants", None)
    wrong = {digest: data[:-4] for digest, data in plan.contents.items()}
    with pytest.raises(WebGPUError, match="constants"):
        bind(plan, device, wrong)
