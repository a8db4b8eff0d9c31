"""Operators as PyTorch sees them: one ``torch.library.Library`` each, with every kernel that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.recorded_once import record_once
from torch_webgpu.aten.dispatch.torch_abi import BACKEND_KEY

from .autograd import autograd_kernel, derivative_of, guarded, mutating_kernel, without_derivative
from .backward import Backward, derive
from .derivative import NoDerivativeError
from .elementwise import Elementwise, ElementwiseKernel, device_of, laid_out, single
from .reduction import KEEPDIM, Pieces, Reducing, kernel_of, piece
from .shader_op import Shader
from .signature import Signature

AUTOGRAD = "Autograd"
DEVICES = {"CPU": "cpu", "CUDA": "cuda", BACKEND_KEY: "webgpu"}
"""The dispatch keys' names of devices with autocast."""

Autocast = torch.dtype | str | None
"""What autocast brings floating-point tensors to: a dtype, "promote" for the widest of them, or None for nothing."""


class Registration:
    """What one operator and those derived from it have registered with PyTorch. ``remove`` undoes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.namespace, self.base = name.split("::")
        self.derived: list[str] = []
        self.overloads: dict[str, OpOverload] = {}
        self._library = torch.library.Library(self.namespace, "FRAGMENT")

    def define(self, name: str, signature: str) -> OpOverload:
        """An operator with this signature; of several the first is the one that is asked for."""
        base = name.split("::")[1]
        self._library.define(f"{base}{signature}", tags=(torch.Tag.pt2_compliant_tag,))
        overload = getattr(getattr(torch.ops, self.namespace), base).default
        self.overloads[name] = overload
        if name != self.name:
            self.derived.append(name)
        return overload

    def impl(self, name: str, kernel: Callable[..., Any], key: str) -> None:
        self._library.impl(name.split("::")[1], kernel, key)

    def fake(self, name: str, fn: Callable[..., Any]) -> None:
        torch.library.register_fake(name, fn, lib=self._library)

    def vmap(self, name: str, fn: Callable[..., Any]) -> None:
        torch.library.register_vmap(name, fn, lib=self._library)

    def remove(self) -> None:
        """Takes the operators out of PyTorch's dispatcher: calling them is an error from then on."""
        self._library._destroy()

    def private_name(self, suffix: str) -> str:
        """``mylib::_swiglu_backward`` for the backward of ``mylib::swiglu``."""
        return f"{self.namespace}::_{self.base.lstrip('_')}_{suffix}"


def register_elementwise(
    registration: Registration,
    operator: Elementwise,
    autocast: Autocast = None,
    differentiate: Callable[[OpOverload], Callable[..., Any]] | None = None,
) -> OpOverload:
    """Registers an operator that is an expression, for every device, with its derivative.

    ``differentiate(overload)``: its results with their derivative, where that is not derived here.
    """
    name, signature = operator.name, operator.signature
    outputs = 0 if signature.mutated else operator.outputs
    overload = registration.define(name, signature.schema(outputs))
    kernel = ElementwiseKernel(overload, operator)
    registration.fake(name, operator.fake)
    registration.impl(name, operator.on_host, "CompositeExplicitAutograd")
    registration.impl(name, kernel.kernel, BACKEND_KEY)
    if signature.mutated:
        registration.impl(name, mutating_kernel(overload, signature), AUTOGRAD)
    else:
        apply = differentiate(overload) if differentiate else automatic(registration, operator, overload)
        composed = None if differentiate else operator.composed
        above = autograd_kernel(overload, signature, apply, composed)
        registration.impl(name, above, AUTOGRAD)
        registration.impl(name, guarded(above, kernel), f"{AUTOGRAD}{BACKEND_KEY}")
        registration.vmap(name, batched(overload, operator))
    register_autocast(registration, overload, signature, autocast)
    return overload


def automatic(registration: Registration, operator: Elementwise, overload: OpOverload) -> Callable[..., Any]:
    """The operator's results with the derivative of its expression, which is an operator, too.

    That of the operator itself is registered with it; those of backwards when they are first needed.
    """
    base = operator.name.split("::")[1].lstrip("_")
    name = f"{registration.namespace}::_{base}_backward"
    derived: list[Backward | str] = []

    def derivative() -> Backward | str:
        if not derived:
            try:
                derived.append(derive(operator, name) or "no gradient flows through it")
            except NoDerivativeError as reason:
                derived.append(f"{reason}. Pass backward=")
        return derived[0]

    def backward() -> OpOverload:
        found = registration.overloads.get(name)
        if found is None:
            how = derivative()
            assert isinstance(how, Backward)
            found = register_elementwise(registration, how.operator)
        return found

    if operator.name == registration.name:
        if isinstance(derivative(), Backward):
            backward()
        return derivative_of(overload, operator.signature, derivative(), backward)
    functions: list[Callable[..., Any]] = []

    def apply(*values: Any) -> Any:
        if not functions:
            functions.append(derivative_of(overload, operator.signature, derivative(), backward))
        return functions[0](*values)

    return apply


def register_reduction(
    registration: Registration,
    operator: Reducing,
    autocast: Autocast = None,
    differentiate: Callable[[OpOverload], Callable[..., Any]] | None = None,
) -> OpOverload:
    """Registers a reduction for every device. Its derivative is that of its composition, unless it is said here."""
    name, signature = operator.name, operator.signature
    groups = {"prologue": operator.prologue, "epilogue": operator.epilogue, "map": operator.maps}
    parts = {
        part: tuple([
            register_elementwise(registration, piece(operator, registration.private_name(f"{part}_{k}"), tree))
            for k, tree in enumerate(trees)
        ])
        for part, trees in groups.items()
    }  # fmt: skip
    composed = Pieces(operator, parts["prologue"], parts["epilogue"], parts["map"])
    overload = registration.define(name, signature.schema(operator.outputs))

    def on_host(*args: Any, **kwargs: Any) -> Any:
        results, fakes = composed(*args, **kwargs), operator.fake(*args, **kwargs)
        pairs = zip(results, fakes, strict=True) if isinstance(results, tuple) else [(results, fakes)]
        return single([laid_out(r, fake.shape, fake.stride()) for r, fake in pairs])

    def apply(*values: Any) -> Any:
        args, kwargs = signature.call(values)
        return composed(*args, **kwargs)

    registration.fake(name, operator.fake)
    registration.impl(name, on_host, "CompositeExplicitAutograd")
    registration.impl(name, kernel_of(overload, operator), BACKEND_KEY)
    own = differentiate(overload) if differentiate else apply
    above = autograd_kernel(overload, signature, own, None if differentiate else composed)
    registration.impl(name, above, AUTOGRAD)
    registration.vmap(name, batched_reduction(composed))
    register_autocast(registration, overload, signature, autocast)
    return overload


def register_shader(
    registration: Registration,
    operator: Shader,
    autocast: Autocast = None,
    differentiate: Callable[[OpOverload], Callable[..., Any]] | None = None,
) -> OpOverload:
    """Registers a kernel of WGSL for webgpu, and its reference for every other device."""
    name, signature = operator.name, operator.signature
    overload = registration.define(name, signature.schema(operator.outputs))
    registration.fake(name, operator.fake)
    registration.impl(name, operator.on_host, "CompositeExplicitAutograd")
    registration.impl(name, record_once(operator.run), BACKEND_KEY)
    if signature.mutated:
        registration.impl(name, mutating_kernel(overload, signature), AUTOGRAD)
    else:
        reason = "a kernel's gradient is not derived. Pass backward="
        apply = differentiate(overload) if differentiate else without_derivative(overload, signature, reason)
        registration.impl(name, autograd_kernel(overload, signature, apply, None), AUTOGRAD)
    register_autocast(registration, overload, signature, autocast)
    return overload


def batched_reduction(composed: Pieces) -> Callable[..., Any]:
    """The rule of ``torch.vmap``: the batch is one more dimension, in front, which stays."""
    operator = composed.operator

    def rule(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        values = operator.signature.bind(args, kwargs)
        moved = batch_in_front(args, in_dims)
        logical = [v[0] if isinstance(v, torch.Tensor) and in_dims[k] is not None else v for k, v in enumerate(moved)]
        shape = torch.broadcast_shapes(*[t.shape for t in logical if isinstance(t, torch.Tensor)])
        dims = tuple([d + 1 for d in operator.dims(values, len(shape))])
        found = operator.dtypes([*logical, *values[len(args) :]])
        keep = operator.option(values, KEEPDIM, False)
        results = composed.over([*moved, *values[len(args) :]], dims, keep, found)
        return (results, (0,) * len(results)) if isinstance(results, tuple) else (results, 0)

    return rule


def batch_in_front(args: Sequence[Any], in_dims: Sequence[int | None]) -> list[Any]:
    """Arguments that broadcast in all but their batch, which comes first; those without one as they are."""
    tensors = [k for k in range(len(args)) if isinstance(args[k], torch.Tensor)]
    logical = {k: args[k].dim() - (in_dims[k] is not None) for k in tensors}
    rank = max(logical.values())
    moved = list(args)
    for k in tensors:
        dim = in_dims[k]
        if dim is not None:
            t = args[k].movedim(dim, 0)
            moved[k] = t.reshape(t.shape[0], *[1] * (rank - logical[k]), *t.shape[1:])
    return moved


def batched(overload: OpOverload, operator: Elementwise) -> Callable[..., Any]:
    """The rule of ``torch.vmap``: the batch is one more dimension, in front, to which all broadcast."""
    signature = operator.signature

    def rule(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        moved = batch_in_front(args, in_dims)
        logical = {k: v.dim() - (in_dims[k] is not None) for k, v in enumerate(args) if isinstance(v, torch.Tensor)}
        # A tensor without dimensions yields in type promotion; one of a batch of them has to, as well.
        values = [torch.empty((1,) * logical[k], dtype=v.dtype, device="meta") if k in logical else v
                  for k, v in enumerate(signature.bind(args, kwargs))]  # fmt: skip
        results = overload(*moved, **kwargs)
        given = results if isinstance(results, tuple) else (results,)
        cast = [r.to(dtype) for r, dtype in zip(given, operator.dtypes(values), strict=True)]
        return (cast[0], 0) if not isinstance(results, tuple) else (tuple(cast), (0,) * len(cast))

    return rule


def register_autocast(
    registration: Registration, overload: OpOverload, signature: Signature, autocast: Autocast
) -> None:
    """What autocast does before the operator is called."""
    if autocast is None:
        return

    def widest(tensors: Sequence[torch.Tensor]) -> torch.dtype:
        dtype = tensors[0].dtype
        for t in tensors[1:]:
            dtype = torch.promote_types(dtype, t.dtype)
        return dtype

    for key, device in DEVICES.items():

        def kernel(*args: Any, device: str = device, **kwargs: Any) -> Any:
            floats = [v for v in args if isinstance(v, torch.Tensor) and v.is_floating_point()]
            if floats and device_of(floats).type == device:
                dtype = autocast if isinstance(autocast, torch.dtype) else widest(floats)
                args = tuple([v.to(dtype) if any(v is f for f in floats) else v for v in args])
            with torch.autocast(device, enabled=False):
                return overload(*args, **kwargs)

        registration.impl(overload.name(), kernel, f"Autocast{key}")
