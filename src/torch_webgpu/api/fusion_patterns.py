"""Fusion patterns: names for chains of operators, and a program's own WGSL for them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from textwrap import dedent
from typing import Any

import torch

from torch_webgpu.aten.dispatch.torch_abi import KERNELS
from torch_webgpu.compiler.fuse.patterns import Pattern
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.interrupt import Uninterrupted
from torch_webgpu.engine.record import engine
from torch_webgpu.errors import ShaderCompileError, ShaderSyntaxError, did_you_mean
from torch_webgpu.ir.expr import WgslFunction
from torch_webgpu.wgsl.indices import clamp_indices
from torch_webgpu.wgsl.kernel import Binding, Kernel
from torch_webgpu.wgsl.module import Module
from torch_webgpu.wgsl.tokens import next_index, tokens

from .records import Record

# Bindings and variables of a module are the kernel's that calls the function; barriers need all its threads.
_NOT_ALLOWED = frozenset("array enable requires diagnostic override workgroupUniformLoad".split())


def add_fusion_pattern(
    name: str | Mapping[str, Any],
    ops: Sequence[str] | None = None,
    wgsl: str | None = None,
    description: str = "",
) -> None:
    """Names a chain of per-element operators, for statistics, and may replace it by a WGSL function.

    ``ops``: two or more ATen operators' names (``["add", "mul", "tanh"]``), each of which uses the result of the one
    before; one in place counts like its functional form. Where such a chain fuses into one kernel, ``get_fusion_stats``
    counts it under ``name``. A mapping with these names as its keys will do, as will a name that is there already: the
    new pattern takes its place.

    ``wgsl`` declares ``fn <name>(…) -> f32``, over ``f32`` parameters, and whatever functions and constants that needs.
    Where the chain fuses, its last result is this function, called at every element,
    instead of what the operators would compute (what lies in between is still computed if somebody else sees it).
    Its parameters are the chain's arguments: of each operator in turn the tensors, in the order of its signature,
    without the result of the one before; then those of its numbers that are not its defaults. ``x * 2`` has the tensor
    ``x`` and the number 2; ``alpha=1`` of ``add`` is a default; special exponents of ``pow``, such as 2, are code.
    Tensors broadcast as ever. It stands in for chains of float32 tensors and Python floats with as many arguments as it
    has parameters; others run as they do without it, and so does a chain that does not fuse (fusion is off, a flush in
    between, a hand-written kernel): the function must compute what the chain does. Gradients are the operators'.
    Indices of vectors and matrices are kept in range; there are no arrays.

    Raises ValueError for an unknown operator or a ``wgsl`` without such a function, ShaderCompileError, with the
    numbered source, for one that does not compile.
    """
    if isinstance(name, Mapping):
        return add_fusion_pattern(**name)
    chain = tuple(ops or ())
    if isinstance(ops, str) or len(chain) < 2:
        raise ValueError(f"a fusion pattern is a chain of two or more operators, not {ops!r}")
    unknown = [op for op in chain if not hasattr(torch.ops.aten, op)]
    if unknown:
        known = [overload._schema.name.removeprefix("aten::") for overload in KERNELS]
        meant = did_you_mean(unknown[0], known)
        raise ValueError(f"fusion pattern {name!r}: PyTorch has no operator {', '.join(unknown)}{meant}")
    function, arity = (None, 0) if wgsl is None else _bind(name, dedent(wgsl))
    engine().set_pattern(name, Pattern(name, chain, function, arity, description, wgsl))
    return None


def remove_fusion_pattern(name: str) -> None:
    """Forgets a pattern; its chain runs as it did before. KeyError if there is none of this name."""
    patterns = engine().patterns
    if name not in patterns:
        meant = did_you_mean(name, patterns)
        raise KeyError(f"there is no fusion pattern {name!r}{meant}, only {', '.join(patterns)}")
    engine().set_pattern(name, None)


def get_fusion_patterns() -> list[Record]:
    """All patterns, the built-in ones first: ``name``, ``ops``, ``description`` and ``wgsl`` (or None) of each."""
    return [
        Record(name=pattern.name, ops=list(pattern.ops), description=pattern.description, wgsl=pattern.wgsl)
        for pattern in engine().patterns.values()
    ]


def _bind(name: str, text: str) -> tuple[WgslFunction, int]:
    """The function in ``text``, under names of its own, and its number of parameters."""
    try:
        module = Module.parse(text).without_comments()
    except ShaderSyntaxError as error:
        raise ShaderCompileError(f"the wgsl of fusion pattern {name!r} is not right: {error}") from None
    declared = module.by_name.get(name)
    signature = declared.signature if declared else None
    if (
        signature is None
        or {signature.result, *[p.type for p in signature.parameters]} != {"f32"}
        or not signature.parameters
    ):
        raise ValueError(f"the wgsl of fusion pattern {name!r} must declare fn {name}(a: f32, …) -> f32")
    if refused := _refused(module.text):
        raise ValueError(
            f"the wgsl of fusion pattern {name!r} has {refused!r}: it is a function of numbers, without bindings, "
            "arrays, variables of the module, barriers or directives"
        )
    prefix = f"user_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    plain = module.renamed({known: f"{prefix}_{known}" for known in module.by_name}).text
    arity = len(signature.parameters)

    def compiles(changed: str) -> bool:
        try:
            _compile(name, WgslFunction(f"{prefix}_{name}", changed), arity)
        except ShaderCompileError:
            return False
        return True

    function = WgslFunction(f"{prefix}_{name}", clamp_indices(plain, compiles))
    _compile(name, function, arity)
    return function, arity


def _refused(text: str) -> str | None:
    """The first thing in ``text`` that is not allowed."""
    sequence = tokens(text)
    for k, token in enumerate(sequence):
        if token == "var" and sequence[next_index(sequence, k + 1)].startswith("<"):
            return "var<"
        if token[0] == "@" or token in _NOT_ALLOWED or token.endswith("Barrier"):
            return token
    return None


def _compile(name: str, function: WgslFunction, arity: int) -> None:
    """Raises ShaderCompileError unless the function compiles in a kernel of its own.

    Whose bindings have names that no text can know which they are made of: a function names nothing but its own.
    """
    digest = hashlib.sha256(function.text.encode()).hexdigest()[:12]
    x, y = f"x{digest}", f"y{digest}"
    arguments = ", ".join(f"{x}_load({k}u)" for k in range(arity))
    body = (
        f"{function.text}\n@compute @workgroup_size(1)\nfn main() {{ {y}_store(0u, {function.name}({arguments})); }}\n"
    )
    bindings = (Binding(x, "f32"), Binding(y, "f32", "read_write"))
    eng = engine()
    with Uninterrupted(), eng.lock:
        try:
            eng.device(current_device()).compile(Kernel(name, body, bindings, workgroup_size=(1, 1, 1)))
        except ShaderCompileError as error:
            raise ShaderCompileError(f"the wgsl of fusion pattern {name!r} is not right: {error}") from None
