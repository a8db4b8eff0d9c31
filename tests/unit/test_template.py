"""WGSL templates: inserts, repeated lines, comments, and what is wrong about the values of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import jinja2
import pytest

from torch_webgpu.kernels import template

Write = Callable[..., None]


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Write]:
    """Writes templates, by their names, that there are beside no others."""

    def write(**texts: str) -> None:
        for name, text in texts.items():
            (tmp_path / f"{name}.wgsl.jinja").write_text(text)

    def forget() -> None:
        for cached in (template.source, template._loaded, template._environment):
            cached.cache_clear()

    monkeypatch.setattr(template, "files", lambda package: tmp_path)
    forget()
    yield write
    forget()


def test_values_and_statements(write):
    write(
        t="""
fn main() {
  # if count > 1
  for (var i = 0u; i < ${2 * count}u; i += 1u) { x[i] = ${value}; }
  # endif
}
"""
    )
    assert template.render("t", count=2, value="1.0") == (
        "fn main() {\n  for (var i = 0u; i < 4u; i += 1u) { x[i] = 1.0; }\n}"
    )
    assert template.render("t", count=1, value="1.0") == "fn main() {\n}"


@pytest.mark.parametrize("lines", ["if (a) {\n  b();\n}", ["if (a) {", "  b();", "}"]], ids=["text", "lines"])
def test_an_insert_is_indented_as_its_line(write, lines):
    write(t="{\n    ${lines}\n  ${lines}\n}")
    deep, shallow = (f"{pad}if (a) {{\n{pad}  b();\n{pad}}}\n" for pad in ("    ", "  "))
    assert template.render("t", lines=lines) == f"{{\n{deep}{shallow}}}"


def test_an_insert_of_nothing_leaves_no_line(write):
    write(t="{\n  ${lines}\n}")
    assert template.render("t", lines=[]) == "{\n}"


def test_a_macro_of_another_template_is_inserted_without_its_own_indentation(write):
    write(
        t='# from "other" import twice with context\n{\n    ${twice("x")}\n}',
        other="# macro twice(x)\n  ${x} = ${factor};\n  {\n    ${x} += 1;\n  }\n# endmacro",
    )
    assert template.render("t", factor=2) == "{\n    x = 2;\n    {\n      x += 1;\n    }\n}"


def test_a_line_is_repeated_for_each_of_its_indices(write):
    write(t="# set each_i = range(2)\n# set each_j = range(3)\na_$i_$j = b[${i * 3 + j}] + $iu;\nc_$j;")
    first = [f"a_{i}_{j} = b[{i * 3 + j}] + {i}u;" for i in range(2) for j in range(3)]
    assert template.render("t").splitlines() == [*first, "c_0;", "c_1;", "c_2;"]


def test_comments_are_no_part_of_the_result(write):
    write(t="// about $i\na = ${7 // 2}; // the half\n  // of b\n# set each_i = range(2)\nc_$i; // $i\n${a}  // last")
    assert template.render("t", a="d;") == "a = 3;\nc_0;\nc_1;\nd;"


def test_a_value_that_is_missing(write):
    write(t="${lines}")
    with pytest.raises(jinja2.UndefinedError, match="'lines' is undefined"):
        template.render("t")


def test_the_indices_of_a_repeated_line_are_missing(write):
    write(t="a_$i;")
    with pytest.raises(jinja2.UndefinedError, match="'each_i' is undefined"):
        template.render("t")


def test_a_value_that_nothing_mentions(write):
    write(t='# from "other" import m with context\n${m()}', other="# macro m()\n${inner};\n# endmacro")
    assert template.render("t", inner="a") == "a;"
    with pytest.raises(ValueError, match="template t does not mention lost"):
        template.render("t", inner="a", lost="b")


def test_there_is_no_such_template(write):
    write()
    with pytest.raises(FileNotFoundError, match=r"t\.wgsl\.jinja"):
        template.render("t")


def test_every_template_of_the_package_can_be_read():
    """Those that are rendered are seen in golden texts; this finds what no kernel uses yet."""
    folder = Path(template.__file__).parent
    names = [path.relative_to(folder).as_posix().removesuffix(".wgsl.jinja") for path in folder.rglob("*.wgsl.jinja")]
    assert names
    for name in names:
        template._loaded(name)
