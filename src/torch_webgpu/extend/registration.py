"""Operators as PyTorch sees them: one ``torch.library.Library`` each, with every kernel that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.torch_abi import BACKEND_KEY

from .autograd import autograd_kernel, derivative_of, guarded, mutating_kernel
from .backward import Backward, derive
from .derivative import NoDerivativeError
from .elementwise import Elementwise, ElementwiseKernel, device_of
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


def batched(overload: OpOverload, operator: Elementwise) -> Callable[..., Any]:
    """The rule of ``torch.vmap``: the batch is one more dimension, in front, to which all broadcast."""
    signature = operator.signature

    def rule(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [k for k in range(len(args)) if isinstance(args[k], torch.Tensor)]
        logical = {k: args[k].dim() - (in_dims[k] is not None) for k in tensors}
        rank = max(logical.values())
        moved = list(args)
        for k in tensors:
            if in_dims[k] is not None:
                t = args[k].movedim(in_dims[k], 0)
                moved[k] = t.reshape(t.shape[0], *[1] * (rank - logical[k]), *t.shape[1:])
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
