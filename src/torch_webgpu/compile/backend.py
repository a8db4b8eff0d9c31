"""The ``webgpu`` backend of ``torch.compile``: what Dynamo hands over, AOTAutograd takes apart, and plans run.

``torch.compile(model)`` with no backend named comes here, too, when the model is on webgpu (``register.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from . import (
    autograd_cache,
    causal_masks,
    copies,
    cross_entropy,
    detached,
    flex_attention,
    graph_patterns,
    in_place,
    memory_formats,
    padded_products,
    summed_parts,
)
from .compiled_graph import CompiledGraph, Outline, Region
from .counts import COUNTS
from .freezing import freeze
from .partition import values
from .private import aot_autograd, boxing, is_webgpu, min_cut_partition, parameters_of, settings, tensors_of


def webgpu(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's; what ``torch.compile(..., backend="webgpu")`` calls.

    ``options`` and ``mode`` are Inductor's, which raises RuntimeError for others. Of them ``freezing``
    (:mod:`.freezing`) and ``layout_optimization`` (:mod:`.memory_formats`) change something: there is one way to run a
    plan.
    """
    chosen = settings(mode, options)
    freezes = chosen["freezing"] and not torch.is_grad_enabled()
    is_parameter = parameters_of(gm, example_inputs) if freezes else None
    lays_out = bool(chosen["layout_optimization"])
    inference = partial(compile_inference, lays_out=lays_out, is_parameter=is_parameter)
    keep = is_parameter is None and autograd_cache.keeps(example_inputs)
    index = index_of(tensors_of(gm, example_inputs))

    def compiler(compile: autograd_cache.Compile, resume: autograd_cache.Resume) -> Any:
        return autograd_cache.keeping(compile, resume, index) if keep else boxing(compile)

    backend = aot_autograd(
        fw_compiler=compiler(compile_graph, resume_graph),
        bw_compiler=compiler(compile_graph, resume_graph),
        inference_compiler=compiler(inference, partial(resume_inference, lays_out=lays_out)),
        partition_fn=partial(partition_joint, lays_out=lays_out),
        keep_inference_input_mutations=True,
    )
    with autograd_cache.keyed(example_inputs, index, lays_out) if keep else nullcontext():
        return backend(gm, example_inputs)


def index_of(tensors: Iterable[Any]) -> int:
    """The number of the first webgpu device among them; 0 where there is none."""
    return next((t.device.index or 0 for t in tensors if is_webgpu(t)), 0)


def compile_graph(gm: GraphModule, is_parameter: Callable[[Node], bool] | None = None) -> Callable[..., Any]:
    """A graph of ATen operators as a function.

    ``is_parameter``: of an input, whether what depends on such alone is computed once.
    """
    if not any(is_webgpu(v) for node in gm.graph.nodes for v in values(node.meta.get("val"))):
        return gm.forward
    COUNTS.graphs += 1
    return compiled(gm) if is_parameter is None else freeze(gm, is_parameter, compiled)


def compile_inference(
    gm: GraphModule, lays_out: bool, is_parameter: Callable[[Node], bool] | None = None
) -> Callable[..., Any]:
    """A graph without a backward pass as a function."""
    return compile_graph(prepared(gm, lays_out), is_parameter)


def partition_joint(gm: GraphModule, *args: Any, lays_out: bool, **kwargs: Any) -> Any:
    """The forward and the backward graph of a joint one."""
    detached.apply(gm)
    COUNTS.patterns.update(cross_entropy.apply(gm))
    summed_parts.apply(gm)
    return min_cut_partition(prepared(gm, lays_out), *args, **kwargs)


def prepared(gm: GraphModule, lays_out: bool) -> GraphModule:
    """A graph with what only all of it shows: masks that are causal, products whose lines are padded, and the layout of
    its convolutions; without what nobody reads.
    """
    flex_attention.forget_lists(gm)
    causal_masks.apply(gm)
    COUNTS.patterns.update(padded_products.apply(gm))
    return memory_formats.apply(gm) if lays_out else gm


def compiled(gm: GraphModule) -> CompiledGraph:
    """A graph with what patterns find in it, compiled."""
    return CompiledGraph.of(rewritten(gm))


def resume_graph(outline: Outline, graph: Callable[[], GraphModule]) -> CompiledGraph:
    """What :func:`compile_graph` made in another process, of a graph that is rewritten here when it is needed."""
    COUNTS.graphs += 1
    return CompiledGraph(Region(outline, lambda: rewritten(graph())))


def resume_inference(outline: Outline, graph: Callable[[], GraphModule], lays_out: bool) -> CompiledGraph:
    """What :func:`compile_inference` made in another process: its plans are of the prepared graph."""
    return resume_graph(outline, lambda: prepared(graph(), lays_out))


def rewritten(gm: GraphModule) -> GraphModule:
    """A graph with what patterns find in it."""
    COUNTS.patterns.update(flex_attention.apply(gm))
    copies.apply(gm)
    in_place.apply(gm)
    COUNTS.patterns.update(graph_patterns.apply(gm))
    return gm
