"""torch.webgpu.profile: the events are those of the program, the results too."""

from __future__ import annotations

import builtins
import json
import sys
import threading
from pathlib import Path

import pytest
import torch

from torch_webgpu.api.host_costs import group
from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.runtime import devices

webgpu = torch.webgpu


def program() -> torch.Tensor:
    x = torch.arange(4096.0, device="webgpu").view(64, 64) / 4096
    y = x
    for _ in range(3):
        y = torch.relu(x @ y + 1) * 0.5
    return y.softmax(1).sum(0)


def test_events_name_kernels_and_operations() -> None:
    expected = program().cpu()
    with webgpu.profile() as p:
        result = program()
    assert torch.equal(result.cpu(), expected)
    products = [event for event in p.events if event.operation.split("+")[0] == "mm"]
    assert len(products) == 3
    assert all(event.name.startswith("matmul") for event in products)
    assert all(event.size_bytes == 3 * 64 * 64 * 4 for event in products)
    assert all(event.workgroup_size[0] >= 1 and event.grid[0] >= 1 for event in products)
    assert any("relu" in event.operation and "mul" in event.operation for event in p.events)
    assert all(event.duration_us > 0 and event.bandwidth_gbs > 0 for event in p.events)
    starts = [event.start_us for event in p.events]
    assert starts == sorted(starts)
    assert p.total_gpu_time_us == pytest.approx(sum(event.duration_us for event in p.events))


def test_events_end_before_the_profile_does() -> None:
    with webgpu.profile() as p:
        program()
    assert all(event.start_us >= 0 for event in p.events)
    for before, after in zip(p.events, p.events[1:], strict=False):
        assert after.start_us >= before.start_us + before.duration_us - 1, "one queue runs one kernel after the other"


def test_host_times_add_up_to_the_wall_time() -> None:
    with webgpu.profile(record_ops=True) as p:
        program().cpu()
    times = p.host_time_us
    assert {"python", "record", "flush", "submit", "wait"} <= times.keys()
    assert all(time_us >= 0 for time_us in times.values())
    assert sum(times.values()) == pytest.approx(p.wall_time_us)
    recorded = [event.detail for event in p.host_events if event.kind == "record"]
    assert recorded.count("aten.mm.default") == 3
    plain = webgpu.profile()
    with plain:
        program()
    assert "record" not in plain.host_time_us


def test_the_lines_that_make_the_host_late_are_told() -> None:
    x = torch.ones(8, device="webgpu")
    line = sys._getframe().f_lineno + 3
    with webgpu.profile() as p:
        for n in range(3):
            (x * n).sum().item()
        torch.linalg.eigvals(torch.ones(2, 2, dtype=torch.complex128, device="webgpu"))
    here = Path(__file__).name
    costs = {(cost.kind, cost.detail, cost.line): cost for cost in group(p.host_events)}
    assert costs["flush", "because a value was read", f"{here}:{line}"].count == 3
    assert {n for kind, _, n in costs if kind == "fallback"} == {f"{here}:{line + 1}"}
    assert sum(cost.self_us for cost in costs.values()) == pytest.approx(sum(e.self_us for e in p.host_events))
    rows = p.host_table(row_limit=-1).splitlines()
    assert any("fallback _linalg_eigvals: no kernel" in row and f"{here}:{line + 1}" in row for row in rows)
    assert "more" in p.host_table(row_limit=1)


def test_only_what_happens_inside_is_counted() -> None:
    x = torch.ones(8, device="webgpu")
    before = x.exp()
    with webgpu.profile() as p:
        inside = x.sin()
    after = x.cos()
    assert [event.operation for event in p.events] == ["sin"]
    for result, function in ((before, torch.exp), (inside, torch.sin), (after, torch.cos)):
        torch.testing.assert_close(result.cpu(), function(torch.ones(8)))
    assert all(device.observer is None for device in devices())


def test_kernels_of_other_threads_are_seen() -> None:
    x = torch.ones(8, device="webgpu")

    def work() -> None:
        x.sin().cpu()

    with webgpu.profile() as p:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [event.operation for event in p.events] == ["sin"]
    assert {event.kind for event in p.host_events if event.thread != threading.get_ident()} >= {
        "flush",
        "submit",
        "wait",
    }
    assert "flush" not in p.host_time_us


def test_in_place_operations_run_once() -> None:
    x = torch.zeros(1000, dtype=torch.int32, device="webgpu")
    with webgpu.profile():
        for _ in range(100):
            x += 1
            webgpu.flush_batch()
    assert x.cpu().eq(100).all()


def test_more_dispatches_than_wait_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["torch_webgpu.api.profile"], "MAX_UNREAD", 4)
    x = torch.zeros(8, device="webgpu")
    with webgpu.profile() as p:
        for _ in range(20):
            x += 1
            webgpu.flush_batch()
    assert len(p.events) == 20
    assert x.cpu().eq(20).all()


def test_an_error_leaves_nothing_behind() -> None:
    def fail() -> None:
        with webgpu.profile():
            torch.ones(8, device="webgpu").sin()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(device.observer is None for device in devices())
    with webgpu.profile() as p:
        assert "running" in repr(p)
        with pytest.raises(RuntimeError, match="already running"):
            webgpu.profile().start()
    with pytest.raises(RuntimeError, match="not running"):
        p.stop()


def test_the_table_is_sorted_and_cut() -> None:
    with webgpu.profile() as p:
        program()
        torch.ones(1 << 16, device="webgpu").exp()
    rows = p.key_averages("count")
    assert rows[0].label.startswith("mm")
    assert rows[0].count == 3
    assert [row.gpu_time_us for row in p.key_averages()] == sorted(
        (row.gpu_time_us for row in p.key_averages()), reverse=True
    )
    assert "mm" in p.table(sort_by="cuda_time_total")
    assert f"and {len(rows) - 1} more" in p.table(sort_by="count", row_limit=1)
    assert "more" not in p.table(row_limit=-1).splitlines()[-3]
    assert "timestamp queries" in p.table()
    with pytest.raises(ValueError, match="gpu_time_total"):
        p.table(sort_by="beauty")


def test_the_trace_has_host_and_gpu_tracks(tmp_path: Path) -> None:
    with webgpu.profile() as p:
        program()
    p.export_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    processes = {event["args"]["name"]: event["pid"] for event in trace if event["name"] == "process_name"}
    gpu = next(pid for name, pid in processes.items() if name.startswith("webgpu:0"))
    complete = [event for event in trace if event["ph"] == "X"]
    assert len([event for event in complete if event["pid"] == gpu]) == len(p.events)
    assert {event["cat"] for event in complete if event["pid"] == processes["host"]} >= {"flush", "encode", "submit"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in complete)


def test_the_picture(tmp_path: Path) -> None:
    with webgpu.profile() as p:
        program()
    p.plot(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")
    p.plot(tmp_path / "profile.svg")
    assert "GPU time (ms)" in (tmp_path / "profile.svg").read_text("utf-8")


def test_the_picture_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def without(name: str, *args: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args)  # type: ignore[arg-type]

    with webgpu.profile() as p:
        program()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        p.plot(tmp_path / "profile.png")


def test_without_timestamp_queries_the_host_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    device = engine().devices[0]
    expected = program().cpu()
    monkeypatch.setattr(device, "features", device.features - {"timestamp-query"})
    with webgpu.profile() as p:
        result = program()
    assert not p.has_timestamps
    assert "MEASURED ON THE HOST" in p.table()
    assert len([event for event in p.events if event.operation.split("+")[0] == "mm"]) == 3
    assert all(event.duration_us > 0 for event in p.events)
    assert torch.equal(result.cpu(), expected)


def test_nothing_recorded_is_nothing_measured(tmp_path: Path) -> None:
    with webgpu.profile() as p:
        pass
    assert p.events == []
    assert p.total_gpu_time_us == 0
    assert "0 dispatches" in p.table()
    p.export_chrome_trace(tmp_path / "trace.json")
    p.plot(tmp_path / "profile.png")


def test_the_kernels_of_a_captured_graph_are_seen() -> None:
    x = torch.ones(8, device="webgpu")
    webgpu.synchronize()
    graph = webgpu.Graph()
    with webgpu.graph(graph):
        y = x.sin() * 2
    with webgpu.profile() as p:
        graph.replay()
    assert [event.name for event in p.events] == ["sin+mul"]
    assert p.events[0].duration_us > 0
    assert p.events[0].size_bytes > 0
    torch.testing.assert_close(y.cpu(), torch.full((8,), 1.0).sin() * 2)
