"""Recording operators that return new tensors: what a signature needs is found out once, then a call is one look-up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_webgpu.engine.layouts import layout_key, spec_of
from torch_webgpu.engine.record import Scalar, engine
from torch_webgpu.engine.tensor import Template
from torch_webgpu.ir.graph import Body, Operation, Spec
from torch_webgpu.wgsl.expr import split_scalar

from .caches import by_default_dtype
from .torch_abi import Meta, empty_like_meta

CACHE_SIZE = 50_000


@dataclass(frozen=True)
class _Prepared:
    """What the results are made from, and the operation; None where there is nothing to compute."""

    templates: list[Template]
    op: Operation | None


_prepared: dict[Any, _Prepared] = by_default_dtype({})


def launch(
    name: str,
    tensors: Sequence[torch.Tensor],
    static: Hashable,
    outputs: Callable[[], list[Meta]],
    body: Callable[[tuple[Spec, ...]], Body | None],
    scalars: Sequence[Scalar] = (),
) -> list[torch.Tensor]:
    """New tensors laid out as ``outputs()`` says, computed from ``tensors`` by the operation ``body(specs)``.

    Both functions are called once per ``(name, layouts of the tensors, static)``: ``static`` holds everything else that
    decides results' layouts or code. ``body`` may return None: then nothing is recorded, and the results' elements, if
    they have any, are undefined. ``scalars`` vary freely, except in their kinds.
    """
    device = tensors[0].get_device()
    key = (name, static, device, layout_key(tensors))
    found = _prepared.get(key)
    if found is None:
        metas = outputs()
        made = empty_like_meta(metas, device)
        templates = [engine().template(shape, dtype, device, strides) for shape, strides, dtype in metas]
        op = _operation(name, [*tensors, *made], len(made), body, scalars) if numel(made) else None
        found = _Prepared(templates, op)
        if len(_prepared) >= CACHE_SIZE:
            _prepared.pop(next(iter(_prepared)))
        _prepared[key] = found
    if found.op is None:
        return [engine().make(template) for template in found.templates]
    params = tuple([part for kind, value in scalars for part in split_scalar(value, kind)])
    return engine().push_new(found.op, tensors, found.templates, params)


def static_of(args: Sequence[Any]) -> tuple[Hashable, ...]:
    """All that decides code or layouts in an operator's arguments, hashable; of tensors, their layouts."""
    return tuple(
        [
            (a.shape, a.stride(), a.dtype) if isinstance(a, torch.Tensor) else tuple(a) if isinstance(a, list) else a
            for a in args
        ]
    )


def numel(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() for t in tensors)


def _operation(
    name: str,
    tensors: Sequence[torch.Tensor],
    n_outputs: int,
    body: Callable[[tuple[Spec, ...]], Body | None],
    scalars: Sequence[Scalar],
) -> Operation | None:
    specs = tuple(map(spec_of, tensors))
    made = body(specs)
    return None if made is None else Operation(name, specs, n_outputs, made, tuple(kind for kind, _ in scalars))
