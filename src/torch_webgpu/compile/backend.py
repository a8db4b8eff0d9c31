"""The ``webgpu`` backend of ``torch.compile``: what Dynamo hands over, AOTAutograd takes apart, and plans run.

``torch.compile(model)`` with no backend named comes here, too, when the model is on webgpu (``dynamo.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from . import patterns
from .counts import COUNTS
from .dynamo import aot_autograd, boxed, min_cut_partition
from .graph import CompiledGraph


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
    if not any(isinstance(x, torch.Tensor) and x.device.type == "webgpu" for x in found_values(gm)):
        return boxed(gm.forward)
    patterns.apply(gm)
    COUNTS.graphs += 1
    return boxed(CompiledGraph(gm))


def found_values(gm: GraphModule) -> list[Any]:
    """What the graph's nodes stand for: fake tensors and symbols."""
    values: list[Any] = []
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        values += value if isinstance(value, (list, tuple)) else [value]
    return values
