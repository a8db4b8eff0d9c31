"""The operators of ``c10d`` on tensors of webgpu: what each reads and writes, and the one kernel made of that.

Every caller of a collective ends in these operators: ``torch.distributed``, the C++ Reducer of DistributedDataParallel,
functional collectives, FSDP. A kernel stages the tensors through the host's memory, and calls the same operator with
the host's side of them and the staging group, which reaches gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torch_webgpu.aten.dispatch.torch_abi import is_webgpu

from . import coalescing
from .groups import StagingGroup, staging_group
from .sequence import Call, sequence
from .shared_calls import SharedCall, carries
from .shared_transport import SharedTransport
from .staging import Staged, describe
from .torch_c10d import operator, position, register_kernel, unboxed_work
from .work import CollectiveWork

IN, OUT, BOTH, NOTHING = "in", "out", "both", "nothing"


@dataclass(frozen=True)
class Collective:
    """An operator of ``c10d``.

    ``roles``: what becomes of the tensors in its first arguments. ``reduces``: it computes with them. ``root``: the
    argument after the group that names the rank which alone reads, or writes (``root_is``: which role it has alone).
    ``returns_tensors``: it returns its first argument beside the work. ``is_flat``: only the number of elements
    matters, and gloo is given one dimension, where it would compare others.
    """

    name: str
    called: str
    roles: tuple[str, ...]
    reduces: bool = False
    returns_tensors: bool = False
    root: int | None = None
    root_is: str = ""
    has_source: bool = False
    is_flat: bool = False


COLLECTIVES = (
    Collective("allreduce_", "all_reduce", (BOTH,), reduces=True, returns_tensors=True),
    Collective("allreduce_coalesced_", "all_reduce_coalesced", (BOTH,), reduces=True),
    Collective("broadcast_", "broadcast", (BOTH,), returns_tensors=True, root=0, root_is=IN),
    Collective("reduce_", "reduce", (BOTH,), reduces=True, root=1, root_is=OUT),
    Collective("allgather_", "all_gather", (OUT, IN), returns_tensors=True),
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
    Collective("send", "send", (IN,)),
    Collective("recv_", "recv", (OUT,)),
    Collective("recv_any_source_", "recv from any rank", (OUT,), has_source=True),
)  # fmt: skip


def register() -> None:
    """Registers the kernels."""
    for collective in COLLECTIVES:
        register_kernel(operator(collective.name), kernel(collective))


def kernel(collective: Collective) -> Callable[..., Any]:
    """The kernel of an operator for tensors of webgpu."""
    overload, count = operator(collective.name), len(collective.roles)
    asynchronous = position(overload, "async_op")

    def run(*args: Any) -> Any:
        tensors, rest = args[:count], args[count + 1 :]
        group = staging_group(args[count])
        # Arguments that equal their defaults are left out at the end; by default, nobody waits.
        waits = asynchronous is not None and len(args) > asynchronous and not args[asynchronous]
        what = partial(describe_call, collective, tensors, group)
        check_devices(tensors, what)
        work = CollectiveWork(what, list(flat(tensors[0])) if collective.roles != (NOTHING,) else ())
        box = work.boxed()
        if shared := shared_transport(collective, tensors, group):
            call = SharedCall(what, collective.name, tensors, rest, work, group, shared)
            sequence().run(call, waits)
            coalescing.note(work)
            return (tensors[0], box) if collective.returns_tensors else box
        with torch.no_grad():
            if collective.name == "alltoall_":
                staged, issue = stage_lists(tensors[0], tensors[1], group, rest)
            else:
                staged, issue = stage(collective, overload, tensors, group, rest)
        sequence().run(Call(what, staged, issue, work, group, collective.has_source), waits)
        coalescing.note(work)
        return (tensors[0], box) if collective.returns_tensors else box

    return run


def shared_transport(collective: Collective, tensors: Sequence[Any], group: StagingGroup) -> SharedTransport | None:
    """What carries a collective through shared memory; None where gloo does."""
    if not carries(collective.name, collective.reduces, tensors, group.size):
        return None
    return group.shared(next(flat(tensors)).device.index)


Issue = Callable[[], Any]


def stage(
    collective: Collective, overload: Any, tensors: Sequence[Any], group: StagingGroup, rest: Sequence[Any]
) -> tuple[list[Staged], Issue]:
    """The host's side of a call's tensors, and what calls the same operator with them."""
    staged: list[Staged] = []

    def host_side(role: str, t: torch.Tensor) -> torch.Tensor:
        one = Staged(t, role in (IN, BOTH), role in (OUT, BOTH), collective.reduces)
        staged.append(one)
        return one.carrier.view(-1) if collective.is_flat else one.carrier

    hosts = [
        structured(partial(host_side, role_here(collective, role, group, rest)), value)
        for role, value in zip(collective.roles, tensors)
    ]
    if collective.roles == (NOTHING,):
        staged, hosts = [], [torch.empty(1, device="cpu")]

    def issue() -> Any:
        return unboxed_work(overload(*hosts, group.box, *rest))

    return staged, issue


def role_here(collective: Collective, role: str, group: StagingGroup, rest: Sequence[Any]) -> str:
    """What becomes of the tensors on this rank."""
    if collective.root is None:
        return role
    is_root = rest[collective.root] == group.rank
    if collective.root_is == IN:  # broadcast: the root's tensor goes out, the others' come in
        return IN if is_root else OUT
    return BOTH if is_root else IN  # reduce: only the root's is written


def stage_lists(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], group: StagingGroup, rest: Sequence[Any]
) -> tuple[list[Staged], Issue]:
    """:func:`stage` for lists of tensors for, and from, each rank: gloo takes one, of which each rank gets a part.

    Its own operator for lists came with PyTorch 2.12.
    """
    staged: list[Staged] = []
    flat_sides, sizes = [], []
    for tensors, into in ((outputs, False), (inputs, True)):
        sizes.append([t.nbytes for t in tensors])
        memory = torch.empty(sum(sizes[-1]), dtype=torch.uint8, device="cpu")
        flat_sides.append(memory)
        for t, part in zip(tensors, memory.split(sizes[-1])):
            staged.append(Staged(t, into, not into, False, part))
    overload = operator("alltoall_base_")

    def issue() -> Any:
        return unboxed_work(overload(*flat_sides, group.box, *sizes, *rest))

    return staged, issue


def structured(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """``function`` of a tensor, or of each in lists of lists."""
    return [structured(function, v) for v in value] if isinstance(value, (list, tuple)) else function(value)


def flat(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists of lists."""
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from flat(v)
    else:
        yield value


def check_devices(tensors: Sequence[Any], what: Callable[[], str]) -> None:
    """Raises RuntimeError for tensors of the CPU, or of other devices, beside those of webgpu."""
    others = {str(t.device) for t in flat(tensors) if not is_webgpu(t)}
    if others:
        raise RuntimeError(
            f"{what()}: its tensors are on webgpu and on {', '.join(sorted(others))}; a collective takes tensors of "
            "one device. Move them with .to()"
        )


def describe_call(collective: Collective, tensors: Sequence[Any], group: StagingGroup) -> str:
    """The collective's name, its tensors and its group, as errors say them."""
    lists = [[describe(t) for t in flat(value)] for value in tensors]
    sides = [f"{', '.join(side[:3])}{f' and {len(side) - 3} more' if len(side) > 3 else ''}" for side in lists]
    of = "" if collective.roles == (NOTHING,) else f" of {' ← '.join(sides)}"
    return f"{collective.called}{of} ({group})"
