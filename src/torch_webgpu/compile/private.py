"""The parts of Dynamo, AOTAutograd, Inductor and FX that ``torch.compile`` needs of PyTorch and that are private.

They are imported when they are called: the compiler takes seconds to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import TracebackType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_webgpu.errors import meant_by


def know_originals(dynamo: Any, originals: Mapping[Any, Any]) -> None:
    """Gives Dynamo's rules, which it looks up by the names of functions, to those that are replaced at the moment.

    ``originals``: what is in the place of a function → the function.
    """
    rules = dynamo.trace_rules.get_torch_obj_rule_map()
    rules.update([(originals[found], rules.pop(found)) for found in originals.keys() & rules.keys()])


def on_webgpu(model: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a webgpu tensor takes part in a graph of Dynamo's."""
    return any(map(is_webgpu, tensors_of(model, inputs)))


def is_webgpu(value: Any) -> bool:
    """Whether it is a tensor on webgpu, a fake one included."""
    return isinstance(value, torch.Tensor) and value.device.type == "webgpu"


def tensors_of(model: GraphModule, inputs: Sequence[Any]) -> Iterator[Any]:
    """Inputs, parameters, and what the nodes are examples of."""
    yield from inputs
    yield from model.parameters()
    yield from model.buffers()
    for node in model.graph.nodes:
        yield node.meta.get("example_value")


def aot_autograd(**kwargs: Any) -> Callable[..., Any]:
    """AOTAutograd with these compilers, as a backend."""
    return import_module("torch._dynamo.backends.common").aot_autograd(**kwargs)


def boxed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` as a function of one list of arguments, which it empties: inputs need not live until it returns."""
    return import_module("torch._functorch.aot_autograd").make_boxed_func(fn)


def boxing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of graphs that returns functions as a compiler of AOTAutograd's."""
    return lambda gm, example_inputs: boxed(function(gm))


def donate_no_buffers() -> None:
    """Of the graphs that AOTAutograd compiles: the backward graph writes into no activation, and may run twice."""
    context = import_module("torch._guards").TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def min_cut_partition(*args: Any, **kwargs: Any) -> Any:
    """Which activations the forward pass keeps for the backward pass, and which are computed again."""
    return import_module("torch._functorch.partitioners").min_cut_rematerialization_partition(*args, **kwargs)


def suppresses_errors() -> bool:
    """Whether what cannot be compiled is to run operator by operator: ``torch._dynamo.config.suppress_errors``."""
    return bool(import_module("torch._dynamo.config").suppress_errors)


def compiler_failures() -> tuple[type[Exception], ...]:
    """What Dynamo raises for what it cannot compile as one graph, before anything has run."""
    errors = import_module("torch._dynamo.exc")
    return errors.TorchDynamoException, errors.FailOnRecompileLimitHit


def settings(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Inductor's configuration with these. Raises RuntimeError for what it does not know."""
    config: Any = import_module("torch._inductor.config")
    try:
        chosen: dict[str, Any] = torch._TorchCompileInductorWrapper(mode, dict(options or {}), None).config
    except RuntimeError as error:
        if hint := meant_by(str(error)):
            raise RuntimeError(f"{hint.strip(' ()')} {error}") from None
        raise
    return {**config.get_config_copy(), **chosen}


def parameters_of(model: GraphModule, inputs: Sequence[Any]) -> Callable[[Node], bool]:
    """Of the inputs of the ATen graph of a graph of Dynamo's, whether one is a module's parameter or buffer.

    Dynamo makes them its graph's inputs, or with Inductor's own ``freezing`` its attributes; no others are meant that
    it calls static, such as caches of keys and values.
    """
    places = [node for node in model.graph.nodes if node.op == "placeholder"]
    by_key: dict[Any, tuple[Any, Any]] = {
        k: (t, getattr(node, "_dynamo_source", None)) for k, (node, t) in enumerate(zip(places, inputs))
    }
    sources = getattr(model, "_param_name_to_source", {})
    by_key |= {name: (t, sources.get(name)) for name, t in (*model.named_parameters(), *model.named_buffers())}

    def is_parameter(node: Node) -> bool:
        """By what AOTAutograd says that the input was: Dynamo's input of a number, or attribute of a name."""
        origin = node.meta.get("desc")
        key = getattr(origin, "idx", getattr(origin, "target", None))
        return key in by_key and is_owned(*by_key[key])

    return is_parameter


def is_owned(tensor: Any, source: Any) -> bool:
    """Whether a tensor is a module's parameter or buffer, by where Dynamo found it."""
    return isinstance(tensor, torch.nn.Parameter) or (source is not None and "._buffers[" in source.name)


def running(gm: GraphModule, traceback: TracebackType | None) -> list[Node]:
    """The node whose call, in the code that was generated for a graph, an error has come out of, if that is known."""
    code, numbers, first = gm.forward.__code__, getattr(gm, "_lineno_map", None), getattr(gm, "_prologue_start", None)
    while traceback is not None and numbers and first is not None:
        if traceback.tb_frame.f_code is code:
            number = numbers.get(traceback.tb_lineno - first)
            return [] if number is None else [list(gm.graph.nodes)[number]]
        traceback = traceback.tb_next
    return []


def without_fakes() -> AbstractContextManager[Any]:
    """Where tensors are what they are, also while a graph of fake ones is compiled."""
    found: AbstractContextManager[Any] = import_module("torch._subclasses.fake_tensor").unset_fake_temporarily()
    return found


def functions_over_scores(function: Callable[..., Any], read: int) -> Callable[..., Any]:
    """FlexAttention's function of a batch, a head, a query, a key and so many tensors that it reads, over all."""
    vmap = import_module("torch.nn.attention.flex_attention")._vmap_for_bhqkv
    found: Callable[..., Any] = vmap(function, prefix=(), suffix=(None,) * read)
    return found


def indexing_by_tensors() -> AbstractContextManager[Any]:
    """Where functions that are vectorised index by tensors of no dimensions."""
    found: AbstractContextManager[Any] = import_module(
        "torch._dynamo._trace_wrapped_higher_order_op"
    ).TransformGetItemToIndex()
    return found


def fake_mode_of(values: Sequence[Any]) -> AbstractContextManager[Any]:
    """The mode in which fake tensors among these were made, as a context."""
    return import_module("torch._guards").detect_fake_mode(values) or nullcontext()


def unknown_sizes(value: Any) -> set[Any]:
    """The symbols that depend on data in a fake tensor's size, or in a number."""
    return set(import_module("torch.fx.experimental.symbolic_shapes").free_unbacked_symbols(value))


def same(one: Any, other: Any) -> bool:
    """Whether two sizes are equal for all values of the symbols in them. Asks without a guard."""
    return bool(import_module("torch.fx.experimental.symbolic_shapes").statically_known_true(one == other))
