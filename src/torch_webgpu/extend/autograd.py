"""Derivatives of registered operators, above their kernels: the functions of autograd's dispatch keys.

A call that needs no gradient is recognised here by the same guards as in the kernel (:mod:`.elementwise`), and is then
recorded without a second pass through the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad

from torch_webgpu.aten.dispatch.recipes import Recipes
from torch_webgpu.aten.dispatch.torch_abi import (
    SingleLevelFunction,
    apply_function,
    below_autograd,
    in_transform,
    is_modified,
)
from torch_webgpu.engine.recipe import Recipe

from .backward import Backward, summed_to
from .elementwise import ElementwiseKernel
from .signature import Signature

Kernel = Callable[..., Any]
PLAIN: frozenset[Any] = frozenset({torch.Tensor, torch.nn.Parameter})
"""Tensors whose sizes are numbers, and that are what they look like."""
NO_TENSORS: frozenset[Any] = frozenset(
    {float, int, bool, torch.SymInt, torch.SymFloat, torch.SymBool, list, tuple, type(None)}
)


def any_requires_grad(values: Sequence[Any]) -> bool:
    for v in values:  # noqa: SIM110  a generator costs a call for each
        if v.__class__ not in NO_TENSORS and v.requires_grad:
            return True
    return False


def needs_gradient(args: Sequence[Any]) -> bool:
    """Whether a call is recorded for a backward pass. Numbers come last, but for keywords."""
    return torch.is_grad_enabled() and any_requires_grad(args)


def autograd_kernel(overload: OpOverload, signature: Signature, apply: Kernel, composed: Kernel | None) -> Kernel:
    """The function of an operator's autograd keys.

    ``apply(*values)`` computes results that know their derivative; ``composed(*args, **kwargs)`` does so by operators
    of PyTorch's, for forward-mode; None where that would not have the same derivative.
    """
    count = len(signature.parameters)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if forward_ad._current_level >= 0:
            return composed(*args, **kwargs) if composed is not None else apply(*signature.bind(args, kwargs))
        if needs_gradient(args):
            return apply(*args) if len(args) == count else apply(*signature.bind(args, kwargs))
        with below_autograd():
            return overload(*args, **kwargs)

    return kernel


def guarded(kernel: Kernel, own: ElementwiseKernel) -> Kernel:
    """``kernel``, an autograd key's, for webgpu tensors: calls without gradients are recorded at once.

    A guard compares ``requires_grad``, and the keys that modes and transforms add, with those of the call that it was
    made of. It does not see tangents.
    """
    plain: Recipes[Recipe] = Recipes()
    leaves: Recipes[Recipe] = Recipes()  # calls of tensors that require gradients, made where none are recorded
    of_plain, of_leaves = plain.guarded, leaves.guarded
    is_grad_enabled = torch.is_grad_enabled

    def call(*args: Any, **kwargs: Any) -> Any:
        if forward_ad._current_level < 0 and args and args[0].__class__ in PLAIN:
            shape = args[0].shape
            for guard, run in of_plain.get(shape, ()):
                starts = guard(args, kwargs)
                if starts is not None:
                    result = run((*args, *kwargs.values()) if kwargs else args, starts)
                    if result is not NotImplemented:
                        return result
            if shape in of_leaves and not is_grad_enabled():
                for guard, run in of_leaves[shape]:
                    starts = guard(args, kwargs)
                    if starts is not None:
                        return run((*args, *kwargs.values()) if kwargs else args, starts)
        result = kernel(*args, **kwargs)
        if not is_grad_enabled() or not any_requires_grad(args):
            remember(args, kwargs)
        return result

    def remember(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (is_modified() or in_transform()):
            own.remember(leaves if any_requires_grad(args) else plain, args, kwargs)

    return call


def mutating_kernel(overload: OpOverload, signature: Signature) -> Kernel:
    """The function of the autograd keys of an operator that writes into its arguments, and has no derivative."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any_requires_grad(args):
            raise RuntimeError(
                f"{overload.name()} writes into its arguments, and has no derivative: call it under torch.no_grad(), "
                "as optimizers are"
            )
        with below_autograd():
            result = overload(*args, **kwargs)
        for k in signature.mutated:
            torch.autograd.graph.increment_version(args[k])
        return result

    return kernel


def derivative_of(
    overload: OpOverload, signature: Signature, derived: Backward | str, backward: Callable[[], OpOverload]
) -> Kernel:
    """``apply`` of :func:`autograd_kernel` for a backward that is an operator; where ``derived`` is a reason why there
    is none, results whose backward raises it.
    """

    if isinstance(derived, str):
        return without_derivative(overload, signature, derived)
    how = derived
    has_keywords = any(p.keyword for p in signature.parameters)
    count = len(signature.parameters)

    class Function(SingleLevelFunction):
        # Loops, since each comprehension costs a call.

        @staticmethod
        def forward(ctx: Any, *values: Any) -> Any:
            with below_autograd():
                if has_keywords:
                    args, kwargs = signature.call(values)
                    result = overload(*args, **kwargs)
                else:
                    result = overload(*values)
            kept: list[Any] = []
            numbers: list[Any] = []
            inputs: list[Any] = []
            for k in how.saved:
                (numbers if values[k].__class__ in NO_TENSORS else kept).append(values[k])
            if how.results or result.__class__ is tuple:
                results = result if isinstance(result, tuple) else (result,)
                ctx.mark_non_differentiable(*[r for r in results if not r.is_floating_point()])
                kept.extend([results[j] for j in how.results])
            for k in how.wanted:
                inputs.append((k, values[k].shape, values[k].dtype))  # noqa: PERF401
            ctx.save_for_backward(*kept)
            ctx.numbers, ctx.inputs = numbers, inputs
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            given = grads if len(grads) == len(how.grads) else [grads[j] for j in how.grads]
            gradients = backward()(*given, *ctx.saved_tensors, *ctx.numbers)
            if not isinstance(gradients, tuple):
                gradients = (gradients,)
            found: list[Any] = [None] * count
            needed = ctx.needs_input_grad
            for (k, shape, dtype), gradient in zip(ctx.inputs, gradients):
                if needed[k]:
                    same = gradient.shape == shape and gradient.dtype == dtype
                    found[k] = gradient if same else summed_to(gradient, shape, dtype)
            return tuple(found)

    Function.__name__ = Function.__qualname__ = f"{overload.name().replace('::', '_')}"
    return apply_function(Function)


def without_derivative(overload: OpOverload, signature: Signature, reason: str) -> Kernel:
    """``apply`` of :func:`autograd_kernel` for results whose backward raises."""

    def setup_context(**_: Any) -> None:
        pass

    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(f"{overload.name()} has no derivative: {reason}")

    return function_with(overload, signature, setup_context, backward)


def function_with(
    overload: OpOverload, signature: Signature, setup_context: Callable[..., None] | None, backward: Callable[..., Any]
) -> Kernel:
    """``apply`` of :func:`autograd_kernel` for a backward in Python, as ``torch.library.register_autograd`` has it:
    ``setup_context(ctx, inputs, output)`` and ``backward(ctx, *grads)``.
    """

    class Function(SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, *values: Any) -> Any:
            args, kwargs = signature.call(values)
            with below_autograd():
                result = overload(*args, **kwargs)
            if setup_context is not None:
                positional = tuple([v for p, v in zip(signature.parameters, values) if not p.keyword])
                more = {"keyword_only_inputs": kwargs} if kwargs else {}
                setup_context(ctx=ctx, inputs=positional, output=result, **more)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            found = backward(ctx, *grads)
            gradients = found if isinstance(found, tuple) else (found,)
            return (*gradients, *[None] * (len(signature.parameters) - len(gradients)))

    Function.__name__ = Function.__qualname__ = f"{overload.name().replace('::', '_')}"
    return apply_function(Function)
