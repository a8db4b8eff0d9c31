"""``@torch.webgpu.op``: operators of a program's own, made of WGSL, with everything that PyTorch asks of one."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch import definitions
from torch_webgpu.errors import AlreadyRegisteredError, NotRegisteredError, did_you_mean

from .autograd import derivative_of, function_with
from .backward import Backward, examples, numbered
from .elementwise import Elementwise, Trees
from .reduction import Reducing, Reduction, read
from .registration import Autocast, Registration, register_elementwise, register_reduction, register_shader
from .shader_op import Kernel, Shader, read_kernel
from .signature import Parameter, Signature, SignatureError, signature_of
from .syntax import names_in, parse

Kind = Literal["expression", "reduction", "kernel"]
Described = Elementwise | Reducing | Shader
KINDS: dict[Any, Kind] = {Elementwise: "expression", Reducing: "reduction", Shader: "kernel"}
NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
RESERVED = frozenset({"aten", "prim", "prims", "onnx", "quantized", "torch"})


@dataclass(frozen=True)
class OpDefinition:
    """A registered operator.

    ``name`` is its qualified name, ``schema`` PyTorch's, ``source`` the WGSL it is made of, ``overload`` what is called
    (``torch.ops.mylib.swiglu.default``). ``derived``: the names of the operators that were registered with it, such as
    its backward. ``differentiable``: whether gradients flow through it.
    """

    name: str
    kind: Kind
    schema: str
    source: str
    doc: str
    overload: OpOverload
    derived: tuple[str, ...]
    autocast: Autocast
    differentiable: bool


_definitions: dict[str, OpDefinition] = {}
_registrations: dict[str, Registration] = {}


def registered() -> Mapping[str, OpDefinition]:
    """All operators that are registered, by their qualified names, in the order of their registration."""
    return MappingProxyType(_definitions)


def unregister(name: str) -> None:
    """Removes an operator, and what was derived from it. NotRegisteredError for a name that has none.

    Compiled functions that called it are compiled again, and fail then.
    """
    if name not in _definitions:
        raise NotRegisteredError(f"no operator {name!r} is registered{did_you_mean(name, _definitions)}")
    del _definitions[name]
    definitions.forget(name)
    _registrations.pop(name).remove()
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def op(
    name: str,
    *,
    backward: str | Sequence[str | None] | Mapping[str, str] | Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
    autocast: Autocast = None,
    mutates: Sequence[str] = (),
    replace: bool = False,
) -> Callable[[Callable[..., Any]], OpOverload]:
    """Registers an operator made of WGSL under ``name`` (``"mylib::swiglu"``), and returns what to call.

    The decorated function has a parameter for each argument, annotated as ``Tensor``, ``float``, ``int`` or ``bool``,
    and returns what the operator computes. It is called once, with its parameters' names:

    * a WGSL expression over these names, or a tuple of them for several outputs: an element of the result. Tensors
      broadcast, and dtypes are promoted as PyTorch does. It is computed in the same dispatch as its neighbours.
    * a :class:`~torch_webgpu.extend.reduction.Reduction` (``torch.webgpu.Reduction``): what points contribute, how that
      combines, and what is made of it;
    * a :class:`~torch_webgpu.extend.shader_op.Kernel` (``torch.webgpu.Kernel``): WGSL as ``compile_shader`` takes it.

    The operator runs on every device: on others it is composed of PyTorch's operators. ``torch.compile``, ``export``,
    ``vmap`` and ``autocast`` know it.

    Gradients: those of an expression are derived. ``backward`` says something else: an expression for each tensor (a
    string, a tuple in order, or a mapping by name) over the arguments' names, ``grad`` and ``result`` (of several
    outputs ``grad_0``, …); or, as ``torch.library.register_autograd`` has it, a function ``backward(ctx, *grads)`` with
    ``setup_context(ctx, inputs, output)``; or an operator, called with the gradients and the arguments, which returns
    a gradient for each tensor.

    ``autocast``: the dtype that ``torch.autocast`` brings floating-point tensors to, or "promote" for the widest one of
    them. ``mutates``: the tensors that are written, one for each output; the operator then returns None, and has no
    derivative. ``replace``: an operator of this name makes room.

    Raises AlreadyRegisteredError, SignatureError (a TypeError) for a function that cannot be one, and ExpressionError
    (a ShaderCompileError and ValueError), with line, column and a caret, for an expression that means nothing.
    """
    check_name(name)

    def decorate(function: Callable[..., Any]) -> OpOverload:
        if not callable(function) or isinstance(function, type):
            raise SignatureError(f"{name}: @op decorates a function, not {function!r}")
        signature = signature_of(name, function, mutates)
        computed = function(*[Named(p) for p in signature.names if not keyword(signature, p)],
                            **{p: Named(p) for p in signature.names if keyword(signature, p)})  # fmt: skip
        described = described_by(name, signature, computed)
        derivative = derivative_for(name, described, backward, setup_context)
        free(name, replace)
        registration = Registration(name)
        try:
            own = derivative and derivative(registration)
            if isinstance(described, Reducing):
                overload = register_reduction(registration, described, autocast, own)
            elif isinstance(described, Shader):
                overload = register_shader(registration, described, autocast, own)
            else:
                overload = register_elementwise(registration, described, autocast, own)
        except BaseException:
            registration.remove()
            raise
        keep(name, KINDS[type(described)], registration, overload, function, computed, autocast, bool(backward))
        return overload

    return decorate


def keyword(signature: Signature, name: str) -> bool:
    return any(p.name == name and p.keyword for p in signature.parameters)


class Named(str):
    """A parameter's name, which the decorated function may put into its text."""


def check_name(name: str) -> None:
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise ValueError(f'an operator\'s name is "namespace::name", as in "mylib::swiglu", not {name!r}')
    if name.split("::")[0] in RESERVED:
        raise ValueError(f"{name}: the namespace {name.split('::')[0]!r} is PyTorch's: take one of your own")


def free(name: str, replace: bool) -> None:
    """Makes sure that nothing has this name."""
    if name in _definitions:
        if not replace:
            raise AlreadyRegisteredError(
                f"the operator {name!r} is registered already. replace=True takes its place, unregister({name!r}) "
                "removes it"
            )
        unregister(name)
    namespace, base = name.split("::")
    if hasattr(getattr(torch.ops, namespace), base):
        raise AlreadyRegisteredError(f"PyTorch has an operator {name!r} already, which is none of torch.webgpu.op's")


def described_by(name: str, signature: Signature, computed: Any) -> Described:
    """The operator that the decorated function describes."""
    if isinstance(computed, Reduction):
        return read(name, signature, computed)
    if isinstance(computed, Kernel):
        return read_kernel(name, signature, computed)
    for p in signature.parameters:
        if not (p.is_tensor or p.is_number):
            raise SignatureError(f"{name}: {p.name} is no number: only the dim of a reduction may be none, or a list")
    texts = (computed,) if isinstance(computed, str) else computed
    if not isinstance(texts, tuple) or not texts or not all(isinstance(t, str) for t in texts):
        shown = "None: did it forget to return the expression" if computed is None else repr(computed)
        raise SignatureError(f"{name}: the function has to return a WGSL expression, or a tuple of them, not {shown}")
    if signature.mutated and len(texts) != len(signature.mutated):
        raise SignatureError(
            f"{name}: mutates names {len(signature.mutated)} tensors, and the function returns {len(texts)} expressions"
        )
    body = Trees(tuple([parse(text, signature.names) for text in texts]))
    operator = Elementwise(name, signature, body, len(texts))
    examples(operator)
    return operator


Differentiate = Callable[[OpOverload], Callable[..., Any]]


def derivative_for(
    name: str, operator: Described, backward: Any, setup_context: Callable[..., None] | None
) -> Callable[[Registration], Differentiate] | None:
    """What makes results that know their derivative, where ``backward`` says how; None where it does not."""
    if backward is None:
        if setup_context is not None:
            raise SignatureError(f"{name}: setup_context is for a backward in Python, and there is none")
        return None
    if operator.signature.mutated:
        raise SignatureError(f"{name}: an operator that writes into its arguments has no backward")
    signature = operator.signature
    if isinstance(backward, OpOverload | torch._ops.OpOverloadPacket):
        return lambda registration: lambda overload: with_operator(overload, operator, backward)
    if callable(backward):
        return lambda registration: lambda overload: function_with(overload, signature, setup_context, backward)
    if not isinstance(operator, Elementwise):
        raise SignatureError(f"{name}: the backward of a {KINDS[type(operator)]} is a function or an operator")
    written = written_backward(name, operator, backward)

    def differentiate(registration: Registration) -> Differentiate:
        def of(overload: OpOverload) -> Callable[..., Any]:
            how = written(registration.private_name("backward"))
            found = register_elementwise(registration, how.operator)
            return derivative_of(overload, signature, how, lambda: found)

        return of

    return differentiate


def with_operator(overload: OpOverload, operator: Described, backward: Callable[..., Any]) -> Callable[..., Any]:
    """Results whose gradients are what the operator ``backward`` returns for the gradients and the arguments."""
    signature = operator.signature
    tensors = [k for k, p in enumerate(signature.parameters) if p.is_tensor]

    def setup_context(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        values = signature.bind(inputs, keyword_only_inputs or {})
        ctx.save_for_backward(*[values[k] for k in tensors])
        ctx.numbers = [v for k, v in enumerate(values) if k not in tensors]

    def gradients(ctx: Any, *grads: Any) -> Any:
        found = backward(*grads, *ctx.saved_tensors, *ctx.numbers)
        each = list(found) if isinstance(found, (tuple, list)) else [found]
        return tuple([each[tensors.index(k)] if k in tensors else None for k in range(len(signature.parameters))])

    return function_with(overload, signature, setup_context, gradients)


def written_backward(name: str, operator: Elementwise, backward: Any) -> Callable[[str], Backward]:
    """The backward that the user wrote as expressions."""
    signature = operator.signature
    names = [p.name for p in signature.tensors]
    if isinstance(backward, str):
        backward = (backward,)
    if isinstance(backward, Mapping):
        for unknown in [n for n in backward if n not in names]:
            raise SignatureError(
                f"{name}: backward names {unknown!r}, which is no tensor{did_you_mean(unknown, names)}"
            )
        backward = tuple([backward.get(n) for n in names])
    if len(backward) != len(names):
        raise SignatureError(
            f"{name}: backward has {len(backward)} expressions, and the operator {len(names)} tensors: "
            f"{', '.join(names)}. A mapping names those that have gradients"
        )
    grads = tuple([j for j, dtype in enumerate(operator.dtypes(examples(operator))) if dtype.is_floating_point])
    grad_names = numbered("grad", len(grads), signature.names)
    result_names = numbered("result", operator.outputs, signature.names)
    known = [*grad_names, *signature.names, *result_names]
    trees = {k: parse(text, known) for k, text in zip(positions(signature), backward, strict=True) if text}
    if not trees:
        raise SignatureError(f"{name}: backward has no expression")
    used = {n for tree in trees.values() for n in names_in(tree)}
    saved = [k for k, p in enumerate(signature.parameters) if p.name in used and p.is_tensor]
    numbers = [k for k, p in enumerate(signature.parameters) if p.name in used and not p.is_tensor]
    results = tuple([j for j, n in enumerate(result_names) if n in used])
    tensors = [*grad_names, *[signature.names[k] for k in saved], *[result_names[j] for j in results]]
    parameters = [Parameter(n, "Tensor") for n in tensors]
    parameters += [Parameter(signature.names[k], signature.parameters[k].kind) for k in numbers]
    body = Trees(tuple(trees.values()))

    def made(own: str) -> Backward:
        gradient = Elementwise(own, Signature(tuple(parameters)), body, len(trees))
        return Backward(gradient, grads, (*saved, *numbers), results, tuple(trees))

    examples(made(f"{name}_backward").operator)
    return made


def positions(signature: Signature) -> list[int]:
    return [k for k, p in enumerate(signature.parameters) if p.is_tensor]


def keep(
    name: str,
    kind: Kind,
    registration: Registration,
    overload: OpOverload,
    function: Callable[..., Any],
    computed: Any,
    autocast: Autocast,
    has_backward: bool,
) -> None:
    """Remembers a registration."""
    source = computed.source if isinstance(computed, Kernel) else computed
    source = "\n".join(source) if isinstance(source, tuple) else str(source)
    differentiable = has_backward or bool(registration.derived)
    _registrations[name] = registration
    _definitions[name] = OpDefinition(
        name, kind, str(overload._schema), source, inspect.getdoc(function) or "", overload,
        tuple(registration.derived), autocast, differentiable,
    )  # fmt: skip
    definitions.define(name, f"{overload._schema}\0{source}")
