"""Plans with one fault each: every one is refused in words, or is a plan that means something.

What a plan means is checked here a second time, by a reader of its own that knows nothing of ``plan/verify*.py``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.mutants import KINDS, PROGRAMS, damaged, data_of, mutants, plan_of

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.errors import WebGPUError
from torch_webgpu.plan import Clear, Offset, Plan, Random, Scalar, verify
from torch_webgpu.plan.parts_json import sealed

TARGETS = ("browser", "lavapipe")
EXAMPLES, FULL_EXAMPLES = 2_000, 10_500  # some kinds have fewer mutants than their share
NO_WORDS = re.compile(r"\w+Error\b|Traceback|NoneType|unhashable|object is not|expected at|not subscriptable")
COUNTS: Counter[str] = Counter()


def faults(plan: Plan) -> list[str]:
    """What is wrong with a plan that was accepted."""
    found = [f"{kernel.name} is trusted" for kernel in plan.kernels if kernel.trusted]
    arguments = set(plan.arguments)
    known = {n for n, b in enumerate(plan.buffers) if b.role in ("input", "weight", "state", "constant")}
    fixed = {n for n, b in enumerate(plan.buffers) if b.role in ("input", "weight", "constant")}
    made = {n for n, b in enumerate(plan.buffers) if b.role in ("temporary", "errors")}
    flags = {n for n, b in enumerate(plan.buffers) if b.role == "errors"}
    written = known | flags
    for step in plan.steps:
        reads, writes = uses(plan, step)
        if not reads | writes <= arguments | made:
            found.append(f"{step} uses what nobody brings")
        if not reads <= written:
            found.append(f"{step} reads what nothing wrote")
        if writes & fixed or reads & writes - flags:
            found.append(f"{step} writes what it may not")
        written |= writes
        if not isinstance(step, Clear):
            found += [f"{step}: {word}" for word in step.words if not means_something(plan, word, step.bindings)]
            if len(step.words) != len(plan.kernels[step.kernel].params) or not all(0 < n < 65536 for n in step.grid):
                found.append(f"{step} does not fit its kernel")
        elif flags & writes or step.size_bytes > plan.buffers[step.buffer].size_bytes + 3:
            found.append(f"{step} clears too much")
    if plan.result is not None:
        found += interface_faults(plan, written)
    return found


def uses(plan: Plan, step: Any) -> tuple[set[int], set[int]]:
    """The buffers that a step reads and those that it writes."""
    if isinstance(step, Clear):
        return set(), {step.buffer}
    bindings = plan.kernels[step.kernel].bindings
    assert len(bindings) == len(step.bindings)
    writes = [n for n, binding in zip(step.bindings, bindings) if binding.access != "read"]
    assert len(set(writes)) == len(writes)
    return {n for n, binding in zip(step.bindings, bindings) if binding.access == "read"}, set(writes)


def means_something(plan: Plan, word: Any, bindings: tuple[int, ...]) -> bool:
    if isinstance(word, Offset):
        buffer = plan.tensors[word.tensor]
        return buffer in bindings and word.ahead * 2**word.shift <= plan.buffers[buffer].size_bytes
    if isinstance(word, Random):
        return word.part in range(4) and 0 <= word.ahead < plan.random_blocks
    if isinstance(word, Scalar):
        return plan.result is None
    return type(word) is int and 0 <= word < 2**32


def interface_faults(plan: Plan, written: set[int]) -> list[str]:
    found, arguments = [], set(plan.arguments)
    sources = [spec.buffer for spec in plan.inputs]
    if list(plan.tensors) != sources or len(set(sources)) < len(sources):
        found.append("its tensors are not its inputs")
    buffers = [(spec, plan.buffers[spec.buffer]) for spec in plan.inputs]
    found += [f"{spec} is not its buffer" for spec, b in buffers if end_of(spec) != b.size_bytes or b.donated]
    for spec in plan.outputs:
        if end_of(spec) > plan.buffers[spec.buffer].size_bytes or spec.byte_offset % BY_NAME[spec.dtype].itemsize:
            found.append(f"{spec} is not in its buffer")
        if spec.buffer not in arguments or (spec.buffer not in written and 0 not in spec.shape):
            found.append(f"{spec} has no contents")
    constants = [number for number, _ in plan.constants]
    if len(set(constants)) < len(constants):
        found.append("a constant has several contents")
    brought = {*sources, *constants}
    made = {spec.buffer for spec in plan.outputs if plan.buffers[spec.buffer].role == "output"}
    if brought | made != arguments:
        found.append("its arguments are not its inputs, constants and outputs")
    leaves = re.findall(r"(?<![\"\w])\d+(?!\s*[,\"]?\w*\":)", json.dumps(values_of(plan.result)))
    if sorted(map(int, leaves)) != [*range(len(plan.outputs))]:
        found.append("its outputs are not what it returns")
    return found


def values_of(structure: Any) -> Any:
    """A structure without its keys."""
    if isinstance(structure, int):
        return structure
    kind, *parts = structure
    return [values_of(part[1] if kind == "dict" else part) for part in parts]


def end_of(spec: Any) -> int:
    """Where the last element of a tensor ends, by walking along each dimension."""
    if 0 in spec.shape:
        return spec.byte_offset
    last = 0
    for size, stride in zip(spec.shape, spec.strides):
        last += (size - 1) * stride
    return spec.byte_offset + (last + 1) * BY_NAME[spec.dtype].itemsize


def check_mutant(kind: str, text: str) -> None:
    try:
        plan = Plan.from_json(text)
    except WebGPUError as error:
        said = str(error)
        assert said.startswith(("not a plan: ", "not a valid plan: ")), said
        assert not NO_WORDS.search(said), said
        assert 25 < len(said) < 4000, said
        COUNTS[f"{kind}, rejected"] += 1
        return
    assert not faults(plan)
    assert not verify(plan)
    assert Plan.from_json(plan.to_json()) == plan
    COUNTS[f"{kind}, accepted and right"] += 1


def run(strategy: st.SearchStrategy[str], check: Callable[[str], None], examples: int) -> None:
    chosen = settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    chosen(given(strategy)(check))()


def examples(config: pytest.Config) -> int:
    return (FULL_EXAMPLES if config.getoption("full") else EXAMPLES) // (len(KINDS) + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutant_is_refused_or_right(kind: str, pytestconfig: pytest.Config) -> None:
    def check(text: str) -> None:
        check_mutant(kind, text)

    run(mutants(kind, TARGETS), check, examples(pytestconfig))


def test_a_damaged_text_is_refused(pytestconfig: pytest.Config) -> None:
    whole = [json.loads(plan_of(name, target).to_json()) for name in PROGRAMS for target in TARGETS]

    def check(text: str) -> None:
        try:
            Plan.from_json(text)
        except WebGPUError as error:
            said = str(error)
            assert said.startswith("not a plan: "), said
            assert not NO_WORDS.search(said), said
            COUNTS["damaged, rejected"] += 1
            return
        assert json.loads(text) in whole  # a blank more between two values

    run(damaged(TARGETS), check, examples(pytestconfig))


@pytest.fixture(scope="module", autouse=True)
def _counts() -> Any:
    """Shown with ``-s``."""
    yield
    print(*[f"{kind}: {count}" for kind, count in sorted(COUNTS.items())], f"{sum(COUNTS.values())} in all", sep="\n")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_plans_themselves_are_right(name: str, target: str) -> None:
    plan = plan_of(name, target)
    read = Plan.from_json(plan.to_json())
    assert not verify(plan)
    assert not faults(read)
    assert Plan.from_json(sealed(data_of(name, target))) == read
