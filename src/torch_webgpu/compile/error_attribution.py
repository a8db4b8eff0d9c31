"""Whose fault an error in a compiled graph is: nodes of the graph, and lines of the program that they came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.fx import GraphModule, Node

from .private import running


def name(error: Exception, nodes: Iterable[Node]) -> None:
    """Adds to an error's message which nodes it happened in and which lines these are of, as FX's interpreter does."""
    if not error.args or not isinstance(error.args[0], str):
        return
    lines = [line for node in dict.fromkeys(nodes) for line in (f"While executing {node.format_node()}", origin(node))]
    if lines:
        error.args = "\n".join((error.args[0], "", *filter(None, lines))), *error.args[1:]


def origin(node: Node) -> str:
    """The innermost line of the program that a node came from, as in a traceback; "" if that is not known."""
    frames = (node.stack_trace or "").strip("\n").split("\n")
    last = max((n for n, line in enumerate(frames) if line.lstrip().startswith('File "')), default=len(frames))
    return "\n".join(frames[last:])


def naming(gm: GraphModule) -> Callable[..., Any]:
    """The graph's function, operator by operator; what it raises names the node."""

    def run(*args: Any) -> Any:
        try:
            return gm.forward(*args)
        except Exception as error:
            name(error, running(gm, error.__traceback__))
            raise

    return run
