"""Plans are plain data: equal ones are equal, JSON gives them back, and what is wrong with one is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torch_webgpu.errors import WebGPUError
from torch_webgpu.plan import (
    BufferSpec,
    Clear,
    Offset,
    Plan,
    Random,
    Requirements,
    Scalar,
    Step,
    TensorSpec,
    bits,
    verify,
    wrong_contents,
)
from torch_webgpu.plan.parts_json import sealed
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
        (
            BufferSpec(1024, "input", name="x"),
            BufferSpec(1024, "output"),
            BufferSpec(2048, "temporary"),
            BufferSpec(64, "errors"),
        ),
        (NOISE, ADD),
        (
            Clear(2, 2048),
            Step(0, (2,), (Random(0, 3),), (4, 1, 1)),
            Step(1, (0, 2, 1), (256, Offset(0, 2, 5), Scalar(0)), (1, 2, 1)),
        ),
        arguments=(0, 1),
        tensors=(0,),
        random_blocks=4,
        requires=Requirements(max_buffers=3, workgroup_threads=256, max_buffer_bytes=4096),
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
        (replace(plan(), buffers=(*plan().buffers[:2], BufferSpec(0, "temporary"), plan().buffers[3])), "has no size"),
    ],
)
def test_what_is_wrong_is_said(broken: Plan, complaint: str) -> None:
    assert complaint in verify(broken)[0]
    assert not verify(plan())
    with pytest.raises(WebGPUError, match="not a valid plan"):
        Plan.from_json(broken.to_json())


TAKE = Kernel(
    "take",
    "@compute @workgroup_size(256) fn main() {}",
    (
        Binding("x", "i64"), Binding("table", "f32"), Binding("y", "f32", "read_write"),
        Binding("errors", "u32", "read_write", "atomic"),
    ),
    (Param("numel"), Param("op"), Param("x_offset"), Param("seed")),
)  # fmt: skip
DIGEST = "0" * 64
REQUIRES = Requirements(max_buffers=4, workgroup_threads=256, max_buffer_bytes=4096)


def of_a_function() -> Plan:
    """y = table[x], and zeros."""
    return Plan(
        (
            BufferSpec(512, "input", name="x"),
            BufferSpec(64, "constant"),
            BufferSpec(256, "output"),
            BufferSpec(64, "output"),
            BufferSpec(64, "errors"),
        ),
        (TAKE,),
        (Step(0, (0, 1, 2, 4), (64, 77, Offset(0, 3), Random(2, 3)), (1, 1, 1)), Clear(3, 64)),
        arguments=(0, 1, 2, 3),
        tensors=(0,),
        inputs=(TensorSpec(0, 0, "i64", (64,), (1,)),),
        outputs=(TensorSpec(2, 0, "f32", (64,), (1,)), TensorSpec(3, 0, "f32", (4, 4), (4, 1))),
        constants=((1, DIGEST),),
        random_blocks=4,
        result=["tuple", 0, 1],
        operators=((77, "take"),),
        requires=REQUIRES,
    )  # fmt: skip


def other(**changes: object) -> Plan:
    return replace(of_a_function(), **changes)  # type: ignore[arg-type]


def with_buffer(number: int, buffer: BufferSpec) -> Plan:
    buffers = list(of_a_function().buffers)
    buffers[number : number + 1] = [buffer]
    return other(buffers=tuple(buffers))


def with_step(*steps: Step | Clear, **changes: object) -> Plan:
    return other(steps=(*of_a_function().steps, *steps), **changes)


def with_words(*words: object) -> Plan:
    first, *others = of_a_function().steps
    return other(steps=(replace(first, words=words), *others))  # type: ignore[arg-type]


def with_binding(binding: Binding) -> Plan:
    return other(kernels=(replace(TAKE, bindings=(*TAKE.bindings[:3], binding)),))


def with_text(function: str) -> Plan:
    return other(kernels=(replace(TAKE, body=f"@compute @workgroup_size(256) {function}"),))


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (with_buffer(0, BufferSpec(512, "input", donated=True)), "an input of a function, is donated"),
        (with_buffer(0, BufferSpec(516, "input")), "input 0 has 512 bytes, and buffer 0 has 516"),
        (with_buffer(1, BufferSpec(2, "constant")), "elements of 4 bytes, and buffer 1 has 2"),
        (other(tensors=(0, 0)), "asks where the tensors of the buffers"),
        (other(tensors=(0, 1)), "asks where the tensors of the buffers"),
        (other(arguments=(1, 2, 3)), "which has the role input, is no argument"),
        (other(arguments=(0, 1, 2, 3, 4)), "the error flags, is an argument"),
        (other(inputs=(), tensors=()), "asks where tensor 0 starts, which does not exist"),
        (other(outputs=of_a_function().outputs[:1], result=0), "is neither an input nor a constant nor an output"),
        (other(constants=((1, DIGEST), (1, DIGEST[:-1] + "1"))), "several"),
        (with_words(64, 77, Offset(0, 3, 65), Random(2, 3)), "starts 520 bytes after tensor 0, which has 512"),
        (with_words(64, 77, Scalar(0), Random(2, 3)), "a number that no function is given"),
        (with_words(64, 77, Offset(0, 3), Random(2, 4)), "4 blocks of the random stream, and reads block 4"),
        (with_words(64, 78, Offset(0, 3), Random(2, 3)), "raises flags for an operator without a name"),
        (other(operators=((77, "take"), (78, "other"))), "no step raises flags for operator 78"),
        (other(operators=((77, "take"), (77, "other"))), "one number"),
        (other(random_blocks=0), "0 blocks of the random stream"),
        (other(kernels=(TAKE, ADD)), "kernel 1, add, is run by no step"),
        (other(buffers=(*of_a_function().buffers, BufferSpec(4, "temporary"))), "is used by nothing"),
        (other(steps=(of_a_function().steps[0], Clear(3, 60))), "beyond the 60 bytes"),
        (with_step(Clear(4, 64)), "clears the error flags"),
        (with_binding(Binding("errors", "f32", "read_write")), "the error flags, are f32"),
        (with_binding(Binding("errors", "u32", "read", "atomic")), "cannot be atomic"),
        (with_step(Step(0, (0, 1, 2, 4), (64, 77, 0, 0), (65535, 65535, 2))), "is not a grid"),
        (other(requires=replace(REQUIRES, max_buffers=3)), "requires max_buffers 3, and uses 4"),
        (other(requires=replace(REQUIRES, workgroup_threads=64)), "requires workgroup_threads 64, and uses 256"),
        (other(requires=replace(REQUIRES, max_buffer_bytes=511)), "requires max_buffer_bytes 511, and uses 512"),
        (with_text("fn main() { let x = 1h + f16(2); }"), "take uses float16, which the plan does not require"),
        (with_text("fn main() { let x = subgroupAdd(1); }"), "take uses subgroups, which the plan does not require"),
        (with_text("@subgroup_size(32) fn main() {}"), "take uses subgroup_sizes, which the plan does not require"),
        (other(result=None, inputs=(), outputs=(), tensors=()), "asks where tensor 0"),
        (other(result=["dict", ["a", 0], ["a", 1]]), "twice"),
        (other(outputs=(TensorSpec(2, 0, "f32", (1 << 40, 1 << 40), (0, 0)),), result=0), "more elements than any"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_functions_plan_is_said(broken: Plan, complaint: str) -> None:
    assert not verify(of_a_function())
    assert complaint in "; ".join(verify(broken))
    with pytest.raises(WebGPUError, match="not a valid plan"):
        Plan.from_json(broken.to_json())


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("fn main() {}", "no entry point"),
        ("@compute @workgroup_size(256) fn main() { table_buf[1u] = 0.0; }", "reaches table past the functions"),
        ("@compute @workgroup_size(256) fn main() { y_w3[1u] = 0.0; }", "reaches y past the functions"),
        ("@compute @workgroup_size(256) fn main() { errors_store(1u, 0u); }", "writes the error flags by itself"),
        (
            "@group(0) @binding(7) var<storage> z: array<u32>; @compute @workgroup_size(256) fn main() {}",
            "declares resources of its own: binding, group",
        ),
        ("@compute @workgroup_size(256) fn main() {", "take does not compile:\nline 1, column 41"),
    ],
)
def test_a_strangers_kernel_keeps_to_what_checks_bounds(body: str, complaint: str) -> None:
    text = other(kernels=(replace(TAKE, body=body),)).to_json()
    with pytest.raises(WebGPUError, match=complaint):
        Plan.from_json(text)
    assert Plan.from_json(text, trusted=True).kernels[0].body == body


def test_a_file_that_was_changed_is_refused() -> None:
    text = of_a_function().to_json()
    assert json.loads(text)["digest"] in text
    with pytest.raises(WebGPUError, match="this plan was changed after it was written"):
        Plan.from_json(text.replace('"random_blocks":4', '"random_blocks":5'))
    assert Plan.from_json(json.dumps(json.loads(text), indent=1)) == replace(
        of_a_function(), kernels=(replace(TAKE, trusted=False),)
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"format":3,"steps":' + "[" * 100_000, "nested too deeply"),
        ('{"format":3,"steps":1.5}', "'1.5' is no whole number"),
        ('{"format":3,"steps":NaN}', "'NaN' is no whole number"),
        ('{"format":3,"steps":[],"steps":[]}', "one key twice"),
        ('{"format":3}', "it has no digest"),
        ('{"format":true}', "of format True"),
        ("7" * 5000, "digits"),
    ],
)
def test_what_is_no_plan_is_refused_in_words(text: str, complaint: str) -> None:
    with pytest.raises(WebGPUError, match=f"^not a plan: .*{complaint}"):
        Plan.from_json(text)


def test_many_faults_are_said_briefly() -> None:
    broken = with_step(*[Clear(3, 3)] * 1000)
    with pytest.raises(WebGPUError, match=r"; and 992 more$"):
        Plan.from_json(broken.to_json())
    data = json.loads(broken.to_json())
    del data["digest"]
    with pytest.raises(WebGPUError, match="requires") as caught:
        Plan.from_json(sealed({**data, "requires": 10**4000}))
    assert len(str(caught.value)) < 400


def test_contents_fill_their_constants() -> None:
    assert not [*wrong_contents(of_a_function(), {DIGEST: bytes(64)})]
    assert [*wrong_contents(of_a_function(), {DIGEST: bytes(60)})] == [
        "the contents of buffer 1 have 60 bytes, and it has 64"
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 3}', '{"format": 99}', plan().to_json()[:-40]])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(WebGPUError, match="plan"):
        Plan.from_json(text)


def test_the_json_is_plain() -> None:
    data = json.loads(plan().to_json())
    assert data["steps"][2] == [1, [0, 2, 1], [256, ["offset", 0, 2, 5], ["scalar", 0]], [1, 2, 1]]
