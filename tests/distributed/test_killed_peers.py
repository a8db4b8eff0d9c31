"""A process that is killed inside of a collective: the others end with an error in words, and none hangs."""

from __future__ import annotations

import pytest
from tests.distributed.programs import TRANSPORTS, run_ranks

NAMED = {
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "send", "recv",
    "all_reduce_coalesced", "all_gather_coalesced",
}  # fmt: skip
OTHERS = {"coalescing": "all_reduce_coalesced", "batch_isend_irecv": "recv", "all_gather_object": "", "barrier": ""}
"""What else is called, and which collective its error names; objects and barriers go by the CPU, in gloo's words."""
INSIDE = """
import warnings
warnings.simplefilter("ignore")
def one(count=1000):
    return torch.ones(count, device=device)
def two():
    return [one(), one()]
def big():
    return torch.ones(2, 1000, device=device)
def coalescing(group, async_op):
    with dist._coalescing_manager(group=group, device=torch.device(device, 0), async_ops=async_op) as manager:
        dist.all_reduce(one(), group=group)
        dist.all_reduce(one(), group=group)
    return manager if async_op else None
def batch(group, async_op):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, one(), 1, group)]):
        work.wait()
calls = {
    "all_reduce": lambda **o: dist.all_reduce(one(), **o),
    "reduce": lambda **o: dist.reduce(one(), 0, **o),
    "broadcast": lambda **o: dist.broadcast(one(), 1, **o),
    "all_gather": lambda **o: dist.all_gather(two(), one(), **o),
    "all_gather_into_tensor": lambda **o: dist.all_gather_into_tensor(big(), one(), **o),
    "reduce_scatter": lambda **o: dist.reduce_scatter(one(), two(), **o),
    "reduce_scatter_tensor": lambda **o: dist.reduce_scatter_tensor(one(), big(), **o),
    "all_to_all": lambda **o: dist.all_to_all(two(), two(), **o),
    "all_to_all_single": lambda **o: dist.all_to_all_single(big(), big(), **o),
    "gather": lambda **o: dist.gather(one(), two(), **o),
    "scatter": lambda **o: dist.scatter(one(), None, src=1, **o),
    "recv": lambda group, async_op: (dist.irecv if async_op else dist.recv)(one(), 1, group=group),
    "send": lambda group, async_op: (dist.isend if async_op else dist.send)(one(1 << 24), 1, group=group),
    "barrier": lambda **o: dist.barrier(device_ids=[0], **o),
    "all_reduce_coalesced": lambda **o: dist.all_reduce_coalesced(two(), **o),
    "all_gather_coalesced": lambda **o: dist.all_gather_coalesced([two(), two()], two(), **o),
    "coalescing": coalescing,
    "batch_isend_irecv": batch,
    "all_gather_object": lambda group, async_op: dist.all_gather_object([None] * 2, rank, group=group),
}
groups = {(name, waits): dist.new_group() for name in calls for waits in (False, True)}
for group in groups.values():
    dist.all_reduce(one(), group=group)
if rank == 1:
    time.sleep(2)  # while the other is inside of them all
    os.kill(os.getpid(), signal.SIGKILL)
def inside(name, waits):
    def call():
        work = calls[name](group=groups[name, waits], async_op=not waits)
        if not waits and hasattr(work, "wait"):
            work.wait()
    error(call, f"{name} {'waits' if waits else 'asynchronous'} ")
threads = [threading.Thread(target=inside, args=called) for called in groups]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("transport", ["gloo", pytest.param("shared memory", marks=pytest.mark.slow)])
def test_inside_of_each_collective(transport: str) -> None:
    """One rank waits inside of each, called either way, in a group of its own, when the other is killed."""
    survivor, killed = run_ranks(INSIDE, **TRANSPORTS[transport]())
    assert (survivor.code, killed.code) == (0, -9), survivor.said
    errors = {tuple(line.split()[:2]): line for line in survivor.lines}
    assert set(errors) == {(name, way) for name in NAMED | set(OTHERS) for way in ("waits", "asynchronous")}
    for (name, _), line in errors.items():
        named = OTHERS.get(name, name)
        assert " error after " in line, line
        assert not named or f": {named} of float32[" in line, line
        assert not named or ("rank 0 of 2" in line and "group '" in line), line
        assert "onnection" in line or "rank 1 is gone" in line, line
    through_memory = "rank 1 is gone: its process" in errors["all_reduce", "waits"]
    assert through_memory == (transport == "shared memory"), errors["all_reduce", "waits"]
    assert "from rank 1 (group" in errors["recv", "waits"]


AGAIN = """
if rank == KILLED:
    os.kill(os.getpid(), signal.SIGKILL)
for name in ("first", "second"):
    error(lambda: dist.all_reduce(x), name + " ")
work = dist.all_reduce(x, async_op=True)
error(lambda: work.get_future().wait(), "future ")
print(work.is_completed(), work.is_success(), type(work.exception()).__name__)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_of_three(transport: str, killed: int) -> None:
    """The errors of both others, each time, name who is missing. Rank 0 takes the store with it."""
    ranks = run_ranks(AGAIN.replace("KILLED", str(killed)), 3, **TRANSPORTS[transport]())
    assert ranks[killed].code == -9
    for rank, ended in enumerate(ranks):
        if rank == killed:
            continue
        assert ended.code == 0, ended.said
        *errors, last = ended.lines
        assert [line.split()[0] for line in errors] == ["first", "second", "future"]
        assert all("all_reduce of float32[1000]" in line and f"rank {rank} of 3" in line for line in errors)
        assert last == "True False RuntimeError"
        if transport == "gloo" and killed:
            assert f"No word from rank {killed}: " in errors[0]


DURING = """
huge = torch.ones(1 << 24, device=device)
dist.all_reduce(huge)
if rank == 1:
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
def until_it_ends():
    while True:
        dist.all_reduce(huge)
error(until_it_ends)
"""
DDP = """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(device),
                                bucket_cap_mb=0.01)
def step(killed=False):
    y = model(torch.ones(8, 64, device=device))
    if killed:
        y.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))
    y.sum().backward()
step()
error(lambda: step(rank == 1))
dist.destroy_process_group()
"""
FSDP = """
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(device)
for layer in model:
    fully_shard(layer)
fully_shard(model)
def step(killed=False):
    if killed:
        model[1].register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    model(torch.ones(8, 64, device=device)).sum().backward()
step()
error(lambda: step(rank == 1))
dist.destroy_process_group()
"""
INSIDE_OF = {
    "a transfer of 64 MiB": (DURING, "all_reduce of float32[16777216]"),
    "the backward pass of DDP": (DDP, "all_reduce of float32["),
    "the forward pass of FSDP2": (FSDP, "all_gather_into_tensor of float32["),
}


@pytest.mark.slow
@pytest.mark.parametrize("where", INSIDE_OF)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_inside_of(where: str, transport: str) -> None:
    script, named = INSIDE_OF[where]
    survivor, killed = run_ranks(script, **TRANSPORTS[transport]())
    assert (survivor.code, killed.code) == (0, -9), survivor.said
    assert named in survivor.out
    assert "rank 0 of 2" in survivor.out
