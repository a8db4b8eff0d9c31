"""The operators of ``c10d`` on tensors of webgpu: what each reads and writes, and the one kernel made of that.

Every caller of a collective ends in these operators: ``torch.distributed``, the C++ Reducer of DistributedDataParallel,
functional collectives, FSDP. A kernel has a transport of the group carry the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from torch_webgpu.aten.dispatch.torch_abi import is_webgpu

from . import coalescing
from .groups import StagingGroup, staging_group
from .sequence import Call, explained, sequence
from .staging import describe
from .timeline import Timeline, begun, is_watched
from .torch_c10d import position, reduction_name, register_kernel
from .transport import BOTH, IN, NOTHING, OUT, Collective, Exchange, Request, flat, structured
from .work import CollectiveWork

COLLECTIVES = (
    Collective("allreduce_", "all_reduce", (BOTH,), reduces=True, returns_tensors=True),
    Collective("allreduce_coalesced_", "all_reduce_coalesced", (BOTH,), reduces=True),
    Collective("broadcast_", "broadcast", (BOTH,), returns_tensors=True, root=0, root_is=IN),
    Collective("reduce_", "reduce", (BOTH,), reduces=True, root=1, root_is=OUT),
    Collective("allgather_", "all_gather", (OUT, IN), returns_tensors=True, is_stacked=True),
    Collective("_allgather_base_", "all_gather_into_tensor", (OUT, IN), returns_tensors=True, is_flat=True),
    Collective("allgather_coalesced_", "all_gather_coalesced", (OUT, IN)),
    Collective("allgather_into_tensor_coalesced_", "all_gather_into_tensor_coalesced", (OUT, IN), is_flat=True),
    Collective("reduce_scatter_", "reduce_scatter", (OUT, IN), reduces=True, returns_tensors=True),
    Collective(
        "_reduce_scatter_base_", "reduce_scatter_tensor", (OUT, IN), reduces=True, returns_tensors=True, is_flat=True
    ),
    Collective(
        "reduce_scatter_tensor_coalesced_", "reduce_scatter_tensor_coalesced", (OUT, IN), reduces=True, is_flat=True
    ),
    Collective("gather_", "gather", (OUT, IN)),
    Collective("scatter_", "scatter", (OUT, IN), returns_tensors=True),
    Collective("alltoall_", "all_to_all", (OUT, IN), returns_tensors=True),
    Collective("alltoall_base_", "all_to_all_single", (OUT, IN)),
    Collective("barrier", "barrier", (NOTHING,)),
    Collective("send", "send", (IN,), peer="to"),
    Collective("recv_", "recv", (OUT,), peer="from"),
    Collective("recv_any_source_", "recv from any rank", (OUT,), has_source=True),
)  # fmt: skip


def register() -> None:
    """Registers the kernels."""
    for collective in COLLECTIVES:
        register_kernel(collective.overload, kernel(collective))
        for key in ("SparsePrivateUse1", "SparseCsrPrivateUse1"):  # else the result would stay in a copy on the CPU
            register_kernel(collective.overload, refusal_of_sparse(collective), key)


def kernel(collective: Collective) -> Callable[..., Any]:
    """The kernel of an operator for tensors of webgpu."""
    count = len(collective.roles)
    asynchronous = position(collective.overload, "async_op")

    def run(*args: Any) -> Any:
        tensors, rest = args[:count], args[count + 1 :]
        group = staging_group(args[count])
        # Arguments that equal their defaults are left out at the end; by default, nobody waits.
        waits = asynchronous is not None and len(args) > asynchronous and not args[asynchronous]
        what = partial(describe_call, collective, tensors, group, rest)
        check_devices(tensors, what)
        results = list(flat(tensors[0])) if collective.roles != (NOTHING,) else ()
        work = CollectiveWork(what, results, collective.is_stacked)
        request = Request(collective, sums_as_real(collective, tensors, rest), group, rest)
        try:
            # Host memory is kept for other calls, also for those outside of inference mode.
            with torch.inference_mode(False), torch.no_grad():
                exchange = begin_watched(request, group) if is_watched() else group.begin(request)
        except RuntimeError as error:
            raise explained(error, what()) from error
        box = work.boxed()
        in_inference = any(t.is_inference() for value in tensors for t in flat(value))
        sequence().run(Call(what, exchange, work, group, in_inference), waits)
        coalescing.note(work)
        return (tensors[0], box) if collective.returns_tensors else box

    return run


def sums_as_real(collective: Collective, tensors: Sequence[Any], rest: Sequence[Any]) -> Sequence[Any]:
    """The tensors, complex ones as views of their real and imaginary parts where these are summed, as with NCCL."""
    if not collective.reduces or not any(t.is_complex() for t in flat(tensors)):
        return tensors
    if reduction_name(rest[0]) not in ("sum", "avg"):
        return tensors
    return [structured(real_view, value) for value in tensors]


def real_view(t: torch.Tensor) -> torch.Tensor:
    """A complex tensor's parts, as they lie in memory; others as they are."""
    return torch.view_as_real(t.data) if t.is_complex() and not t.is_conj() else t


def refusal_of_sparse(collective: Collective) -> Callable[..., Any]:
    """The kernel of an operator for sparse tensors of webgpu. Raises RuntimeError: none is exchanged."""

    def refused(*_: Any) -> Any:
        raise RuntimeError(
            f"{collective.called}: sparse tensors of webgpu are not exchanged. x.to_dense() makes them dense; "
            "sparse tensors of the CPU are exchanged by gloo"
        )

    return refused


def begin_watched(request: Request, group: StagingGroup) -> Exchange:
    """Begins a collective whose times are noted."""
    timeline = begun(timeline_of(request))
    try:
        exchange = group.begin(request)
    except BaseException as error:
        timeline.fail(error)
        raise
    timeline.transport, exchange.timeline = exchange.carried_by, timeline
    return exchange


def timeline_of(request: Request) -> Timeline:
    """What is noted of a call for those who look on."""
    collective, group = request.collective, request.group
    sizes = dict.fromkeys((IN, OUT, BOTH, NOTHING), 0)
    for k, value in enumerate(request.tensors):
        sizes[request.role(k)] += 0 if collective.roles == (NOTHING,) else sum(t.nbytes for t in flat(value))
    into, out_of = sizes[IN] + sizes[BOTH], sizes[OUT] + sizes[BOTH]
    return Timeline(collective.called, group.name, group.rank, group.size, into, out_of)


def check_devices(tensors: Sequence[Any], what: Callable[[], str]) -> None:
    """Raises RuntimeError for tensors of the CPU, or of other devices, beside those of webgpu."""
    others = {str(t.device) for t in flat(tensors) if not is_webgpu(t)}
    if others:
        raise RuntimeError(
            f"{what()}: its tensors are on webgpu and on {', '.join(sorted(others))}; a collective takes tensors of "
            "one device. Move them with .to()"
        )


def describe_call(collective: Collective, tensors: Sequence[Any], group: StagingGroup, rest: Sequence[Any]) -> str:
    """The collective's name, its tensors, its peer and its group, as errors say them."""
    lists = [[describe(t) for t in flat(value)] for value in tensors]
    sides = [f"{', '.join(side[:3])}{f' and {len(side) - 3} more' if len(side) > 3 else ''}" for side in lists]
    of = "" if collective.roles == (NOTHING,) else f" of {' ← '.join(sides)}"
    peer = f" {collective.peer} rank {rest[0]}" if collective.peer else ""
    return f"{collective.called}{of}{peer} ({group})"
