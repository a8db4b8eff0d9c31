"""What AOTAutograd makes of a graph, kept in PyTorch's own cache: a second process derives no gradients again.

``torch._functorch``'s ``AOTAutogradCache`` keeps what compilers return for the forward and the backward graph if they
return an ``OutputCode``, and looks them up by the graph of Dynamo's, its inputs, autograd's and autocast's state, and
the settings of the compilers. Here an ``OutputCode`` is the graph of ATen operators as it was handed over, and the
compiled graph is made of it anew; its plans have files of their own (``cache.py``). What decides how operators
decompose on this device is made part of the key as a pass of Inductor's would be, by its ``uuid``.

Graphs with symbols in their sizes are not kept: their guards would have to be, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._guards import detect_fake_mode
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule
from torch.fx._graph_pickler import GraphPickler, Options

from .cache import folder, sources
from .partition import values

Compile = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
_log = logging.getLogger("torch_webgpu")
_META = ("val", "stack_trace")
_SETTINGS = {
    "bundled_autograd_cache": True,  # what a compiler returns is part of the entry, and not Inductor's to find
    "force_non_lazy_backward_lowering": True,  # an entry is written once, with both graphs
}


class GraphCode(OutputCode):
    """A compiled graph that can be kept.

    ``gm``: the graph of ATen operators. ``compile``: makes a function of a list of its inputs of it, by a name that
    pickle can find, and may change the graph.
    """

    def __init__(self, gm: GraphModule, example_inputs: Sequence[Any], compile: Compile) -> None:
        super().__init__()
        self._boxed_call = True
        self._compile = compile
        self._kept = pickled(gm)
        self._run: Callable[..., Any] | None = compile(gm, example_inputs)

    def __call__(self, inputs: Sequence[Any]) -> Any:
        assert self._run is not None
        return self._run(inputs)

    def prepare_for_serialization(self) -> None:
        """Called of a copy, before it is pickled."""
        if self._kept is None:
            raise BypassAOTAutogradCache("the graph cannot be written down")
        self._run = None

    def post_compile(self, example_inputs: Sequence[Any], *_: Any) -> None:
        """Called of what was kept."""
        if self._run is None:
            mode = detect_fake_mode(example_inputs)
            assert self._kept is not None
            assert mode is not None
            gm = GraphPickler.loads(self._kept, mode)
            assert isinstance(gm, GraphModule)
            gm.recompile()
            self._run = self._compile(gm, example_inputs)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""


def pickled(gm: GraphModule) -> bytes | None:
    """A graph with its nodes' fake tensors; None where it is not to be kept."""
    if any(has_symbols(v) for node in gm.graph.nodes for v in values(node.meta.get("val"))):
        return None
    try:
        with unset_fake_temporarily():  # constants are no fake tensors
            return GraphPickler.dumps(gm, Options(ops_filter=None, node_metadata_key_filter=_META.__contains__))
    except Exception as error:  # noqa: BLE001 - whatever a program's graph may hold
        _log.info("torch.compile: a graph is not kept on disk: %s", error)
        return None


def has_symbols(value: Any) -> bool:
    """Whether a fake tensor's layout, or a number, is symbolic."""
    if isinstance(value, torch.Tensor):
        return any(map(has_symbols, (*value.shape, *value.stride(), value.storage_offset())))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def keeps() -> bool:
    """Whether AOTAutograd's cache is in use: not where our own is off."""
    config = torch._functorch.config
    return folder() is not None and config.enable_autograd_cache and all(hasattr(config, name) for name in _SETTINGS)


def compiler(compile: Compile) -> Any:
    """``compile`` as AOTAutograd takes it, so that it keeps what it returns if anything is kept."""

    def code(gm: GraphModule, example_inputs: Sequence[Any]) -> GraphCode:
        return GraphCode(gm, example_inputs, compile)

    return SerializableAOTDispatchCompiler(GraphCode, code) if keeps() else compile


class _Key(CustomGraphPass):
    """Does nothing, under a name that goes into the cache's keys."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def __call__(self, graph: Graph) -> None:
        pass

    def uuid(self) -> bytes:
        return self._name


@contextmanager
def keyed(what_else: object) -> Iterator[None]:
    """While AOTAutograd looks up and keeps graphs. ``what_else``: what decides over them besides PyTorch's state."""
    if not keeps():
        yield
        return
    key = _Key(sha256(f"{sources()}\0{what_else!r}".encode()).digest())
    with (
        torch._functorch.config.patch(_SETTINGS),
        torch._inductor.config.patch(post_grad_custom_post_pass=key),
    ):
        yield
