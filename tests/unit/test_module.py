"""Shader modules as values: tokens, declarations, what they mention, and other names for them."""

from __future__ import annotations

from importlib.resources import files

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torch_webgpu.errors import ShaderCompileError, ShaderSyntaxError
from torch_webgpu.wgsl.module import Declaration, Module, Parameter
from torch_webgpu.wgsl.tokens import is_trivia, significant_tokens, tokens, without_comments

KERNELS = files("torch_webgpu") / "kernels"
LIBRARY = [file.read_text("utf-8") for file in (KERNELS / "lib").iterdir() if file.name.endswith(".wgsl")]
PIECES = (
    "fn main helper x y P i for let var const struct if return loop array vec4 f32 ( ) [ ] { } ; : , < > << >= = == -> "
    "- * / & && ! ~ .x .helper @compute @builtin 0 1.5 .5 2u 0xffu 1e-5f 0x1p+2 1li // /* */ /*x*/ //x _"
).split()
SOUP = st.lists(st.sampled_from([*PIECES, " ", "\n", "\t", "\r\n", "é", "$", "."])).map("".join)

WHOLE = """
enable f16;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
const WIDTH = 4u;
alias Row = array<vec4<f32>, WIDTH>;
struct Pair { first: f32, helper: Row, };
override scale: f32 = 1.0;
const_assert WIDTH > 2u;
fn helper(a: f32, row: Row) -> vec2<f32> { return vec2<f32>(a, row[0].x); }
var<private> state: u32;
@compute @workgroup_size(WIDTH * 8, 1) @subgroup_size(32)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  if (lid < WIDTH && wid.x > 3u) { x[lid] = helper(1.0, Row()).y; }
}
"""


def only(text: str) -> Declaration:
    (declaration,) = Module.parse(text).declarations
    return declaration


@given(SOUP)
@example("/* a /* b */ c */ // d\nx.y @ builtin . /* e */ z")
def test_joined_tokens_are_the_text(text: str) -> None:
    try:
        sequence = tokens(text)
    except ShaderSyntaxError:
        with pytest.raises(ShaderSyntaxError):
            significant_tokens(text)
        return
    assert "".join(sequence) == text
    assert [token for token in sequence if not is_trivia(token)] == significant_tokens(text)


@given(SOUP)
@example("fn f(")
@example("@compute")
@example("fn f() { let }")
@example("fn f(:) { @builtin; }")
@example("var<private")
def test_any_text_is_a_module_or_a_syntax_error(text: str) -> None:
    try:
        module = Module.parse(text)
    except ShaderSyntaxError:
        return
    pieces = [*module.gaps, *[declaration.text for declaration in module.declarations]]
    assert sum(map(len, pieces)) == len(text)
    for declaration in module.declarations:
        assert declaration.mentions <= declaration.names
        assert declaration.renamed({}) == declaration.text
        assert declaration.mentions_of(declaration.names) == declaration.mentions


def test_templates_comparisons_and_shifts() -> None:
    assert significant_tokens("array<vec4<f32>, 4>") == ["array", "<", "vec4", "<", "f32", ">", ",", "4", ">"]
    assert significant_tokens("a < b && c > d") == ["a", "<", "b", "&&", "c", ">", "d"]
    assert significant_tokens("x>>2u") == ["x", ">>", "2u"]
    assert significant_tokens("vec2<vec2<f32>>(v.xy, -.5e-3f)")[-7:] == ["(", "v", ".xy", ",", "-", ".5e-3f", ")"]


def test_comments_are_nested_and_end_with_their_lines() -> None:
    text = "a /* b /* c */ d */ e // f /* g\nh"
    assert significant_tokens(text) == ["a", "e", "h"]
    assert without_comments(text) == "a  e\nh"
    assert without_comments("a/**/b") == "a b"
    assert without_comments("x;  // all\n  // of it\ny;") == "x;\n\ny;"
    assert significant_tokens("v. /* of */ x") == ["v", ". /* of */ x"]
    assert without_comments("v. /* of */ x") == "v.x"


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("fn f() {\n  let a = $b;\n}", 2, 11, "no token"),
        ("fn f() {\n  g(1;\n}", 2, 4, r"'\(' is not closed"),
        ("fn f() { /* /* */ }", 1, 10, "does not end"),
        ("const a = 1;\n}", 2, 1, "'}' closes nothing"),
        ("const a = 1;\nfn f()", 2, 1, "does not end"),
        ("let a = 1;", 1, 1, "no declaration"),
        ("fn () {}", 1, 1, "no name"),
        ("struct S;", 1, 1, "how a struct is declared"),
        ("fn f() { v. }", 1, 11, "no token"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_position(text: str, line: int, column: int, problem: str) -> None:
    with pytest.raises(ShaderSyntaxError, match=problem) as caught:
        Module.parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert isinstance(caught.value, ShaderCompileError)


def test_declarations_by_kind_in_order() -> None:
    module = Module.parse(WHOLE)
    assert [(d.kind, d.name) for d in module.declarations] == [
        ("var", "x"), ("const", "WIDTH"), ("alias", "Row"), ("struct", "Pair"), ("override", "scale"),
        ("const_assert", ""), ("fn", "helper"), ("var", "state"), ("fn", "main"),
    ]  # fmt: skip
    assert module.directives == ("enable f16;",)
    assert module.by_name["x"].address_space == "storage"
    assert module.by_name["x"].attributes == {"group": "0", "binding": "1"}
    assert module.by_name["state"].address_space == "private"
    assert module.by_name["Row"].mentions == {"array", "vec4", "f32", "WIDTH"}
    assert module.declared == module.by_name.keys()
    assert [d.name for d in module.reachable(["helper"])] == ["WIDTH", "Row", "helper"]
    assert Module.parse(WHOLE) is module


def test_the_entry_point() -> None:
    entry = Module.parse(WHOLE).entry
    assert entry is not None
    assert entry.attributes == {"compute": "", "workgroup_size": "WIDTH * 8, 1", "subgroup_size": "32"}
    assert entry.signature is not None
    assert entry.signature.parameters == (
        Parameter("wid", "vec3<u32>", "workgroup_id"),
        Parameter("lid", "u32", "local_invocation_index"),
    )
    assert entry.mentions == {"vec3", "u32", "WIDTH", "x", "helper", "Row"}
    assert Module.parse("fn main() {}").entry is None


def test_signatures_and_bodies() -> None:
    text = (
        "fn f(a: array<vec2<f32>, 4>, /* b: u32, */ c: ptr<function, array<i32, 2>>,) -> vec4<f32> { return g({1}); }"
    )
    declaration = only(text.replace("g({1})", "g(1)"))
    assert declaration.signature is not None
    assert declaration.signature.parameters == (
        Parameter("a", "array<vec2<f32>, 4>"), Parameter("c", "ptr<function, array<i32, 2>>")
    )  # fmt: skip
    assert declaration.signature.result == "vec4<f32>"
    assert declaration.body == "{ return g(1); }"
    assert only("fn f() {}").signature == only("fn f ( ) { }").signature
    assert only("const c = 1;").signature is None
    assert only("const c = 1;").body is None


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("fn f() { g(); /* h */ } // k", {"g"}),
        ("fn f(g: f32) { g; }", {"f32"}),
        ("fn f(g: g) -> g { return g; }", {"g"}),
        ("fn f() { let g = g(1); g; }", {"g"}),
        ("fn f() { let g = 1; g; }", set()),
        ("fn f() { { let g = 1; } g; }", {"g"}),
        ("fn f() { if (a) { var g: u32; g = 1; } else { b; } }", {"a", "b", "u32"}),
        ("fn f() { for (var i = 0; i < n; i++) { i; } }", {"n"}),
        ("fn f() { for (var i = 0; i < n; i++) { { i; } } i; }", {"n", "i"}),
        ("fn f() { var<function> g = 1; g; h; }", {"function", "h"}),
        ("fn f() { const g = 1; switch g { case h: { g; } default: {} } }", {"h"}),
        ("fn f() { v.g(); v\n.h = w.g.h; }", {"v", "w"}),
        ("struct S { g: h, @size(k) f: S2 }", {"h", "k", "S2"}),
        ("@workgroup_size(n) fn f(@builtin(position) p: vec4<f32>) { position; }", {"n", "vec4", "f32", "position"}),
        ("@workgroup_size(n) fn f(@builtin(position) p: vec4<f32>) { p; }", {"n", "vec4", "f32"}),
        ("var<workgroup> a: array<T, N>;", {"workgroup", "array", "T", "N"}),
    ],
)
def test_mentions(text: str, mentions: set[str]) -> None:
    declaration = only(text)
    assert declaration.mentions == mentions
    everything = {"g", "h", "k", "i", "n", "position", "p"}
    assert declaration.mentions_of(everything) == mentions & everything
    assert Module.parse(text).mentions_of(everything) == mentions & everything


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("fn g() { g.g = h.g(); }", "fn new() { new.g = h.g(); }"),
        ("fn f(g: g) { g; { let h = g; } h; }", "fn f(g: new) { g; { let h = g; } h; }"),
        ("fn f() { g; let g = g; g; }", "fn f() { new; let g = new; g; }"),
        ("struct S { g: g, @align(g) x: f32 }", "struct S { g: new, @align(new) x: f32 }"),
        (
            "struct g { a: f32 }; /* g */ @g(g) const c = g(1);",
            "struct new { a: f32 }; /* g */ @g(new) const c = new(1);",
        ),
        ("fn f() { P.n + P.m + Q.n + P; }", "fn f() { R.k + P.m + Q.n + P; }"),
        ("fn f(@builtin(g) P: u32) { P.n; }", "fn f(@builtin(g) P: u32) { P.n; }"),
    ],
)
def test_renaming_leaves_members_attributes_and_local_names(text: str, renamed: str) -> None:
    assert Module.parse(text).renamed({"g": "new", "P.n": "R.k"}).text == renamed


def test_a_name_that_is_there_is_refused() -> None:
    with pytest.raises(ValueError, match="fn f has the names b already"):
        Module.parse("fn f() { let b = 1; a; }").renamed({"a": "b"})
    with pytest.raises(ValueError, match="the module declares b already"):
        Module.parse("const a = 1; const b = 2;").renamed({"a": "b"})
    assert Module.parse("fn f() { a; b; }").renamed({"a": "b", "b": "a"}).text == "fn f() { b; a; }"


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_renaming_and_back_gives_the_text_back(data: st.DataObject) -> None:
    module = Module.parse(data.draw(st.sampled_from([*LIBRARY, WHOLE])))
    names = data.draw(st.sets(st.sampled_from(sorted(module.declared))))
    there = {name: f"{name}_renamed" for name in names}
    renamed = module.renamed(there)
    assert renamed.declared == {there.get(name, name) for name in module.declared}
    assert renamed.renamed({new: old for old, new in there.items()}).text == module.text


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([*LIBRARY, WHOLE]), st.sampled_from(["// {}\n", "/* {} */", "/* /* {} */ */ "]), st.randoms())
def test_what_comments_name_is_never_mentioned(text: str, comment: str, random: object) -> None:
    sequence = tokens(text)
    at = random.randrange(len(sequence) + 1)  # type: ignore[attr-defined]
    commented = Module.parse("".join([*sequence[:at], "\n" + comment.format("secret(); let f32 = 1"), *sequence[at:]]))
    module = Module.parse(text)
    assert "secret" not in commented.names
    assert commented.declared == module.declared
    assert [d.mentions for d in commented.declarations] == [d.mentions for d in module.declarations]
    assert [*map(significant_tokens, (commented.without_comments().text,))] == [significant_tokens(text)]
