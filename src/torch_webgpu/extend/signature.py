"""Signatures: what an operator takes, read off a Python function's annotations, and its PyTorch schema."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_webgpu.errors import did_you_mean

KINDS: dict[Any, str] = {
    torch.Tensor: "Tensor", float: "float", int: "int", bool: "bool", (int | None): "int?", list[int]: "int[]",
    (list[int] | None): "int[]?", tuple[int, ...]: "int[]",
}  # fmt: skip
REQUIRED = inspect.Parameter.empty


class SignatureError(TypeError):
    """A function whose parameters are none that an operator can have."""


@dataclass(frozen=True)
class Parameter:
    """One parameter. ``kind``: its type in a schema; ``mutated``: whether the operator writes into it."""

    name: str
    kind: str
    default: Any = REQUIRED
    keyword: bool = False
    mutated: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.kind == "Tensor"

    @property
    def is_number(self) -> bool:
        return self.kind in ("float", "int", "bool")

    def schema(self, alias: str = "") -> str:
        kind = f"{self.kind}({alias}!)" if self.mutated else self.kind
        value = list(self.default) if isinstance(self.default, tuple) else self.default
        default = "" if self.default is REQUIRED else f"={value!r}"
        return f"{kind} {self.name}{default}"


@dataclass(frozen=True)
class Signature:
    """The parameters in order, those that are keywords last."""

    parameters: tuple[Parameter, ...]

    @property
    def tensors(self) -> tuple[Parameter, ...]:
        return tuple([p for p in self.parameters if p.is_tensor])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple([p.name for p in self.parameters])

    @property
    def mutated(self) -> tuple[int, ...]:
        """The positions of the parameters that are written."""
        return tuple([k for k, p in enumerate(self.parameters) if p.mutated])

    def schema(self, outputs: int) -> str:
        """What follows the operator's name: ``(Tensor x, *, float eps=1e-06) -> Tensor``."""
        aliases = iter("abcdefghijklmnopqrstuvwxyz")
        parts, keyword = [], False
        for p in self.parameters:
            if p.keyword and not keyword:
                parts.append("*")
                keyword = True
            parts.append(p.schema(next(aliases) if p.mutated else ""))
        result = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
        return f"({', '.join(parts)}) -> {result}"

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The value of each parameter in a call, as the dispatcher hands it over: defaults may be left out."""
        return [*args, *[kwargs.get(p.name, p.default) for p in self.parameters[len(args) :]]]

    def call(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional arguments and keywords that have these values."""
        pairs = list(zip(self.parameters, values, strict=True))
        return [v for p, v in pairs if not p.keyword], {p.name: v for p, v in pairs if p.keyword}


def signature_of(name: str, function: Callable[..., Any], mutates: Sequence[str] = ()) -> Signature:
    """The signature of a function whose parameters are annotated as Tensor, float, int or bool, or as dimensions."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise SignatureError(f"{name}: an annotation cannot be read: {error}") from None
    parameters = []
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise SignatureError(f"{name}: an operator has no *{p.name}: name each parameter")
        kind = KINDS.get(hints.get(p.name))
        if kind is None:
            shown = "no annotation" if p.name not in hints else f"the annotation {p.annotation}"
            raise SignatureError(f"{name}: {p.name} has {shown}: write Tensor, float, int or bool")
        if kind == "Tensor" and p.kind is p.KEYWORD_ONLY:
            raise SignatureError(f"{name}: {p.name} is a tensor, which cannot be a keyword: put it before the *")
        parameters.append(Parameter(p.name, kind, with_kind(kind, p.default), p.kind is p.KEYWORD_ONLY))
    if not any(p.is_tensor for p in parameters):
        raise SignatureError(f"{name}: no parameter is a Tensor, so that no call would say on which device it is")
    known = [p.name for p in parameters if p.is_tensor]
    for mutated in mutates:
        if mutated not in known:
            raise SignatureError(f"{name}: mutates names {mutated!r}, which is no tensor{did_you_mean(mutated, known)}")
    return Signature(tuple([replace(p, mutated=p.name in mutates) for p in parameters]))


def with_kind(kind: str, default: Any) -> Any:
    """A default as its kind spells it: ``eps: float = 1`` is 1.0."""
    return float(default) if kind == "float" and isinstance(default, int) else default
