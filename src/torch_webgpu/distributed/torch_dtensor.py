"""How DTensor shards the fused attention of webgpu, which PyTorch has no rule for: by batch, or by heads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy, register_op_strategy

from torch_webgpu.aten.dispatch.torch_abi import aten, impl

FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
# Results and arguments that have the dimensions of batch and heads; None is no tensor, or one that is not there.
FORWARD_RESULTS = ("output", "logsumexp", None, None, None, None, "philox_seed", "philox_offset", None)
BACKWARD_RESULTS = ("grad_query", "grad_key", "grad_value", "grad_attn_bias")
WHOLE = frozenset(("philox_seed", "philox_offset", "cum_seq_q", "cum_seq_k"))
BIASES = frozenset(("attn_bias", "grad_attn_bias"))
STATIC_FROM = 4
"""The first argument of the forward operator that is no tensor: calls with other values are other calls."""
UNSHARDED = "context_parallel: {} has placements {}; queries, keys and values are to be sharded by dimension {} alone"


def register(module: ModuleType) -> None:
    """Registers the rules. ``module``: torch.distributed.tensor."""
    for overload, results in ((FORWARD, FORWARD_RESULTS), (BACKWARD, BACKWARD_RESULTS)):
        register_op_strategy(overload, schema_info=RuntimeSchemaInfo(STATIC_FROM))(
            partial(strategy, results=results, is_forward=overload is FORWARD)
        )
    if not torch._C._dispatch_has_kernel_for_dispatch_key(BACKWARD.name(), "Meta"):  # as in torch 2.11
        impl(BACKWARD, gradients_on_meta, "Meta")


def gradients_on_meta(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    grad_input_mask: Sequence[bool],
    *rest: Any,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """The layouts of the gradients: DTensor asks for those of whole tensors."""
    pairs = zip((query, key, value, attn_bias), grad_input_mask)
    return tuple([torch.empty_like(t) if t is not None and wanted else None for t, wanted in pairs])


def strategy(op_schema: Any, results: tuple[str | None, ...], is_forward: bool) -> Any:
    """What may be sharded how, on each dimension of a mesh: everything whole, or parts of the batch or of the heads."""
    given = {a.name: value for a, value in zip(op_schema.op._schema.arguments, op_schema.args_schema)}
    arguments = {name: value for name, value in given.items() if isinstance(value, OpStrategy)}
    bias = arguments.get("attn_bias")
    if not is_forward:
        results = tuple([name if wanted else None for name, wanted in zip(results, given["grad_input_mask"])])
    choices = [[placed(name, None, bias) for name in (*results, *arguments)]]
    choices += [[placed(name, dim, bias) for name in (*results, *arguments)] for dim in (0, 1)]
    return expand_to_full_mesh_op_strategy(op_schema.get_mesh_from_args(), op_schema, choices, input_index=len(results))


def placed(name: str | None, dim: int | None, bias: Any) -> Any:
    """Where a tensor of this name is, if the queries are sharded along ``dim``, or not at all."""
    if name is None:
        return None
    if dim is None or name in WHOLE or (name in BIASES and not is_per(dim, bias)):
        return Replicate()
    return Shard(dim)


def is_per(dim: int, bias: Any) -> bool:
    """Whether a bias differs along a dimension of the queries."""
    return bias is not None and len(bias.shape) == 4 and bias.shape[dim] > 1


class Ring:
    """The ring of PyTorch's ``context_parallel``, and the local parts of what DTensor hands to it.

    ``module``: ``torch.distributed.tensor.experimental._context_parallel._attention``.
    """

    def __init__(self, module: Any) -> None:
        self.forward, self.backward = module._templated_ring_attention, module._templated_ring_attention_backward

    def mesh_of(self, args: Sequence[Any]) -> Any:
        """Where the sequence is sharded."""
        return next(a.device_mesh for a in args if isinstance(a, DTensor))

    def local_arguments(self, op_call: Any, args: Sequence[Any], kwargs: dict[str, Any], dim: int) -> dict[str, Any]:
        """All arguments by name, tensors as this rank has them.

        NotImplementedError if one is not sharded by ``dim`` alone.
        """
        given: dict[str, Any] = {}
        for k, argument in enumerate(op_call._schema.arguments):
            value = args[k] if k < len(args) else kwargs.get(argument.name, argument.default_value)
            if isinstance(value, DTensor):
                if value.placements != (Shard(dim),):
                    raise NotImplementedError(UNSHARDED.format(argument.name, value.placements, dim))
                with torch.no_grad():
                    value = value.to_local()
            given[argument.name] = value
        return given

    def sharded(self, tensors: Sequence[torch.Tensor], mesh: Any, dim: int) -> list[DTensor]:
        """The whole tensors of which these are the parts, each as large as the others'."""
        with torch.no_grad():
            return [DTensor.from_local(t, mesh, [Shard(dim)], run_check=False) for t in tensors]
