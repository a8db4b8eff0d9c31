"""WGSL templates: kernels whose text depends on sizes that a shader cannot loop over, as tiles of named registers.

``<name>.wgsl.jinja`` is WGSL with Jinja in it (https://jinja.palletsprojects.com), as Inductor's templates of kernels
are Python with Jinja in it. Its signs are those that WGSL does not use:

* ``# for``, ``# if``, ``# set``, ``# macro``, ``# from "folder/name" import macro with context`` are statements, each a
  line of its own.
* ``${expression}`` is its value. An insert, which has a line to itself, may have many lines, each indented as this one.
* ``$i``, where the letter may be another, repeats its line: it stands for one line for each ``i`` of ``each_i``.

Comments are WGSL's, and no part of the result. Every name that a template mentions has to be given, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from textwrap import dedent, indent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment, Template

_COMMENT = re.compile(r"(\$\{[^}]*\})|[ \t]*//.*")
_INSERT = re.compile(r"( *)\$\{([^}]*)\}")
_INDEX = re.compile(r"\$([a-z])")


def render(name: str, **values: object) -> str:
    """The text of the template ``kernels/<name>.wgsl.jinja`` with ``values``.

    Raises ValueError for a value that the template does not mention, jinja2.UndefinedError for one that it misses.
    """
    template, names = _loaded(name)
    if unknown := values.keys() - names:
        raise ValueError(f"template {name} does not mention {', '.join(sorted(unknown))}")
    return "\n".join(line for line in template.render(values).splitlines() if line.strip())


@cache
def _loaded(name: str) -> tuple[Template, frozenset[str]]:
    """A template, and the names in it and in those that it imports from."""
    from jinja2 import meta, nodes

    environment = _environment()
    tree = environment.parse(source(name), name)
    names = {node.name for node in tree.find_all(nodes.Name)}
    names.update(*(_loaded(other)[1] for other in meta.find_referenced_templates(tree) if other))
    code = environment.compile(tree, name, f"{name}.wgsl.jinja")
    return environment.template_class.from_code(environment, code, environment.make_globals(None)), frozenset(names)


@cache
def source(name: str) -> str:
    """The template as Jinja reads it: without comments, its inserts indented and its repeated lines in loops."""
    path = files(__package__) / f"{name}.wgsl.jinja"
    return "\n".join(map(_expanded, path.read_text("utf-8").splitlines()))


def _expanded(line: str) -> str:
    if line.lstrip().startswith("#"):
        return line
    line = _COMMENT.sub(lambda match: match[1] or "", line)
    if insert := _INSERT.fullmatch(line):
        return f"{insert[1]}${{inserted({insert[2]}, {len(insert[1])})}}"
    indices = dict.fromkeys(_INDEX.findall(line))
    if not indices:
        return line
    loops = "".join(f"{{% for {i} in each_{i} %}}" for i in indices)
    return loops + _INDEX.sub(r"${\1}", line) + r'${"\n"}' + "{% endfor %}" * len(indices)


def inserted(lines: str | Iterable[str], width: int) -> str:
    """``lines`` as they stand in a line that is indented by ``width``."""
    text = lines if isinstance(lines, str) else "\n".join(lines)
    return indent(dedent(text).strip("\n"), " " * width).removeprefix(" " * width)


@cache
def _environment() -> Environment:
    # Imported here: most programs have no such kernels.
    from jinja2 import BaseLoader, Environment, StrictUndefined

    class TemplateLoader(BaseLoader):
        """For imports: :func:`_loaded` has what Jinja would read and parse again."""

        def load(self, environment: Environment, name: str, globals: object = None) -> Template:
            return _loaded(name)[0]

    environment = Environment(
        variable_start_string="${",
        variable_end_string="}",
        line_statement_prefix="#",
        undefined=StrictUndefined,
        autoescape=False,
        loader=TemplateLoader(),
    )
    environment.globals["inserted"] = inserted
    return environment
