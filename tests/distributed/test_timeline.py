"""What profilers show of collectives: the times of their steps, in order, their bytes, their group."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from tests.distributed.ranks import on_ranks
from torch import distributed as dist
from torch.profiler import ProfilerActivity, profile

from torch_webgpu.distributed import timeline

DEVICE = "webgpu"
STEPS = ["called", "read", "issued", "reduced", "uploaded"]


def called() -> list[tuple[str, int, int]]:
    """Calls collectives, in all the ways they are called. (name, bytes read, bytes written) of each on this rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, many = torch.ones(1000, device=DEVICE), torch.ones(size, 1000, device=DEVICE)
    dist.all_reduce(x)
    works = [dist.all_reduce(x.half(), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    dist.broadcast(x, 1)
    dist.all_gather_into_tensor(many, x)
    dist.reduce_scatter_tensor(x, many)
    dist.all_reduce_coalesced([x, x[:10].clone()])
    with dist._coalescing_manager(device=torch.device(DEVICE, 0)) as block:
        dist.all_gather_into_tensor(many, x)
        dist.all_gather_into_tensor(many, x)
    if block.works:
        block.wait()
    return [
        ("all_reduce", 4000, 4000), *[("all_reduce", 2000, 2000)] * 3,
        ("broadcast", 4000 * (rank == 1), 4000 * (rank != 1)),
        ("all_gather_into_tensor", 4000, 4000 * size), ("reduce_scatter_tensor", 4000 * size, 4000),
        ("all_reduce_coalesced", 4040, 4040), ("all_gather_into_tensor_coalesced", 8000, 8000 * size),
    ]  # fmt: skip


@on_ranks
def test_the_profile_has_all_times_in_order() -> None:
    with torch.webgpu.profile() as p:
        wanted = called()
    found = [(e.name, e.in_bytes, e.out_bytes) for e in p.collectives]
    assert found == wanted, found
    for event in p.collectives:
        in_order = [step for step, _ in event.steps]
        assert event.transport in ("gloo", "shared memory"), event
        assert in_order == (["called", "issued", "read", *STEPS[3:]] if event.transport != "gloo" else STEPS), event
        assert 0 <= event.called_us <= event.end_us <= p.wall_time_us
        assert (event.group, event.rank, event.size) == (dist.group.WORLD.group_name, dist.get_rank(), 2)
    assert "Collectives: 4 all_reduce through" in p.table()


@on_ranks
def test_the_trace_has_a_row_of_them() -> None:
    with torch.webgpu.profile() as p:
        called()
    with tempfile.TemporaryDirectory() as folder:
        p.export_chrome_trace(Path(folder) / "trace.json")
        p.plot(Path(folder) / "picture.png")
        trace = json.loads((Path(folder) / "trace.json").read_text("utf-8"))["traceEvents"]
    (process,) = [e["pid"] for e in trace if e["ph"] == "M" and e["args"]["name"] == "collectives"]
    rows = [e["args"]["name"] for e in trace if e["name"] == "thread_name" and e["pid"] == process]
    assert rows[0] == f"group {dist.group.WORLD.group_name!r}, rank {dist.get_rank()} of 2"
    shown = [e for e in trace if e["pid"] == process and e["ph"] == "X"]
    whole = [e for e in shown if e["args"]]
    assert [e["args"]["bytes"] for e in whole][:2] == [4000, 2000]
    assert [e["args"]["rank"] for e in whole] == [dist.get_rank()] * 9
    assert len(shown) == 5 * len(whole)  # four stages each
    for e in whole:
        inside = [
            s for s in shown if not s["args"] and e["ts"] <= s["ts"] <= e["ts"] + e["dur"] and s["tid"] == e["tid"]
        ]
        assert abs(sum(s["dur"] for s in inside) - e["dur"]) < 1, e


@on_ranks
def test_torch_profiler_has_a_range_until_each_step() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as p:
        called()
        dist.barrier(device_ids=[0])
    shown = [e for e in p.events() if e.name.startswith("webgpu::all_reduce ")]
    what = f"bytes, group '{dist.group.WORLD.group_name}', rank {dist.get_rank()} of 2)"
    for size in (4000, 2000):
        of_size = [e for e in shown if e.name.endswith(f"({size} {what}")]
        assert len(of_size) == 4 * (1 if size == 4000 else 3)
        for step in STEPS[1:]:
            assert any(e.name.startswith(f"webgpu::all_reduce {step} ") for e in of_size), (step, size)
    (first,) = [e.time_range for e in shown if e.name.startswith("webgpu::all_reduce read (4000")]
    (last,) = [e.time_range for e in shown if e.name.startswith("webgpu::all_reduce uploaded (4000")]
    assert last.start <= first.start <= first.end <= last.end


@on_ranks
def test_nobody_pays_who_does_not_look() -> None:
    made: list[object] = []
    plain = timeline.Timeline.__init__
    timeline.Timeline.__init__ = lambda self, *args, **kwargs: made.append(args) or plain(self, *args, **kwargs)  # type: ignore[method-assign]
    try:
        called()
        assert not made
        with timeline.watching() as seen:
            called()
        assert len(made) == len(seen) == 9
    finally:
        timeline.Timeline.__init__ = plain  # type: ignore[method-assign]


@on_ranks
def test_an_error_ends_the_ranges() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as p, timeline.watching() as seen, pytest.raises(RuntimeError):
        dist.all_reduce(torch.zeros(3, dtype=torch.uint64, device=DEVICE))
    assert all(t.error for t in seen)
    assert all(e.time_range.end >= e.time_range.start for e in p.events())
    dist.all_reduce(torch.ones(3, device=DEVICE))
