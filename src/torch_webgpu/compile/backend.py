"""The ``webgpu`` backend of ``torch.compile``: what Dynamo hands over, AOTAutograd takes apart, and plans run.

``torch.compile(model)`` with no backend named comes here, too, when the model is on webgpu (``dynamo.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from . import in_place, patterns
from .counts import COUNTS
from .dynamo import aot_autograd, boxed, is_webgpu, min_cut_partition
from .graph import CompiledGraph
from .partition import values


def webgpu(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's; what ``torch.compile(..., backend="webgpu")`` calls.

    ``options`` and ``mode`` are accepted as they are for other backends: there is one way to run a plan.
    """
    backend = aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        inference_compiler=compile_graph,
        partition_fn=min_cut_partition,
        keep_inference_input_mutations=True,
    )
    return backend(gm, example_inputs)


def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A graph of ATen operators as a function of a list of its inputs, which it empties."""
    if not any(is_webgpu(v) for node in gm.graph.nodes for v in values(node.meta.get("val"))):
        return boxed(gm.forward)
    in_place.apply(gm)
    patterns.apply(gm)
    COUNTS.graphs += 1
    return boxed(CompiledGraph(gm))
