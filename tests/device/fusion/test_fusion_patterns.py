"""Fusion patterns: chains are counted, and a program's own WGSL is what computes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_webgpu.plan
from torch_webgpu.engine.record import engine
from torch_webgpu.errors import ShaderCompileError
from torch_webgpu.ir.ops import TABLE
from torch_webgpu.runtime.webgpu_h import CDevice
from torch_webgpu.wgsl.link import library_function

webgpu = torch.webgpu


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """No timer: which operations share a batch must not depend on the machine's mood. Patterns go afterwards."""
    known = [pattern.name for pattern in webgpu.get_fusion_patterns()]
    with engine().using(delay_ms=0.0):
        yield
    for pattern in webgpu.get_fusion_patterns():
        if pattern.name not in known:
            webgpu.remove_fusion_pattern(pattern.name)


def counts(name: str, fn: object, *args: torch.Tensor) -> int:
    webgpu.flush_batch()
    before = webgpu.get_fusion_stats().patterns[name]
    result = fn(*args)  # type: ignore[operator]
    webgpu.flush_batch()
    assert result is not None
    return webgpu.get_fusion_stats()["patterns"][name] - before


def vectors(n: int, size: int = 100) -> list[torch.Tensor]:
    return [torch.rand(size).to("webgpu") for _ in range(n)]


def test_the_built_in_patterns_are_counted() -> None:
    x, y, z = vectors(3)
    assert [p.name for p in webgpu.get_fusion_patterns()] == ["add_relu", "scale_shift", "squared_diff"]
    assert counts("add_relu", lambda: torch.relu(x + y)) == 1
    assert counts("scale_shift", lambda: x * y + z) == 1
    assert counts("squared_diff", lambda: torch.square(x - y)) == 1
    assert counts("squared_diff", lambda: (x - y) ** 2) == 1
    assert counts("squared_diff", lambda: (x - y) ** 3) == 0
    assert counts("add_relu", lambda: torch.relu(x * y)) == 0
    assert counts("add_relu", lambda: x.clone().add_(y).relu_()) == 1


def test_a_plan_that_comes_back_is_counted_again() -> None:
    x, y = vectors(2)
    for _ in range(5):
        assert counts("add_relu", lambda: torch.relu(x + y)) == 1


def test_only_what_fuses_is_counted() -> None:
    x, y = vectors(2)
    webgpu.disable_fusion()
    try:
        assert counts("add_relu", lambda: torch.relu(x + y)) == 0
    finally:
        webgpu.enable_fusion()

    def split() -> torch.Tensor:
        total = x + y
        webgpu.flush_batch()
        return torch.relu(total)

    assert counts("add_relu", split) == 0


def test_a_pattern_in_the_seeds_spelling() -> None:
    webgpu.add_fusion_pattern({"ops": ["add", "mul", "tanh"], "name": "custom_activation", "description": "My own"})
    pattern = webgpu.get_fusion_patterns()[-1]
    assert (pattern.name, pattern.ops, pattern.description, pattern.wgsl) == (
        "custom_activation", ["add", "mul", "tanh"], "My own", None,
    )  # fmt: skip
    x, y, z = vectors(3)
    assert counts("custom_activation", lambda: torch.tanh((x + y) * z)) == 1
    assert counts("custom_activation", lambda: torch.tanh(x * y + z)) == 0
    webgpu.remove_fusion_pattern("custom_activation")
    assert "custom_activation" not in webgpu.get_fusion_stats().patterns
    with pytest.raises(KeyError, match="no fusion pattern 'custom_activation'"):
        webgpu.remove_fusion_pattern("custom_activation")


MARKED = """
    const OFFSET = 1000.0;  // so that nobody can take this function's results for the operators'
    fn helper(v: f32) -> f32 { return v + OFFSET; }
    fn marked(a: f32, b: f32, c: f32) -> f32 {
      return helper((a + b) * c);
    }
"""


def bind_marked() -> None:
    webgpu.add_fusion_pattern("marked", ["add", "mul", "tanh"], wgsl=MARKED)


def test_the_functions_results_are_the_results() -> None:
    bind_marked()
    x, y, z = vectors(3)
    result = torch.tanh((x + y) * z)
    torch.testing.assert_close(result.cpu(), (x.cpu() + y.cpu()) * z.cpu() + 1000)
    webgpu.remove_fusion_pattern("marked")
    torch.testing.assert_close(torch.tanh((x + y) * z).cpu(), torch.tanh((x.cpu() + y.cpu()) * z.cpu()))


def test_it_fuses_with_the_rest_broadcasts_and_takes_numbers() -> None:
    bind_marked()
    x = torch.rand(8, 16)
    bias = torch.rand(16)
    for scale in (0.5, 0.25):  # a number that changes is no new kernel
        result = torch.tanh((x.to("webgpu") * 2 + bias.to("webgpu")) * scale).sum(1)
        expected = ((x * 2 + bias) * scale + 1000).sum(1)
        torch.testing.assert_close(result.cpu(), expected)


def test_what_lies_in_between_keeps_its_value() -> None:
    bind_marked()
    x, y, z = vectors(3)
    middle = (x + y) * z
    result = torch.tanh(middle)
    host = (x.cpu() + y.cpu()) * z.cpu()
    torch.testing.assert_close(middle.cpu(), host)
    torch.testing.assert_close(result.cpu(), host + 1000)


def test_in_place_chains() -> None:
    bind_marked()
    x, y, z = vectors(3)
    host = (x.cpu() + y.cpu()) * z.cpu() + 1000
    x.add_(y).mul_(z).tanh_()
    torch.testing.assert_close(x.cpu(), host)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_other_dtypes_and_argument_counts_are_the_operators(dtype: torch.dtype) -> None:
    bind_marked()
    x, y, z = (t.mul(3).to(dtype) for t in vectors(3))
    result = torch.tanh((x + y) * z)
    torch.testing.assert_close(result.cpu(), torch.tanh((x.cpu() + y.cpu()) * z.cpu()), rtol=2e-3, atol=2e-3)
    a, b, c = vectors(3)
    torch.testing.assert_close(
        torch.tanh(torch.add(a, b, alpha=2.5) * c).cpu(), torch.tanh((a.cpu() + 2.5 * b.cpu()) * c.cpu())
    )


def test_the_longest_pattern_wins_and_a_new_one_replaces() -> None:
    bind_marked()
    webgpu.add_fusion_pattern("short", ["mul", "tanh"], wgsl="fn short(a: f32, b: f32) -> f32 { return -7.0; }")
    x, y, z = vectors(3)
    assert torch.tanh((x + y) * z).cpu().gt(999).all()
    assert torch.tanh(x * z).cpu().eq(-7).all()
    webgpu.add_fusion_pattern("short", ["mul", "tanh"], wgsl="fn short(a: f32, b: f32) -> f32 { return -8.0; }")
    assert torch.tanh(x * z).cpu().eq(-8).all()


def test_members_and_local_variables_may_have_the_names_of_functions() -> None:
    """And declarations may stand as they like."""
    text = """
    struct Pair { /* not the /* function */ */ short: f32, half: f32 } const half = 0.5; fn twice(v: f32) -> f32
    { let half = half * 4.0; return half * v; }
      fn
    short(a: f32, b: f32) -> f32 { let p = Pair(twice(a), half); return p.short * p.half + b; }
    """
    webgpu.add_fusion_pattern("short", ["mul", "tanh"], wgsl=text)
    x, y = vectors(2)
    torch.testing.assert_close(torch.tanh(x * y).cpu(), x.cpu() + y.cpu())


def test_gradients_are_the_operators() -> None:
    text = "fn gate(a: f32, b: f32, c: f32) -> f32 { return 1.0 / (1.0 + exp(-(a * b + c))); }"
    webgpu.add_fusion_pattern("gate", ["mul", "add", "sigmoid"], wgsl=text)
    x, y, z = (t.cpu() for t in vectors(3))

    def gradient(device: str) -> torch.Tensor:
        leaf = x.to(device).requires_grad_()
        torch.sigmoid(leaf * y.to(device) + z.to(device)).sum().backward()
        return leaf.grad.cpu()

    before = webgpu.get_fusion_stats().patterns.gate
    torch.testing.assert_close(gradient("webgpu"), gradient("cpu"))
    assert webgpu.get_fusion_stats().patterns.gate == before + 1


def test_wgsl_that_does_not_compile_is_refused_with_its_source() -> None:
    broken = "fn broken(a: f32, b: f32) -> f32 { return a + nothing; }"
    with pytest.raises(ShaderCompileError, match=r"fusion pattern 'broken'(.|\n)*nothing(.|\n)* \| ") as caught:
        webgpu.add_fusion_pattern("broken", ["add", "mul"], wgsl=broken)
    assert re.search("no definition in scope|unresolved", str(caught.value))
    assert "broken" not in webgpu.get_fusion_stats().patterns
    x, y, z = vectors(3)
    torch.testing.assert_close(((x + y) * z).cpu(), (x.cpu() + y.cpu()) * z.cpu())


def test_wgsl_that_cannot_be_read_is_refused_with_the_position() -> None:
    with pytest.raises(ShaderCompileError, match=r"fusion pattern 'broken'.*line 2, column 8: '\(' is not closed"):
        webgpu.add_fusion_pattern("broken", ["add", "mul"], wgsl="fn broken(a: f32, b: f32) -> f32 {\nreturn (a + b; }")


OUT_OF_BOUNDS = """
    fn reach(a: f32, b: f32, c: f32) -> f32 {
      var v = vec4<f32>(a, b, c, 0.0);
      v[u32(a)] = 7.0;
      for (var k = 0u; v[u32(b)] > 100.0 && k < 10u; k++) { v.x += 1.0; }
      return v.x + v.y;
    }
"""


@pytest.mark.parametrize(
    "chain",
    [
        lambda x, y, z: (x + y) * z,
        lambda x, y, z: ((x + y) * z).sum(-1),
        lambda x, y, z: ((x + y) * z).softmax(-1),
        lambda x, y, z: (x @ x + y) * z,
    ],
    ids=["pointwise", "reduction", "softmax", "product"],
)
def test_a_programs_own_code_is_compiled_with_checks(
    chain: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may index out of bounds, and loop for ever: neither is anything that a trusted module survives."""
    made: list[tuple[str, bool]] = []
    create = CDevice.create_shader

    def create_shader(self: CDevice, source: str, label: str, trusted: bool) -> object:
        made.append((source, trusted))
        return create(self, source, label, trusted)

    monkeypatch.setattr(CDevice, "create_shader", create_shader)
    webgpu.add_fusion_pattern("reach", ["add", "mul"], wgsl=OUT_OF_BOUNDS)
    x, y, z = (torch.full((8, 8), value).to("webgpu") for value in (1e6, 2.0, 3.0))
    before = webgpu.get_fusion_stats().patterns.reach
    chain(x, y, z).cpu()
    assert webgpu.get_fusion_stats().patterns.reach == before + 1
    own = [trusted for source, trusted in made if "_reach(" in source and "struct Params" in source]
    assert own
    assert not any(own)


def test_out_of_bounds_stays_in_its_own_variable() -> None:
    webgpu.add_fusion_pattern("reach", ["add", "mul"], wgsl=OUT_OF_BOUNDS)
    x, y, z = (torch.full((1000,), value).to("webgpu") for value in (1e6, 2.0, 3.0))
    assert ((x + y) * z).cpu().eq(1e6 + 2).all()


@pytest.mark.parametrize(
    ("index", "last"), [("v[u32(a)]", "w"), ("w[u32(a)]", "y"), ("m[u32(a)][u32(b)]", "z"), ("v[i32(w[u32(b)])]", "z")]
)
def test_an_index_out_of_range_is_one_of_the_last_component(index: str, last: str) -> None:
    """Whatever the compiler would make of it."""
    result = {"w": 0.5, "y": 2.0, "z": 3.0}[last]
    webgpu.add_fusion_pattern(
        "reach",
        ["add", "mul"],
        wgsl=f"""
    fn reach(a: f32, b: f32, c: f32) -> f32 {{
      let v = vec4<f32>(a, b, c, 0.5);  // v[9]
      let w = vec2<f32>(a, b);
      var m = mat2x4<f32>(w.xxxx, v);
      return {index};
    }}
""",
    )
    x, y, z = (torch.full((100,), value).to("webgpu") for value in (1e6, 2.0, 3.0))
    assert ((x + y) * z).cpu().eq(result).all()


def test_nothing_is_left_of_a_removed_pattern() -> None:
    rows = set(TABLE)
    bind_marked()
    x, y, z = vectors(3)
    torch.tanh((x + y) * z).cpu()
    function = engine().patterns["marked"].function
    assert function is not None
    webgpu.remove_fusion_pattern("marked")
    assert "marked" not in engine().patterns
    assert library_function(function.name) is None
    assert set(TABLE) == rows


def test_a_graph_keeps_the_function_of_a_pattern_that_was_removed() -> None:
    bind_marked()
    x, y, z = vectors(3)
    graph = webgpu.Graph(keep_graph=True)
    graph.capture_begin()
    result = torch.tanh((x + y) * z)
    graph.capture_end()
    webgpu.remove_fusion_pattern("marked")
    graph.replay()  # compiles only now
    torch.testing.assert_close(result.cpu(), (x.cpu() + y.cpu()) * z.cpu() + 1000)


def test_a_plan_takes_its_functions_with_it() -> None:
    bind_marked()
    x, y, z = vectors(3)
    plan = torch_webgpu.plan.trace(lambda a, b, c: torch.tanh((a + b) * c), x, y, z)
    webgpu.remove_fusion_pattern("marked")
    again = torch_webgpu.plan.Plan.from_json(plan.to_json())
    result = torch_webgpu.plan.bind(again)(x, y, z)
    torch.testing.assert_close(result.cpu(), (x.cpu() + y.cpu()) * z.cpu() + 1000)


@pytest.mark.parametrize(
    ("ops", "wgsl", "message"),
    [
        (["add"], None, "two or more"),
        ("add", None, "two or more"),
        (["add", "fry"], None, "no operator fry"),
        (["addd", "mul"], None, r"no operator addd \(did you mean 'add'\?\)"),
        (["add", "layer_nrm"], None, r"no operator layer_nrm \(did you mean 'native_layer_norm'\?\)"),
        (["add", "mul"], "fn other(a: f32) -> f32 { return a; }", "must declare fn wrong"),
        (["add", "mul"], "fn wrong(a: i32) -> f32 { return 1.0; }", "must declare fn wrong"),
        (["add", "mul"], "fn wrong() -> f32 { return 1.0; }", "must declare fn wrong"),
        (["add", "mul"], "var<private> v: f32;\nfn wrong(a: f32) -> f32 { return a; }", "has 'var<'"),
        (["add", "mul"], "fn wrong(a: f32) -> f32 { var x: array<f32, 4>; return x[i32(a)]; }", "has 'array'"),
        (["add", "mul"], "fn wrong(a: f32) -> f32 { workgroupBarrier(); return a; }", "has 'workgroupBarrier'"),
    ],
)
def test_what_is_no_pattern_is_refused(ops: list[str], wgsl: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        webgpu.add_fusion_pattern("wrong", ops, wgsl=wgsl)
