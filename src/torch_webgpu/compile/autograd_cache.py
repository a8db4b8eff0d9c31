"""What AOTAutograd makes of a graph, kept in PyTorch's own cache: a second process derives no gradients again.

``torch._functorch``'s ``AOTAutogradCache`` keeps what compilers return for the forward and the backward graph if they
return an ``OutputCode``, and looks them up by the graph of Dynamo's, its inputs, autograd's and autocast's state, and
the settings of the compilers. Here an ``OutputCode`` is the graph of ATen operators as it was handed over, with what
suffices to find its plans, which have files of their own (``cache.py``): where these are, the graph is not read. What
decides how operators decompose on this device is made part of the key as a pass of Inductor's would be, by its
``uuid``.

Not kept are graphs with symbols in their sizes, whose guards would have to be kept, too, with functions of functions,
and of tensors made of tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pickle import UnpicklingError
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx._graph_pickler import GraphPickler, Options
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_webgpu.aten.dispatch import definitions
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.tracing import planning

from .cache import folder, sources
from .compiled_graph import CompiledGraph, Outline
from .in_place import any_symbols
from .partition import values
from .private import donate_no_buffers, without_fakes

Compile = Callable[[GraphModule], Callable[..., Any]]
Resume = Callable[[Outline, Callable[[], GraphModule]], Callable[..., Any]]
_log = logging.getLogger("torch_webgpu")
_META = ("val", "stack_trace")
_SETTINGS = {
    "bundled_autograd_cache": True,  # what a compiler returns is part of the entry, and not Inductor's to find
    "force_non_lazy_backward_lowering": True,  # an entry is written once, with both graphs
}


class GraphCode(OutputCode):
    """A compiled graph that can be kept.

    ``gm``: the graph of ATen operators. ``compile`` makes a function of it, and may change it; ``resume`` one of the
    outline of what that made in another process, and of what returns the graph when it is asked for: reading a graph
    takes longer than all else that is found on disk. Both have names that pickle can find. ``index``: the device's.

    It is read only where :func:`circumstances` are those that it was made in: PyTorch's cache has these in its keys,
    Dynamo's packages (``torch._dynamo.config.caching_precompile``) have not.
    """

    def __init__(self, gm: GraphModule, compile: Compile, resume: Resume, index: int) -> None:
        super().__init__()
        self._boxed_call = True
        self._made_for = index, circumstances(index)
        self._compile, self._resume = compile, resume
        self._kept = pickled(gm)
        self._run: Callable[..., Any] | None = compile(gm)
        self._outline = self._run.outline if isinstance(self._run, CompiledGraph) else None

    def __call__(self, inputs: Sequence[Any]) -> Any:
        assert self._run is not None
        return self._run(*inputs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        index, made_for = state["_made_for"]
        if circumstances(index) != made_for:
            raise UnpicklingError("a graph was compiled by another version of torch_webgpu, or for another adapter")
        self.__dict__.update(state)

    def prepare_for_serialization(self) -> None:
        """Called of a copy, before it is pickled."""
        if self._kept is None:
            raise BypassAOTAutogradCache("the graph cannot be written down")
        self._run = None

    def post_compile(self, *_: Any) -> None:
        """Called of what was kept."""
        if self._run is None:
            assert self._kept is not None
            graph = partial(read, self._kept)
            self._run = self._compile(graph()) if self._outline is None else self._resume(self._outline, graph)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""


def circumstances(index: int) -> str:
    """What decides, beside a graph and PyTorch's state, what is made of it on a device, in every process."""
    return sha256(f"{sources()}\0{definitions.digest()}\0{planning(engine(), index)!r}".encode()).hexdigest()


def pickled(gm: GraphModule) -> bytes | None:
    """A graph with its nodes' fake tensors; None where it is not to be kept."""
    if any(has_symbols(v) for node in gm.graph.nodes for v in values(node.meta.get("val"))):
        return None
    # What brings effects in order is not in PyTorch's entries, and what calls functions is none of these graphs' nodes.
    if any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in gm.graph.nodes):
        return None
    try:
        with without_fakes():  # constants are no fake tensors
            return GraphPickler.dumps(gm, Options(ops_filter=None, node_metadata_key_filter=_META.__contains__))
    except Exception as error:  # noqa: BLE001 - whatever a program's graph may hold
        _log.info("torch.compile: a graph is not kept on disk: %s", error)
        return None


def read(kept: bytes) -> GraphModule:
    """The graph that was pickled."""
    gm = GraphPickler.loads(kept, FakeTensorMode())
    assert isinstance(gm, GraphModule)
    gm.recompile()
    return gm


def has_symbols(value: Any) -> bool:
    """Whether a fake tensor's layout, or a number, is symbolic."""
    if isinstance(value, torch.Tensor):
        return any_symbols(value) or has_symbols(value.storage_offset())
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def keeps(inputs: Sequence[Any]) -> bool:
    """Whether the graph of these inputs is looked up and kept: not where plans are not.

    Nor where two inputs lie in one storage. AOTAutograd makes one input of them if one is written, by where they lie in
    it, and PyTorch's key does not tell that.
    """
    config = torch._functorch.config
    storages = [t.untyped_storage()._cdata for t in strided(inputs)]
    return (
        folder() is not None
        and config.enable_autograd_cache
        and all(hasattr(config, name) for name in _SETTINGS)
        and len(set(storages)) == len(storages)
        and not any(map(is_traceable_wrapper_subclass, inputs))
    )


def strided(inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors that have a storage."""
    return [t for t in inputs if isinstance(t, torch.Tensor) and t.layout is torch.strided]


def keeping(compile: Compile, resume: Resume, index: int) -> Any:
    """``compile`` as a compiler of AOTAutograd's that keeps what it makes: see :class:`GraphCode`."""

    def code(gm: GraphModule, example_inputs: Sequence[Any]) -> GraphCode:
        donate_no_buffers()
        return GraphCode(gm, compile, resume, index)

    return SerializableAOTDispatchCompiler(GraphCode, code)


class _Key(CustomGraphPass):
    """Does nothing, under a name that goes into the cache's keys."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def __call__(self, graph: Graph) -> None:
        pass

    def uuid(self) -> bytes:
        return self._name


@contextmanager
def keyed(inputs: Sequence[Any], index: int, *choices: bool) -> Iterator[None]:
    """While AOTAutograd looks up and keeps the graph of these inputs, for device ``index``, compiled so."""
    about: list[Any] = [(t.storage_offset(), t.is_leaf, t._is_view()) for t in strided(inputs)]
    # PyTorch's key has this since 2.12; before, a graph for float16 was found for bfloat16.
    about += [(d, torch.get_autocast_dtype(d)) for d in ("webgpu", "cpu") if torch.is_autocast_enabled(d)]
    key = _Key(sha256(f"{circumstances(index)}\0{choices}{about}".encode()).digest())
    with (
        torch._functorch.config.patch(_SETTINGS),
        torch._inductor.config.patch(post_grad_custom_post_pass=key),
    ):
        yield
