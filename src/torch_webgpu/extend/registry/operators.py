"""Operators: what PyTorch's dispatcher, our kernels and a program's own definitions say of each, by its name."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch._ops import OpOverload, OpOverloadPacket

from torch_webgpu.aten.dispatch.decomps import decomposition_of
from torch_webgpu.aten.dispatch.torch_abi import BACKEND_KEY, KERNELS, is_inplace, is_out
from torch_webgpu.aten.dispatch.torch_dispatcher import is_registered, operator_names, overloads_of
from torch_webgpu.errors import NotRegisteredError, OpKindError, did_you_mean

if TYPE_CHECKING:
    from torch_webgpu.extend.op import OpDefinition

    from .handle import RegistrationHandle

OpKind = Literal["unary", "binary", "elementwise", "reduction", "random", "view", "creation", "other"]
KINDS: tuple[OpKind, ...] = ("unary", "binary", "elementwise", "reduction", "random", "view", "creation", "other")
Way = Literal["native", "composed", "CPU"]
OPERANDS = ("Tensor", "Scalar", "number", "Optional[Tensor]")
OF_OURS = "torch_webgpu.extend.op"
registered_kernels: dict[tuple[str, str], list[RegistrationHandle]] = {}
"""Those that the program registered, by the full name of an overload and the type of device; the last is called."""


@dataclass(frozen=True)
class OpInfo:
    """An operator.

    ``name`` is qualified ("aten::add"), ``overloads`` are PyTorch's, by their names. ``kind`` is one of :data:`KINDS`.
    ``way``: how it runs on webgpu; ``native`` names the overloads with kernels of their own, ``module`` the one of
    ``torch_webgpu.aten`` that has them. ``autograd``: "formula" where a derivative is registered, "composed" where it
    follows from those of other operators, "none". ``definition``: of an operator that ``torch.webgpu.op`` made.
    """

    name: str
    kind: OpKind
    way: Way
    overloads: dict[str, OpOverload]
    native: tuple[str, ...]
    module: str
    autograd: str
    definition: OpDefinition | None = None

    @property
    def schemas(self) -> list[str]:
        """The schemas of its overloads, as PyTorch writes them."""
        return [str(overload._schema) for overload in self.overloads.values()]

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.kind}, {self.way} on webgpu, autograd: {self.autograd}"]
        return "\n  ".join(lines + self.schemas)


def qualified(name: str | OpOverload | OpOverloadPacket) -> tuple[str, str]:
    """The qualified name of an operator, and its overload's ("" for none), where there is such an operator.

    ``name``: "add", "add.Tensor", "aten::add", "mylib::swiglu", or what ``torch.ops`` has. NotRegisteredError, a
    LookupError, where there is none.
    """
    if isinstance(name, OpOverload):
        return name._schema.name, name._overloadname
    if isinstance(name, OpOverloadPacket):
        return name._qualified_op_name, ""
    if not isinstance(name, str):
        raise TypeError(f"an operator's name is a string, as 'add' or 'mylib::swiglu', not {name!r}")
    base, _, overload = name.partition(".")
    for candidate in [base] if "::" in base else [f"aten::{base}"]:
        there = overloads_of(candidate)
        if overload in there or (there and not overload):
            return candidate, overload
        if there:
            raise NotRegisteredError(
                f"the operator {candidate!r} has no overload {overload!r}{did_you_mean(overload, there)}"
            )
    raise not_found(base)


def not_found(name: str) -> NotRegisteredError:
    """The error for an operator that does not exist, with the nearest that do."""
    known = operator_names()
    if "::" not in name:
        known = [one.removeprefix("aten::") for one in known if one.startswith("aten::")]
    return NotRegisteredError(f"there is no operator {name!r}{did_you_mean(name, known)}")


def has_op(name: str | OpOverload | OpOverloadPacket) -> bool:
    """Whether PyTorch knows such an operator."""
    try:
        qualified(name)
    except NotRegisteredError:
        return False
    return True


def overload_of(name: str | OpOverload | OpOverloadPacket) -> OpOverload:
    """The overload of a name; of one without an overload the functional one, with a kernel of ours if there is one."""
    operator, overload = qualified(name)
    there = overloads_of(operator)
    if overload:
        return there[overload]
    return next(iter(functional(there.values())))


def functional(overloads: Iterable[OpOverload]) -> list[OpOverload]:
    """Those that return new tensors first, and of these the native ones, and then the one without a name."""

    def rank(one: OpOverload) -> tuple[bool, bool, bool]:
        return is_out(one) or is_inplace(one), one not in KERNELS, one._overloadname != "default"

    return sorted(overloads, key=rank)


def get_op_info(name: str | OpOverload | OpOverloadPacket) -> OpInfo:
    """All that is known of an operator. NotRegisteredError, a LookupError that says *did you mean*, for none."""
    operator, _ = qualified(name)
    there = overloads_of(operator)
    first = functional(there.values())[0]
    native = tuple([key for key, one in there.items() if is_native(one)])
    modules = [KERNELS[one] for one in there.values() if one in KERNELS]
    definition = definitions().get(operator)
    return OpInfo(
        name=operator,
        kind=kind_among(there.values()),
        way=way_of(first),
        overloads=there,
        native=native,
        module=modules[0] if modules else "",
        autograd=autograd_of(first),
        definition=definition,
    )


def get_op_schema(name: str | OpOverload | OpOverloadPacket) -> torch.FunctionSchema:
    """The schema of an overload ("add.Scalar"), or of the one that a call with tensors takes ("add")."""
    return overload_of(name)._schema


op_schema = get_op_schema


def get_op_kind(name: str | OpOverload | OpOverloadPacket) -> OpKind:
    """An operator's kind, of :data:`KINDS`, as PyTorch's tags and its schema say."""
    operator, overload = qualified(name)
    return kind_of(overload_of(name)) if overload else kind_among(overloads_of(operator).values())


def list_ops(kind: OpKind | None = None, *, namespace: str | None = "aten", way: Way | None = None) -> list[str]:
    """The names of operators in order: of a name space (None: of all), a kind, a way to run on webgpu.

    In-place and ``out=`` forms of others are not listed by themselves. OpKindError, a TypeError, for no kind.
    """
    if kind is not None and kind not in KINDS:
        raise OpKindError(f"there is no kind of operators {kind!r}, only {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    names = [name for name in operator_names() if namespace is None or name.startswith(f"{namespace}::")]
    listed = []
    for name in names:
        first = next(iter(functional(overloads_of(name).values())), None)
        if first is None or is_out(first) or (is_inplace(first) and overloads_of(name.removesuffix("_"))):
            continue
        if (kind is None or kind_among(overloads_of(name).values()) == kind) and (way is None or way_of(first) == way):
            listed.append(name)
    return listed


def kind_among(overloads: Iterable[OpOverload]) -> OpKind:
    """The kind of an operator: that of its first overload which has one."""
    kinds = [kind_of(overload) for overload in functional(overloads)]
    return next((kind for kind in kinds if kind != "other"), "other")


def kind_of(overload: OpOverload) -> OpKind:
    """The kind of one overload."""
    schema, tags = overload._schema, overload.tags
    operands = [a for a in schema.arguments if str(a.type) in OPERANDS and not a.kwarg_only]
    if torch.Tag.nondeterministic_seeded in tags:
        return "random"
    if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
        return "view"
    if torch.Tag.reduction in tags or _definition_kind(overload) == "reduction":
        return "reduction"
    if torch.Tag.pointwise in tags or _is_expression(overload):
        count = len(operands)
        return "unary" if count == 1 else "binary" if count == 2 else "elementwise"
    if schema.returns and not any("Tensor" in str(a.type) for a in schema.arguments):
        return "creation"
    return "other"


def way_of(overload: OpOverload) -> Way:
    """How an overload runs on webgpu."""
    if is_native(overload):
        return "native"
    if is_registered(overload, BACKEND_KEY):  # a composition that is not PyTorch's
        return "composed"
    if any(is_registered(overload, key) for key in ("CompositeImplicitAutograd", "CompositeExplicitAutograd")):
        return "composed"
    return "CPU" if decomposition_of(overload) is None else "composed"


def is_native(overload: OpOverload) -> bool:
    """Whether an overload has a kernel of its own for webgpu: ours, or the program's."""
    if overload in KERNELS or _is_expression(overload) or (overload.name(), "webgpu") in registered_kernels:
        return True
    return is_registered(overload, BACKEND_KEY) and not overload._schema.name.startswith("aten::")


def autograd_of(overload: OpOverload) -> str:
    """Where an overload's derivative is from."""
    if is_registered(overload, "Autograd"):
        return "formula"
    return "composed" if is_registered(overload, "CompositeImplicitAutograd") else "none"


def definitions() -> Any:
    """What ``torch.webgpu.op`` has made, by name."""
    module = sys.modules.get(OF_OURS)
    return {} if module is None else module.registered()


def unregister_op(name: str) -> None:
    """Removes an operator that ``torch.webgpu.op`` made, with what was derived from it. NotRegisteredError, a
    LookupError, where there is none of this name. What ``register_forward`` made, its handle removes.
    """
    from torch_webgpu.extend.op import unregister  # which few programs need

    unregister(name)


def _definition_kind(overload: OpOverload) -> str:
    """What ``torch.webgpu.op`` made an operator of; empty for others."""
    definition = definitions().get(overload._schema.name)
    return "" if definition is None else definition.kind


def _is_expression(overload: OpOverload) -> bool:
    return _definition_kind(overload) == "expression"
