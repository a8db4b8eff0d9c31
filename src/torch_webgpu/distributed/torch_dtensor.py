"""How DTensor shards the fused attention of webgpu, which PyTorch has no rule for: by batch, or by heads."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy, register_op_strategy

from torch_webgpu.aten.dispatch.torch_abi import aten

FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
# Results and arguments that have the dimensions of batch and heads; None is no tensor, or one that is not there.
FORWARD_RESULTS = ("output", "logsumexp", None, None, None, None, "philox_seed", "philox_offset", None)
BACKWARD_RESULTS = ("grad_query", "grad_key", "grad_value", "grad_attn_bias")
WHOLE = frozenset(("philox_seed", "philox_offset", "cum_seq_q", "cum_seq_k"))
BIASES = frozenset(("attn_bias", "grad_attn_bias"))
STATIC_FROM = 4
"""The first argument of the forward operator that is no tensor: calls with other values are other calls."""


def register(module: ModuleType) -> None:
    """Registers the rules. ``module``: torch.distributed.tensor."""
    for overload, results in ((FORWARD, FORWARD_RESULTS), (BACKWARD, BACKWARD_RESULTS)):
        register_op_strategy(overload, schema_info=RuntimeSchemaInfo(STATIC_FROM))(
            partial(strategy, results=results, is_forward=overload is FORWARD)
        )


def strategy(op_schema: Any, results: tuple[str | None, ...], is_forward: bool) -> Any:
    """What may be sharded how, on each dimension of a mesh: everything whole, or parts of the batch or of the heads."""
    named = zip(op_schema.op._schema.arguments, op_schema.args_schema)
    arguments = {argument.name: value for argument, value in named if isinstance(value, OpStrategy)}
    bias = arguments.get("attn_bias")
    if not is_forward and bias is None:
        results = (*results[:-1], None)
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
