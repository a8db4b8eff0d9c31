"""Mutants of plans: small programs' plans with one fault each, in their data or in their text.

A mutant's digest is made anew, unless the fault is in the text: what is wrong with it must be seen in the plan itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch.nn import functional as F

from torch_webgpu.plan import Plan, trace
from torch_webgpu.plan.parts_json import sealed

Data = Any
Draw = Callable[[st.SearchStrategy[Any]], Any]
f32, i64 = torch.float32, torch.int64


# Programs


def product(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w + b)


def training_step(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = (x @ w).relu()
    w.add_(x.t() @ y, alpha=-0.1)
    return y.sum()


def selection(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.index_select(0, i), torch.zeros(10, device=x.device).index_add(0, i, x[: i.shape[0], 0])


def split_sums(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.sum(), x.sum(0)]


def random_numbers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.dropout(x, 0.5), torch.randn(5, device=x.device)


def constants(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0], device=x.device) + torch.tensor(4, device=x.device)


def empty_tensors(x: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x + torch.empty_like(x), e * 2, x.new_zeros(3), x.new_empty(0), x.new_empty(2)


def views(x: torch.Tensor) -> dict[str, Any]:
    y = x * 2
    return {"a": y[1:], "b": [y[0], x[1:]], "c": y.view(torch.int32)[2]}


def lists(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> list[torch.Tensor]:
    torch._foreach_add_([a, b], [c, d])
    return torch._foreach_mul([a, b, c], 2.0)


def counted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sort(-1).indices, x.cumsum(0).half().softmax(-1)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[torch.dtype, tuple[int, ...]], ...]]] = {
    "product": (product, ((f32, (6, 8)), (f32, (8, 5)), (f32, (5,)))),
    "softmax": (lambda x: x.softmax(-1), ((f32, (3, 20)),)),
    "training step": (training_step, ((f32, (16, 8)), (f32, (4, 16)))),
    "selection": (selection, ((f32, (6, 5)), (i64, (3,)))),
    "split sums": (split_sums, ((f32, (400, 300)),)),
    "random numbers": (random_numbers, ((f32, (64,)),)),
    "constants": (constants, ((f32, (3,)),)),
    "empty tensors": (empty_tensors, ((f32, (4, 4)), (f32, (0, 3)))),
    "views": (views, ((f32, (4, 4)),)),
    "lists": (lists, ((f32, (4, 4)), (f32, (3,)), (f32, (4, 4)), (f32, (3,)))),
    "counted": (counted, ((f32, (4, 6)),)),
}


@cache
def plan_of(name: str, target: str | None) -> Plan:
    """The plan of a program for a target, or for the adapter."""
    fn, inputs = PROGRAMS[name]
    return trace(fn, *[torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in inputs], target=target)


@cache
def _text(name: str, target: str | None) -> str:
    return plan_of(name, target).to_json()


def data_of(name: str, target: str | None) -> Data:
    """A plan's data without its digest."""
    data = json.loads(_text(name, target))
    del data["digest"]
    return data


# Places in a plan's data


def lists_of(data: Data) -> dict[str, list[list[Any]]]:
    """The lists in a plan's data, by what they are."""
    steps = [s for s in data["steps"] if len(s) == 4]
    found = {
        **{key: [data[key]] for key in data if isinstance(data[key], list)},
        "bindings of a step": [s[1] for s in steps],
        "words": [s[2] for s in steps],
        "grid": [s[3] for s in steps],
        "bindings of a kernel": [k["bindings"] for k in data["kernels"]],
        "params": [k["params"] for k in data["kernels"]],
        "workgroup size": [k["workgroup_size"] for k in data["kernels"]],
        "shape": [spec[3] for spec in (*data["inputs"], *data["outputs"])],
        "strides": [spec[4] for spec in (*data["inputs"], *data["outputs"])],
        "parts": [*data["buffers"], *data["steps"], *data["inputs"], *data["outputs"], *data["labels"]],
        "parts of a kernel": [part for k in data["kernels"] for part in (*k["bindings"], *k["params"])],
    }
    return {name: [one for one in some if one] for name, some in found.items() if any(some)}


def numbers_of(data: Data) -> dict[str, list[tuple[Any, Any]]]:
    """The integers in a plan's data, each as what it is in and its key, by what they are."""
    steps = [s for s in data["steps"] if len(s) == 4]
    specs = [*data["inputs"], *data["outputs"]]
    found = {
        "size": [(b, 0) for b in data["buffers"]],
        "donated": [(b, 2) for b in data["buffers"]],
        "kernel": [(s, 0) for s in steps],
        "binding": [(s[1], k) for s in steps for k in range(len(s[1]))],
        "word": [(s[2], k) for s in steps for k in range(len(s[2])) if isinstance(s[2][k], int)],
        "part of a word": [(w, k) for s in steps for w in s[2] if isinstance(w, list) for k in range(1, len(w))],
        "grid": [(s[3], k) for s in steps for k in range(3)],
        "cleared": [(s, k) for s in data["steps"] if len(s) == 2 for k in range(2)],
        "argument": [(data["arguments"], k) for k in range(len(data["arguments"]))],
        "tensor": [(data["tensors"], k) for k in range(len(data["tensors"]))],
        "spec": [(spec, k) for spec in specs for k in range(2)],
        "shape": [(spec[3], k) for spec in specs for k in range(len(spec[3]))],
        "strides": [(spec[4], k) for spec in specs for k in range(len(spec[4]))],
        "constant": [(c, 0) for c in data["constants"]],
        "operator": [(o, 0) for o in data["operators"]],
        "label": [(label, 1) for label in data["labels"]],
        "workgroup size": [(k["workgroup_size"], n) for k in data["kernels"] for n in range(3)],
        "random blocks": [(data, "random_blocks")],
        "format": [(data, "format")],
        "limit": [(data["requires"], key) for key, value in data["requires"].items() if type(value) is int],
    }
    return {name: places for name, places in found.items() if places}


def texts_of(data: Data) -> Iterator[tuple[Any, Any]]:
    """The names in a plan's data, each as what it is in and its key."""
    for b in data["buffers"]:
        yield b, 3
    for k in data["kernels"]:
        yield k, "name"
        for part in (*k["bindings"], *k["params"]):
            yield part, 0
    for part in (*data["operators"], *data["constants"]):
        yield part, 1
    for label in data["labels"]:
        yield label, 0


def pick(draw: Draw, some: Any) -> Any:
    return draw(st.sampled_from([*some]))


def a_list(draw: Draw, data: Data, least: int = 1) -> list[Any]:
    places = {name: [one for one in some if len(one) >= least] for name, some in lists_of(data).items()}
    return pick(draw, places[pick(draw, [name for name, some in places.items() if some])])


def a_number(draw: Draw, data: Data) -> tuple[str, Any, Any]:
    places = numbers_of(data)
    name = pick(draw, places)
    return name, *pick(draw, places[name])


# Mutations. Each changes the data in place. ``tame``: only such numbers as a kernel of a changed plan ends with soon.


def swap(draw: Draw, data: Data, tame: bool) -> None:
    one = a_list(draw, data, 2)
    a = pick(draw, range(1, len(one)))
    b = pick(draw, range(a))
    one[a], one[b] = one[b], one[a]


def drop(draw: Draw, data: Data, tame: bool) -> None:
    one = a_list(draw, data)
    del one[pick(draw, range(len(one)))]


def duplicate(draw: Draw, data: Data, tame: bool) -> None:
    one = a_list(draw, data)
    one.insert(pick(draw, range(len(one) + 1)), deepcopy(pick(draw, one)))


def shrink(draw: Draw, data: Data, tame: bool) -> None:
    name, owner, key = a_number(draw, data)
    least = 1 if tame and name == "word" else 0
    owner[key] = pick(draw, [max(least, n) for n in (owner[key] - 1, owner[key] - 4, owner[key] // 2, 0, 1)])


def enlarge(draw: Draw, data: Data, tame: bool) -> None:
    _, owner, key = a_number(draw, data)
    sizes = [owner[key] + 1, owner[key] + 4, owner[key] * 2, owner[key] + 256]
    owner[key] = pick(
        draw, sizes if tame else [*sizes, 65535, 65536, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 48, 1 << 63]
    )


def alias(draw: Draw, data: Data, tame: bool) -> None:
    """Two bindings, arguments, inputs or outputs in one buffer."""
    kinds = [[(s[1], k) for k in range(len(s[1]))] for s in data["steps"] if len(s) == 4]
    kinds.append([(data["arguments"], k) for k in range(len(data["arguments"]))])
    kinds.append([(spec, 0) for spec in (*data["inputs"], *data["outputs"])])
    places = pick(draw, [kind for kind in kinds if len(kind) > 1] or [kinds[-1]])
    (owner, key), (other, at) = pick(draw, places), pick(draw, places)
    owner[key] = other[at]


def role(draw: Draw, data: Data, tame: bool) -> None:
    buffer = pick(draw, data["buffers"])
    roles = ("input", "weight", "state", "output", "temporary", "constant", "errors", "inout", "", 3)
    buffer[pick(draw, (1, 1, 2))] = pick(draw, roles)


def donate(draw: Draw, data: Data, tame: bool) -> None:
    buffer = pick(draw, data["buffers"])
    buffer[2] = pick(draw, (1 - buffer[2], 2, True, -1))


def element_type(draw: Draw, data: Data, tame: bool) -> None:
    names = ("f32", "f16", "bf16", "i64", "i32", "u32", "i8", "u8", "bool", "f64", "c64", "f8", "", "array<f32>")
    bindings = [(b, 1) for k in data["kernels"] for b in k["bindings"]]
    places = bindings + [(spec, 2) for spec in (*data["inputs"], *data["outputs"])]
    params = [(p, 1) for k in data["kernels"] for p in k["params"]]
    owner, key = pick(draw, places + params)
    owner[key] = pick(draw, names)


def access(draw: Draw, data: Data, tame: bool) -> None:
    bindings = [b for k in data["kernels"] for b in k["bindings"]]
    if bindings:
        binding = pick(draw, bindings)
        key, values = pick(
            draw, ((2, ("read", "read_write", "write", "")), (3, ("plain", "word", "atomic", "raw", "")))
        )
        binding[key] = pick(draw, values)


JUNK = (
    1 << 40, -1, float("nan"), float("inf"), 1.5, "x", "", "\ud800", None, True, False, [], {}, [[]], [0],
    ["offset", 0, 0], ["random", 9, 0], ["scalar", 0], ["nothing"], ["offset", "a", None], {"a": 1}, 10**4000,
    [[[[[[[[[[0]]]]]]]]]], "0" * 64, "f32", 1 << 64, -(1 << 63),
)  # fmt: skip


def junk(draw: Draw, data: Data, tame: bool) -> None:
    """Any value at any place."""
    if pick(draw, range(4)) == 0:
        data[pick(draw, data)] = pick(draw, JUNK)
    elif pick(draw, range(2)):
        one = a_list(draw, data)
        one[pick(draw, range(len(one)))] = pick(draw, JUNK)
    else:
        _, owner, key = a_number(draw, data)
        owner[key] = pick(draw, JUNK)


def word(draw: Draw, data: Data, tame: bool) -> None:
    """Parameters that come from elsewhere."""
    words = [s[2] for s in data["steps"] if len(s) == 4 and s[2]]
    if words:
        some = pick(draw, words)
        small = st.integers(0, 4) if tame else st.integers(-1, 5) | st.sampled_from([1 << 20, (1 << 32) - 1, 1 << 40])
        kinds = [
            ["offset", draw(small), draw(small), draw(small)],
            ["random", draw(small), draw(small)],
            ["scalar", draw(small)],
            draw(st.integers(1, 4096) if tame else st.integers(-1, 1 << 33)),
        ]
        some[pick(draw, range(len(some)))] = pick(draw, kinds)


NAMES = (
    "", "x", "errors", "P", "fn", "main", "_", "__a", "a b", "x0;", "x) { } fn evil(", "x0_buf", "e\u0301", "a\n",
    "a\0b", "1a", "x: u32, // ", "x_load", "\ud800", "i64", "a" * 5000, "@group(0)", "*/", "u32", "numel", "y",
)  # fmt: skip


def rename(draw: Draw, data: Data, tame: bool) -> None:
    owner, key = pick(draw, texts_of(data)) if data["buffers"] else (data, "result")
    owner[key] = pick(draw, NAMES)


BODIES = (
    lambda b: b.replace("@compute", ""),
    lambda b: b.replace("fn main", "fn other"),
    lambda b: b.replace("@workgroup_size(", "@workgroup_size(2, "),
    lambda b: b + "\n@group(0) @binding(9) var<storage, read_write> stolen: array<u32>;",
    lambda b: b + "\nfn evil() { x0_buf[4000000000u] = 1.0; y1_buf[1u] = 2.0; b0_buf[3u] = 1.0; a_buf[4u] = 2.0; }",
    lambda b: b + "\n@id(0) override size: u32 = 4u;",
    lambda b: b + "\n}",
    lambda b: b + "\nfn unfinished(",
    lambda b: "enable f16;\n" + b,
    lambda b: b.replace("_store", "_stored", 1),
    lambda b: b.replace("_load", "_buf", 1),
    lambda b: b[len(b) // 2 :],
    lambda b: b[: len(b) // 2],
    lambda b: "",
    lambda b: "\0" + b,
    lambda b: b + "\nfn more() { errors_store(0u, 1u); }",
    lambda b: b + "\n@compute @workgroup_size(1) fn second() {}",
)


def body(draw: Draw, data: Data, tame: bool) -> None:
    if data["kernels"]:
        kernel = pick(draw, data["kernels"])
        kernel["body"] = pick(draw, BODIES)(kernel["body"])


def arrangement(draw: Draw, data: Data, tame: bool) -> None:
    """Of the outputs, of the constants, of what is required."""
    nested: Any = 0
    for _ in range(pick(draw, (3, 150, 900))):
        nested = ["list", nested]
    results = [
        None, 0, 1, ["tuple", 0, 0], ["dict", ["a", 0], ["a", 1]], ["set", 0], [], ["tuple", 1, 0], nested, ["dict", 0],
        ["dict", [0, 0], [True, 1]], True, "tuple", ["list"], ["dict", [[], 0]],
    ]  # fmt: skip
    requires = [
        {"max_buffers": 1}, {"max_buffer_bytes": 1}, {"features": ["int64"]}, {"features": [[]]}, {"features": "x"}, [],
        0, {"matrices": 3}, {"matrices": [["f32"]]}, {"max_buffers": -1}, {"nothing": 1}, {"features": [None]},
        {"matrices": None}, {"subgroup_size": 1 << 40}, {"workgroup_threads": True},
    ]  # fmt: skip
    digest = "8e628779e6a74ee0b36991c10158f63cafec7d340ad4e075592502c8708524dd"
    constants = [
        [],
        [[0, digest]],
        [[0, digest], [0, digest]],
        [[99, digest]],
        [[0, digest[:-1]]],
        [[0]],
        [[1, digest]],
    ]
    key, values = pick(draw, (("result", results), ("requires", requires), ("constants", constants)))
    data[key] = pick(draw, values)


def keys(draw: Draw, data: Data, tame: bool) -> None:
    """A key less or more."""
    owner = pick(draw, [data, data["requires"], *data["kernels"]])
    if owner and draw(st.booleans()):
        del owner[pick(draw, owner)]
    else:
        owner[pick(draw, ("extra", "digests", "", "trusted", "names"))] = pick(draw, JUNK)


KINDS: dict[str, Callable[[Draw, Data, bool], None]] = {
    mutation.__name__: mutation
    for mutation in (
        swap, drop, duplicate, shrink, enlarge, alias, role, donate, element_type, access, junk, word, rename, body,
        arrangement, keys,
    )
}  # fmt: skip


@st.composite
def mutants(draw: Draw, kind: str, targets: tuple[str | None, ...], tame: bool = False) -> str:
    """The text of a plan with one fault of that kind."""
    name, target = pick(draw, PROGRAMS), pick(draw, targets)
    data = data_of(name, target)
    KINDS[kind](draw, data, tame)
    text = sealed(data)
    assume(text != _text(name, target))
    return text


@st.composite
def damaged(draw: Draw, targets: tuple[str | None, ...]) -> str:
    """The text of a plan that was changed after it was written."""
    text = _text(pick(draw, PROGRAMS), pick(draw, targets))
    at = draw(st.integers(0, len(text) - 1))
    kind = pick(draw, ("cut", "character", "removed", "number", "nested", "huge", "twice", "inserted"))
    if kind == "cut":
        return text[:at]
    if kind == "character":
        other = draw(st.characters(exclude_characters=text[at]))
        return text[:at] + other + text[at + 1 :]
    if kind == "removed":
        return text[:at] + text[at + draw(st.integers(1, 40)) :]
    if kind == "number":
        digits = [k for k, c in enumerate(text) if c.isdigit()]
        k = pick(draw, digits)
        return text[:k] + str((int(text[k]) + draw(st.integers(1, 9))) % 10) + text[k + 1 :]
    if kind == "nested":
        return text[:at] + "[" * draw(st.sampled_from([10, 1000, 100_000])) + text[at:]
    if kind == "huge":
        return text[:at] + "9" * draw(st.sampled_from([10, 4000, 5000])) + text[at:]
    if kind == "twice":
        return text[:-1] + ',"steps":[]}'
    return text[:at] + draw(st.text(min_size=1, max_size=5)) + text[at:]
