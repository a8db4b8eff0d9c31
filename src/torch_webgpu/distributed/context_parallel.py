"""Context parallelism: the fused attention of webgpu in the ring of PyTorch's ``context_parallel``.

Each rank has a part of the sequence. The ring passes keys and values on, and merges what each part gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_webgpu.aten.attention import attention_parts

from .torch_dtensor import BACKWARD, FORWARD, Ring

SEQUENCE = 2
"""The dimension of queries, keys and values that is sharded; that of sums, too."""
DROPOUT = (
    "context_parallel with dropout_p={p}: PyTorch's ring keeps the random state of one part only, and gradients of the "
    "others would be of other elements dropped; use dropout_p=0.0"
)
BIAS = "context_parallel takes no attn_mask, here as on CUDA; use is_causal"


def register(module: Any) -> None:
    """Adds the operators to those of which context parallelism knows. ``module``: PyTorch's ``_attention``."""
    ring = Ring(module)
    module.custom_ops[FORWARD] = handler(ring, forward)
    module.custom_ops[BACKWARD] = handler(ring, backward)


def handler(ring: Ring, compute: Callable[..., Any]) -> Callable[..., Any]:
    """What DTensor calls for an operator while context parallelism is on."""

    def handle(op_call: Any, args: Any, kwargs: Any) -> Any:
        arguments = ring.local_arguments(op_call, args, kwargs, SEQUENCE)
        if arguments["attn_bias"] is not None:
            raise NotImplementedError(BIAS)
        if arguments["dropout_p"]:
            raise NotImplementedError(DROPOUT.format(p=arguments["dropout_p"]))
        return compute(ring, ring.mesh_of(args), arguments)

    return handle


def forward(ring: Ring, mesh: Any, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """The results of the fused operator, of which the first two are sharded."""
    out, sums, *rest = ring.forward(mesh.get_group(), SEQUENCE, FORWARD, **arguments)
    return (*ring.sharded((out, sums), mesh, SEQUENCE), *rest)


def backward(ring: Ring, mesh: Any, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """The gradients of query, key and value, and None for that of the mask that is not there."""
    names = ("grad_out", "query", "key", "value", "out", "logsumexp", "is_causal", "scale")
    given = {name: arguments[name] for name in names}
    gradients = ring.backward(mesh.get_group(), SEQUENCE, of_part, grad_out_name="grad_out", **given)
    wanted = arguments["grad_input_mask"]
    sharded = ring.sharded(gradients, mesh, SEQUENCE)
    return (*[t if want else None for t, want in zip(sharded, wanted)], None)


def of_part(**arguments: Any) -> tuple[Any, ...]:
    """The gradients that one part of the keys and values gives."""
    return attention_parts.backward(**arguments)
