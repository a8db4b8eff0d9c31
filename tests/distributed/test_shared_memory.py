"""Collectives through shared memory, where the adapter takes host memory (Dawn: host-mapped-pointer); else skipped."""

from __future__ import annotations

import pytest
from tests.distributed.programs import run_ranks

from torch_webgpu.distributed.shared_slots import SLOTS
from torch_webgpu.engine.imported import takes_host_memory

pytestmark = pytest.mark.skipif(
    not takes_host_memory(0), reason="this adapter takes no host memory (host-mapped-pointer, which is Dawn's)"
)

SHARED = """
from torch_webgpu.distributed.groups import staging_groups
assert staging_groups()[0].why_through_gloo is None, staging_groups()[0].why_through_gloo
size = dist.get_world_size()
"""
VALUES = """
floats, words = (torch.float32, torch.float16, torch.bfloat16), (torch.int8, torch.uint8, torch.int32, torch.int64)
for dtype in (*floats, *words, torch.bool):
    for count in (1, 7, 3_000_001):
        seeds = [torch.Generator().manual_seed(r) for r in range(size)]
        hosts = [torch.randint(0, 3, (count,), generator=seed).to(dtype) for seed in seeds]
        t = hosts[rank].to(device)
        dist.all_reduce(t)
        wanted = sum(h.to(torch.float64) for h in hosts)
        wanted = wanted != 0 if dtype == torch.bool else wanted.to(dtype)
        assert torch.equal(t.cpu(), wanted), (dtype, count)
big = torch.randn(5_000_001, generator=torch.Generator().manual_seed(5))  # several chunks
t = (big * (rank + 1)).to(device)
dist.all_reduce(t, dist.ReduceOp.AVG)
torch.testing.assert_close(t.cpu(), big * (size + 1) / 2)
for op, wanted in ((dist.ReduceOp.MAX, size), (dist.ReduceOp.MIN, 1)):
    t = torch.full((10,), rank + 1, device=device)
    dist.all_reduce(t, op)
    assert t[3].item() == wanted
t = torch.full((3, 4), float(rank), device=device).t()
dist.broadcast(t, 1)
assert (t == 1).all().item()
whole = torch.empty(size * 1001, device=device)
dist.all_gather_into_tensor(whole, torch.full((1001,), float(rank), device=device))
assert torch.equal(whole.cpu(), torch.arange(size).float().repeat_interleave(1001))
part = torch.empty(1001, device=device)
dist.reduce_scatter_tensor(part, torch.arange(size * 1001.0, device=device))
assert torch.equal(part.cpu(), size * torch.arange(size * 1001.0).chunk(size)[rank])
works = [dist.all_reduce(x, async_op=True) for _ in range(20)]
for work in works:
    work.wait()
assert (x == size**21).all().item()
dist.destroy_process_group()
print("right")
"""


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_values(count: int) -> None:
    for code, out, said in run_ranks(SHARED + VALUES, count):
        assert (code, out.split()) == (0, ["right"]), said


def test_the_memory_goes_with_the_group() -> None:
    script = (
        SHARED
        + """
from pathlib import Path
from torch_webgpu.engine.record import engine
imported = engine().device(0).opened.imported
def held():
    files = [os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")]
    maps = Path("/proc/self/maps").read_text()
    return maps.count("memfd:torch-webgpu"), str(files).count("memfd:torch-webgpu"), len(imported._buffers)
other = dist.new_group([0, 1])
dist.all_reduce(x, group=other)
works = [dist.all_reduce(x, group=other, async_op=True) for _ in range(3)]
print(*held())
dist.destroy_process_group(other)
print(*held())
dist.destroy_process_group()
print(*held(), x[0].item())
"""
    )
    for code, out, said in run_ranks(script):
        two, one, none = out.splitlines()
        assert code == 0, said
        buffers = 2 * SLOTS  # of two ranks
        assert two == f"2 2 {2 * buffers}"
        assert one == f"1 1 {buffers}"
        assert none == "0 0 0 32.0"


def test_a_mismatch_is_told_to_all_and_they_go_on() -> None:
    script = (
        SHARED
        + """
error(lambda: dist.all_reduce(torch.ones(10 + rank, device=device)))
error(lambda: dist.all_reduce(x, dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX))
flags = torch.ones(4, device=device) > 0
error(lambda: dist.all_reduce(flags, dist.ReduceOp.SUM if rank else dist.ReduceOp.AVG))
error(lambda: dist.all_reduce(flags, dist.ReduceOp.AVG))
big = torch.ones(9_000_000 if rank else 10, device=device)  # of five chunks, or one, copied at once
others = [torch.full((10 + 2_000_000 * k,), float(k), device=device) for k in range(6)]
works = [dist.all_reduce(t, async_op=True) for t in (big, *others)]
error(works[0].wait)
assert all(work.wait() for work in works[1:])
assert all((t == 2 * k).all().item() for k, t in enumerate(others))
x = torch.ones(4, device=device)
dist.all_reduce(x)
print(x[0].item())
"""
    )
    for code, out, said in run_ranks(script):
        sizes, reductions, one_refuses, all_refuse, chunks, after = out.splitlines()
        assert code == 0, said
        assert "mismatched collectives" in sizes
        assert "allreduce of float32[10] by sum" in sizes
        assert "by max" in reductions
        assert "rank 0 calls what is refused: Cannot use ReduceOp.AVG with torch.bool" in one_refuses
        assert "mismatched" not in all_refuse
        assert "Cannot use ReduceOp.AVG with torch.bool" in all_refuse
        assert "mismatched collectives" in chunks
        assert after == "2.0"


def test_a_rank_that_calls_a_collective_of_gloo() -> None:
    """While the other calls one of shared memory, or another one of gloo: both are told, and go on."""
    script = (
        SHARED
        + """
def gather():
    dist.gather(x, [torch.empty_like(x) for _ in range(2)] if rank == 0 else None)
error(gather if rank else lambda: dist.all_reduce(x))
error(gather if rank else lambda: dist.scatter(x, [x, x]))
y = torch.zeros(4, device=device)
parts = [torch.full((4,), r + 1.0, device=device) for r in range(2)] if rank == 0 else None
works = [dist.scatter(y, parts, async_op=True), dist.all_reduce(y, async_op=True)]  # of what comes by gloo
for work in works:
    work.wait()
print(y[0].item())
out = torch.empty(2, 4, device=device)
dist.all_to_all_single(out, torch.ones(2, 4, device=device) * rank)
dist.all_reduce(out)
error(lambda: dist.all_to_all_single(out, torch.ones(3, 4, device=device)))
dist.all_reduce(out)
print(out[:, 0].tolist())
"""
    )
    for rank, (code, out, said) in enumerate(run_ranks(script)):
        assert code == 0, said
        one, other, in_order, refused, after = out.splitlines()
        assert "mismatched collectives: rank" in one
        assert "calls gather through gloo" in one
        assert "calls allreduce of float32[1000] by sum" in one
        assert "calls scatter through gloo" in other
        assert f"rank {rank} of 2" in other
        assert in_order == "3.0"
        assert "mismatched" not in refused
        assert "no error" not in refused
        assert after == "[0.0, 4.0]"


def test_a_peer_that_is_killed() -> None:
    script = (
        SHARED
        + """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
big = torch.ones(2000, device=device)
error(lambda: dist.all_reduce(x))
error(lambda: dist.broadcast(x, 1))
error(lambda: dist.all_gather_into_tensor(big, x))
error(lambda: dist.reduce_scatter_tensor(x, big))
error(lambda: dist.all_reduce(x, async_op=True).wait())
"""
    )
    (code, out, said), (killed, _, _) = run_ranks(script)
    lines = out.splitlines()
    assert (code, killed, len(lines)) == (0, -9, 5), said
    assert all("rank 1 is gone" in line and "rank 0 of 2" in line for line in lines), out


def test_a_peer_that_is_killed_while_the_ranks_connect() -> None:
    script = (
        SHARED
        + """
from torch_webgpu.distributed import shared_check
if rank == 1:
    shared_check.Check.write = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
group = dist.new_group([0, 1])
error(lambda: dist.all_reduce(x, group=group))
print(open("/proc/self/maps").read().count("memfd:torch-webgpu"))
"""
    )
    (code, out, said), (killed, _, _) = run_ranks(script)
    assert (code, killed) == (0, -9), said
    assert "rank 1 is gone" in out
    assert float(out.split()[2]) < 30  # the group's timeout is 60 s


def test_a_rank_that_never_arrives() -> None:
    script = (
        SHARED
        + """
if rank == 0:
    error(lambda: dist.all_reduce(x))
    os._exit(0)
time.sleep(8)
"""
    )
    (_, out, _), _ = run_ranks(script, TIMEOUT="3")
    assert "Timed out waiting 3000ms for rank 1 of 2" in out


def test_a_first_exchange_that_goes_wrong() -> None:
    """Wrong bytes, or none in time: gloo carries that group, and says why."""
    script = (
        SHARED
        + """
from torch_webgpu.distributed import shared_check, shared_connect
write = shared_check.Check.write
def wrong(check, slot, number):
    write(check, slot, number)
    if rank == 1 and number == 16:  # through a slot that is used once more
        slot.of(torch.int32, 1).fill_(7)
def late(check, slot, number):
    time.sleep(6 * rank * (number == 1))
    write(check, slot, number)
for each in (wrong, late):
    shared_check.Check.write = each
    shared_connect.CHECK_S = 60 if each is wrong else 3
    group = dist.new_group([0, 1])
    x = torch.ones(8, device=device)
    dist.all_reduce(x, group=group)
    print(x[7].item(), [g.why_through_gloo for g in staging_groups() if g.why_through_gloo][-1])
maps = open("/proc/self/maps").read().count("memfd:torch-webgpu")
dist.all_reduce(x)
print(x[7].item(), maps)
"""
    )
    for code, out, said in run_ranks(script):
        assert code == 0, said
        wrong, late, others = out.splitlines()
        assert wrong.startswith("2.0 rank 0: the first exchange went wrong: 1 of ")
        assert "of ranks [1]" in wrong
        assert late.startswith("2.0 rank 0: the first exchange went wrong: Timed out waiting 3000ms for rank 1 of 2")
        assert others == "4.0 1"
        assert "collectives go through gloo, and not through shared memory" in said


def test_it_is_switched_off() -> None:
    script = "from torch_webgpu.distributed.groups import staging_groups; print(staging_groups()[0].why_through_gloo)"
    for _, out, said in run_ranks(script, TORCH_WEBGPU_SHARED_MEMORY="0"):
        assert "TORCH_WEBGPU_SHARED_MEMORY is 0" in out, said
