"""``make_graphed_callables``: modules and functions whose forward and backward passes are captured graphs.

The specification is torch.cuda.make_graphed_callables (torch/cuda/graphs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import arg_tree_leaves, tree_flatten, tree_leaves, tree_unflatten

from torch_webgpu.engine.graph_memory import PoolHandle

from .device import synchronize
from .graphs import Graph, graph, graph_pool_handle

Tensors = tuple[torch.Tensor, ...]
OptionalTensors = tuple[torch.Tensor | None, ...]


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolHandle | None = None,
) -> Any:
    """Versions of ``callables`` whose forward and backward passes are each one replay of a captured graph.

    ``callables``: a function or module, or a tuple of them in the order in which they will run; ``sample_args``: its
    tuple of tensors, or a tuple of such tuples. Modules are changed in place (and run as they were while their
    ``training`` differs from what was captured), functions are returned anew. Real arguments have the shapes, dtypes
    and ``requires_grad`` of the samples; they are copied into the samples' memory. Outputs are overwritten by the next
    call. ``allow_unused_input``: an input that the outputs do not depend on is no error. There is no double backward.
    """
    if torch.is_autocast_enabled("webgpu") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )
    single = not isinstance(callables, tuple)
    functions = (callables,) if single else callables
    samples = (sample_args,) if single else sample_args
    graphed = [_Graphed(function, args) for function, args in zip(functions, samples, strict=True)]
    handle = graph_pool_handle() if pool is None else pool
    synchronize()
    for one in graphed:
        one.warm_up(num_warmup_iters, allow_unused_input)
    synchronize()
    # They share memory: captured in the order they will run in, so that no replay overwrites what another needs.
    for one in graphed:
        one.capture_forward(handle)
    for one in reversed(graphed):
        one.capture_backward(handle, allow_unused_input)
    made = tuple([one.install() for one in graphed])
    return made[0] if single else made


class _Graphed:
    """One callable: its static inputs and outputs, and the graphs that lead from the ones to the others and back."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any]) -> None:
        self.function = function
        self.args = args
        inputs = tuple(arg_tree_leaves(*args))
        if not all(isinstance(arg, torch.Tensor) for arg in inputs):
            raise AssertionError(
                "sample_args for each callable must contain only Tensors. Other types are not allowed."
            )
        self.n_args = len(inputs)
        self.parameters: Tensors = ()
        if isinstance(function, torch.nn.Module):
            _check_module(function)
            self.parameters = tuple(function.parameters())
        self.inputs: Tensors = inputs + self.parameters
        self.outputs: Tensors = ()
        self.output_spec: Any = None
        self.grad_outputs: OptionalTensors = ()
        self.grad_inputs: OptionalTensors = ()
        self.forward_graph, self.backward_graph = Graph(), Graph()

    def warm_up(self, iterations: int, allow_unused: bool) -> None:
        """Runs everything eagerly, so that what happens only the first time is not captured."""
        for _ in range(iterations):
            outputs = tree_leaves(self.function(*self.args))
            self._gradients(outputs, [torch.empty_like(o) if o.requires_grad else None for o in outputs], allow_unused)

    def _gradients(self, outputs: Sequence[Any], grads: Sequence[torch.Tensor | None], allow_unused: bool) -> Any:
        """The gradients of the inputs that need one; None if no output has any."""
        needed = tuple(o for o in outputs if o.requires_grad)
        if not needed:
            return None
        return torch.autograd.grad(
            outputs=needed,
            inputs=tuple(i for i in self.inputs if i.requires_grad),
            grad_outputs=tuple(g for g in grads if g is not None),
            only_inputs=True,
            allow_unused=allow_unused,
        )

    def capture_forward(self, pool: PoolHandle) -> None:
        with graph(self.forward_graph, pool=pool):
            results = self.function(*self.args)
        outputs, self.output_spec = tree_flatten(results)
        self.outputs = tuple(outputs)

    def capture_backward(self, pool: PoolHandle, allow_unused: bool) -> None:
        self.grad_outputs = tuple(torch.empty_like(o) if o.requires_grad else None for o in self.outputs)
        gradients = None
        if any(o.requires_grad for o in self.outputs):
            with graph(self.backward_graph, pool=pool):
                gradients = self._gradients(self.outputs, self.grad_outputs, allow_unused)
        grads = iter(gradients or ())
        self.grad_inputs = tuple(next(grads) if i.requires_grad and gradients else None for i in self.inputs)

    def run_forward(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """The static outputs for these inputs."""
        # Parameters are where they were.
        for static, value in zip(self.inputs[: self.n_args], inputs, strict=False):
            if static.data_ptr() != value.data_ptr():
                static.copy_(value)
        self.forward_graph.replay()
        return tuple([o.detach() for o in self.outputs])

    def run_backward(self, grads: Sequence[torch.Tensor]) -> OptionalTensors:
        """The static gradients of the inputs for these gradients of the outputs."""
        for static, value in zip(self.grad_outputs, grads, strict=True):
            if static is not None and static.data_ptr() != value.data_ptr():
                static.copy_(value)
        self.backward_graph.replay()
        return tuple([g if g is None else g.detach() for g in self.grad_inputs])

    def install(self) -> Any:
        """What the caller uses from now on."""
        call = self._autograd_function()
        module = self.function
        if not isinstance(module, torch.nn.Module):
            return call
        captured_training, plain = module.training, module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return (call if module.training == captured_training else plain)(*args, **kwargs)

        module.forward = forward
        return module

    def _autograd_function(self) -> Callable[..., Any]:
        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: torch.Tensor) -> Tensors:
                return self.run_forward(inputs)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, *grads: torch.Tensor) -> OptionalTensors:
                return self.run_backward(grads)

        def call(*args: Any) -> Any:
            outputs = Graphed.apply(*arg_tree_leaves(*args), *self.parameters)
            return tree_unflatten(outputs, self.output_spec)

        return call


def _check_module(module: torch.nn.Module) -> None:
    if module._backward_hooks or module._forward_hooks or module._forward_pre_hooks:
        raise AssertionError(
            "Modules must not have hooks registered at the time they are passed. However, registering hooks "
            "on modules after passing them through make_graphed_callables is allowed."
        )
    if any(buffer.requires_grad for buffer in module.buffers()):
        raise AssertionError(
            "In any module passed to make_graphed_callables, only parameters may be trainable. All buffers must have "
            "``requires_grad=False``."
        )
