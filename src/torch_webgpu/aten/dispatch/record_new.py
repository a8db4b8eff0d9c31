"""How an operator that is a hand-written kernel, or a product, makes its results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from torch_webgpu.engine.record import Scalar, engine
from torch_webgpu.ir.operation import Body, Spec

from .torch_abi import Meta, empty_like_meta


def computed(
    name: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[Meta],
    body: Body | Callable[[tuple[Spec, ...]], Body],
    static: Hashable = (),
    scalars: Sequence[Scalar] = (),
) -> list[torch.Tensor]:
    """New tensors with the layouts ``outputs``, recorded as what ``body`` computes from ``inputs``; zeros where one of
    these has no elements. For the rest see :meth:`torch_webgpu.engine.record.Engine.record`.

    For kernels that are :func:`.recorded_once.traced`, which run once per signature.
    """
    made = empty_like_meta(outputs, inputs[0].get_device())
    if not any(t.numel() for t in made):
        return made
    if all(t.numel() for t in inputs):
        engine().record(name, inputs, made, body, static, scalars)
    else:
        for t in made:
            t.zero_()
    return made
