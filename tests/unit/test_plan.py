"""Plans are plain data: equal ones are equal, JSON gives them back, and what is wrong with one is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torch_webgpu.errors import WebGPUError
from torch_webgpu.plan import Buffer, Clear, Offset, Plan, Random, Scalar, Step, bits, verify
from torch_webgpu.wgsl.kernel import Binding, Kernel, Param

ADD = Kernel(
    "add",
    "@compute @workgroup_size(64) fn main() {}",
    (Binding("x", "f32"), Binding("y", "f32"), Binding("out", "f32", "read_write")),
    (Param("n"), Param("x_offset"), Param("alpha", "f32")),
    workgroup_size=(64, 1, 1),
    trusted=True,
)
NOISE = Kernel(
    "noise", "@compute @workgroup_size(256) fn main() {}", (Binding("out", "f32", "read_write"),), (Param("seed"),)
)


def plan() -> Plan:
    """out = (x + alpha * noise) in two steps, after the temporary was cleared."""
    return Plan(
        (Buffer(1024, "input", name="x"), Buffer(1024, "output"), Buffer(2048, "temporary"), Buffer(64, "errors")),
        (NOISE, ADD),
        (
            Clear(2, 2048),
            Step(0, (2,), (Random(0, 3),), (4, 1, 1)),
            Step(1, (0, 2, 1), (256, Offset(0, 2, 5), Scalar(0)), (1, 2, 1)),
        ),
        arguments=(0, 1),
        tensors=(0,),
        random_blocks=4,
    )


def test_equal_plans_are_equal() -> None:
    assert plan() == plan()
    assert hash(plan()) == hash(plan())
    assert plan() != replace(plan(), tensors=())


def test_json_gives_the_plan_back() -> None:
    text = plan().to_json()
    assert Plan.from_json(text, trusted=True) == plan()
    assert Plan.from_json(text, trusted=True).to_json() == text
    assert hash(Plan.from_json(text, trusted=True).kernels[1]) == hash(ADD)


@pytest.mark.parametrize("way", ["text", "file"])
def test_kernels_that_were_read_are_checked_whatever_they_say_of_themselves(way: str, tmp_path: Path) -> None:
    trusted = plan()
    assert any(kernel.trusted for kernel in trusted.kernels)
    trusted.save(tmp_path / "plan.npz")
    read = Plan.from_json(trusted.to_json()) if way == "text" else Plan.load(tmp_path / "plan.npz")
    assert not any(kernel.trusted for kernel in read.kernels)
    assert replace(read, kernels=trusted.kernels) == trusted
    known = Plan.load(tmp_path / "plan.npz", trusted=True)
    assert [kernel.trusted for kernel in known.kernels] == [kernel.trusted for kernel in trusted.kernels]


def test_people_can_read_it() -> None:
    assert str(plan()).splitlines()[3:] == [
        "b3: 64 bytes, errors",
        "clear b2",
        "noise (4, 1, 1) out=b2; seed=Random(part=0, ahead=3)",
        "add (1, 2, 1) x=b0, y=b2, out=b1; n=256, x_offset=Offset(tensor=0, shift=2, ahead=5), alpha=Scalar(index=0)",
    ]


def test_it_knows_what_a_run_needs() -> None:
    assert plan().lifetimes == {2: (0, 2), 0: (2, 2), 1: (2, 2)}
    assert plan().scalars == 1
    assert [(n, k) for n, k, _ in plan().variable_words()] == [(1, 0), (2, 1), (2, 2)]


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [(7, "u32", 7), (-1, "i32", 0xFFFFFFFF), (1.0, "f32", 0x3F800000), (float("nan"), "f32", 0x7FC00000)],
)
def test_parameters_are_bits(value: float, type_: str, expected: int) -> None:
    assert bits(value, type_) == expected


def test_random_words_go_on_across_32_bits() -> None:
    assert [Random(part, 2).at(seed=5 << 32 | 6, offset=(1 << 32) - 1) for part in range(4)] == [6, 5, 1, 1]


def step(number: int, **changes: object) -> Plan:
    steps = list(plan().steps)
    steps[number] = replace(steps[number], **changes)  # type: ignore[arg-type]
    return replace(plan(), steps=tuple(steps))


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (step(2, kernel=2), "kernel 2, which does not exist"),
        (step(2, bindings=(0, 2, 9)), "a buffer that does not exist"),
        (step(2, bindings=(0, 2)), "3 bindings, not 2"),
        (step(2, words=(1, 2)), "3 parameters, not 2"),
        (step(2, words=(1, 2, Offset(1, 2))), "tensor 1 starts, which does not exist"),
        (step(2, grid=(0, 1, 1)), "is not a grid"),
        (step(2, bindings=(0, 1, 1)), "writes buffer 1, which it is given twice"),
        (step(0, size_bytes=3), "clears 3 bytes"),
        (replace(plan(), steps=plan().steps[2:]), "reads buffer 2, which nothing has written"),
        (replace(plan(), tensors=(7,)), "tensor 0 lies in buffer 7"),
        (replace(plan(), buffers=(*plan().buffers[:2], Buffer(0, "temporary"), plan().buffers[3])), "has no size"),
    ],
)
def test_what_is_wrong_is_said(broken: Plan, complaint: str) -> None:
    assert complaint in verify(broken)[0]
    assert not verify(plan())
    with pytest.raises(WebGPUError, match="not a valid plan"):
        Plan.from_json(broken.to_json())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 3}', '{"format": 99}', plan().to_json()[:-40]])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(WebGPUError, match="plan"):
        Plan.from_json(text)


def test_the_json_is_plain() -> None:
    data = json.loads(plan().to_json())
    assert data["steps"][2] == [1, [0, 2, 1], [256, ["offset", 0, 2, 5], ["scalar", 0]], [1, 2, 1]]
