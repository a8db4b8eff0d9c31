"""Memory in torch.cuda's vocabulary: every key is there, and the numbers agree with each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.device.processes import assert_ends_well

from torch_webgpu.errors import OutOfMemoryError
from torch_webgpu.runtime.runtime import devices

webgpu = torch.webgpu
MIB = 1 << 20

METRICS = (
    "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes "
    "requested_bytes"
).split()
NUMBERS = (
    "num_alloc_retries num_ooms num_sync_all_streams num_device_alloc num_device_free num_oom_rejections max_split_size"
).split()
FOUR = ("current", "peak", "allocated", "freed")


def test_every_key_of_torch_cuda_is_there() -> None:
    stats = webgpu.memory_stats()
    expected = {
        f"{metric}.{pool}.{key}" for metric in METRICS for pool in ("all", "large_pool", "small_pool") for key in FOUR
    }
    expected |= {f"{metric}.{key}" for metric in ("oversize_allocations", "oversize_segments") for key in FOUR}
    assert not (expected | set(NUMBERS)) - stats.keys()
    assert all(type(value) is int and value >= 0 for value in stats.values())
    assert list(stats) == sorted(stats)
    nested = webgpu.memory_stats_as_nested_dict()
    assert nested["segment"]["all"]["current"] == stats["segment.all.current"]


def test_the_counters_agree() -> None:
    before = webgpu.memory_stats()  # what was alive when the accumulated counters were last reset is not in these
    x = torch.ones(MIB, device="webgpu")
    y = (x + 1).sort().values
    webgpu.synchronize()
    del y
    stats = webgpu.memory_stats()
    for metric in METRICS:
        current, peak, allocated, freed = (stats[f"{metric}.all.{key}"] for key in FOUR)
        kept = before[f"{metric}.all.current"] + before[f"{metric}.all.freed"] - before[f"{metric}.all.allocated"]
        assert allocated - freed + kept == current or metric == "inactive_split", metric
        assert peak >= current, metric
        pools = stats[f"{metric}.large_pool.current"] + stats[f"{metric}.small_pool.current"]
        assert pools == current, metric
    assert stats["reserved_bytes.all.current"] == stats.reserved_bytes == webgpu.memory_reserved()
    assert stats["segment.all.current"] == stats.buffers + stats.pooled_buffers
    assert stats["allocated_bytes.all.current"] == stats.active_bytes == webgpu.memory_allocated()
    assert x.cpu().eq(1).all()


def test_accumulated_counters_start_again() -> None:
    x = torch.ones(MIB, device="webgpu")
    webgpu.synchronize()
    webgpu.reset_accumulated_memory_stats()
    before = webgpu.memory_stats()
    assert [before[f"{metric}.all.allocated"] for metric in METRICS] == [0] * len(METRICS)
    y = x + 1
    webgpu.synchronize()
    del y
    after = webgpu.memory_stats()
    for metric in ("allocated_bytes", "requested_bytes"):
        assert after[f"{metric}.all.allocated"] == after[f"{metric}.all.freed"] == 4 * MIB
    assert after["active.all.allocated"] == after["active.all.freed"] == 1
    assert after["active_bytes.all.allocated"] >= 4 * MIB


def test_peaks_start_again() -> None:
    webgpu.empty_cache()
    big = torch.ones(8 * MIB, device="webgpu")
    webgpu.synchronize()
    del big
    webgpu.empty_cache()
    assert webgpu.max_memory_reserved() >= webgpu.memory_reserved() + 32 * MIB
    webgpu.reset_peak_memory_stats()
    stats = webgpu.memory_stats()
    for metric in ("segment", "active", "active_bytes", "reserved_bytes", "allocated_bytes"):
        assert stats[f"{metric}.all.peak"] == stats[f"{metric}.all.current"], metric
    assert webgpu.max_memory_reserved() == webgpu.memory_reserved()


def test_the_snapshot_shows_tensors_and_what_is_pooled() -> None:
    webgpu.empty_cache()
    webgpu.synchronize()
    # The buffer for kernels' error flags, and what tests below the engine left.
    unseen = webgpu.memory_reserved() - sum(s["total_size"] for s in webgpu.memory_snapshot())
    x = torch.ones(MIB, device="webgpu")
    y = x + 1
    webgpu.synchronize()
    (segment,) = [s for s in webgpu.memory_snapshot() if s["address"] == x.untyped_storage().data_ptr()]
    (block,) = segment["blocks"]
    assert block["state"] == "active_allocated"
    assert segment["total_size"] == block["size"] >= 4 * MIB
    assert segment["requested_size"] == block["requested_size"] == 4 * MIB
    assert segment["device"] == 0
    address = y.untyped_storage().data_ptr()
    del y
    snapshot = webgpu.memory_snapshot(0)
    assert not [s for s in snapshot if s["address"] == address]
    pooled = [s for s in snapshot if s["blocks"][0]["state"] == "inactive"]
    assert sum(s["total_size"] for s in pooled) == webgpu.memory_stats().pooled_bytes >= 4 * MIB
    assert webgpu.memory_reserved() - sum(s["total_size"] for s in snapshot) == unseen
    cuda_keys = (
        "device address total_size allocated_size active_size requested_size stream segment_type segment_pool_id "
        "is_expandable frames blocks"
    ).split()
    assert set(cuda_keys) <= snapshot[0].keys()


def test_memory_of_the_adapter() -> None:
    free, total = webgpu.mem_get_info()
    assert 0 < free < total
    assert torch.accelerator.get_memory_info()[1] == total
    assert webgpu.get_device_properties().total_memory == total


def test_a_gpu_whose_driver_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    device = devices()[0]
    monkeypatch.setattr(device, "target", replace(device.target, software=False))
    monkeypatch.setattr(device, "name", "a GPU that the loader does not know")
    with pytest.raises(RuntimeError, match="does not tell how much memory"):
        webgpu.mem_get_info()
    assert webgpu.get_device_properties().total_memory == 0


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Limits this process to so many bytes more than it has."""
    webgpu.empty_cache()
    total = webgpu.mem_get_info()[1]
    yield lambda size_bytes: webgpu.set_per_process_memory_fraction((webgpu.memory_reserved() + size_bytes) / total)
    webgpu.set_per_process_memory_fraction(1.0)


def test_a_process_takes_no_more_than_its_fraction(limit: Callable[[int], None]) -> None:
    assert webgpu.get_per_process_memory_fraction() == 1
    limit(16 * MIB)
    x = torch.ones(2 * MIB, device="webgpu")
    webgpu.synchronize()
    y = torch.ones(3 * MIB, device="webgpu")  # 20 MiB in all
    with pytest.raises(torch.OutOfMemoryError, match=r"this process may use no more than .*set_per_process_memory"):
        y.cpu()
    del y
    z = x[: MIB // 2] + 1  # the program goes on
    assert z.sum().item() == MIB
    assert webgpu.memory_reserved() <= webgpu.get_per_process_memory_fraction() * webgpu.mem_get_info()[1]
    webgpu.set_per_process_memory_fraction(1.0, "webgpu:0")
    assert torch.ones(3 * MIB, device="webgpu").sum().item() == 3 * MIB


def test_what_is_pooled_makes_room_below_the_limit(limit: Callable[[int], None]) -> None:
    limit(16 * MIB)
    for size in (3, 2, 3):  # 12 and 8 MiB: never both
        assert torch.ones(size * MIB, device="webgpu").sum().item() == size * MIB


def test_fractions_that_are_none() -> None:
    for fraction, error, words in (
        (1, TypeError, "Invalid type for fraction argument, must be `float`"),
        (1.5, ValueError, "Invalid fraction value: 1.5. Allowed range: 0~1"),
        (-0.1, ValueError, "Invalid fraction value: -0.1. Allowed range: 0~1"),
    ):
        with pytest.raises(error) as raised:
            webgpu.set_per_process_memory_fraction(fraction)
        assert str(raised.value) == words
    assert webgpu.get_per_process_memory_fraction() == 1


def test_a_limit_is_set_before_the_adapter_is_used() -> None:
    script = """
        torch.webgpu.set_per_process_memory_fraction(0.0)
        with pytest.raises(torch.OutOfMemoryError, match="no more than 0 B"):
            torch.ones(1 << 20, device="webgpu").cpu()
        torch.webgpu.set_per_process_memory_fraction(1.0)
        assert torch.ones(3, device="webgpu").tolist() == [1, 1, 1]
    """
    assert_ends_well(script)


def test_this_process_is_listed() -> None:
    x = torch.ones(MIB, device="webgpu")
    webgpu.synchronize()
    first, own, *rest = webgpu.list_gpu_processes().splitlines()
    assert first == "GPU:0"
    assert own == f"process {os.getpid():>10d} uses {webgpu.memory_reserved() / MIB:>12.3f} MB GPU memory"
    assert rest == ["WebGPU does not tell of other processes"]
    assert x.sum().item() == MIB


def test_former_names() -> None:
    for old, new in (("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")):
        with pytest.warns(FutureWarning, match=f"`torch.webgpu.{old}` has been renamed to `torch.webgpu.{new}`"):
            assert getattr(webgpu, old)() == getattr(webgpu, new)()


def test_failures_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    device = devices()[0]
    pool = device.opened.pool
    webgpu.empty_cache()

    def fail(size_bytes: int, capacity: int) -> None:
        raise OutOfMemoryError("webgpu: the test has no memory")

    before = webgpu.memory_stats()
    device.release(device.allocate(5 * MIB))
    monkeypatch.setattr(pool, "_create", fail)
    with pytest.raises(OutOfMemoryError):
        device.allocate(7 * MIB)
    monkeypatch.undo()
    after = webgpu.memory_stats()
    assert after.num_alloc_retries == before.num_alloc_retries + 1
    assert after.num_ooms == before.num_ooms + 1


def test_controls_are_objects_as_well() -> None:
    """The spelling of seed 001: ``caps.limits.maxBufferSize``."""
    capabilities = webgpu.getCapabilities()
    assert capabilities.limits.maxBufferSize == capabilities["limits"]["maxBufferSize"] >= 1 << 28
    assert capabilities.limits.maxComputeWorkgroupSizeX >= 256
    stats = webgpu.memory_stats()
    assert stats.pooled_bytes == stats["pooled_bytes"]
    with pytest.raises(AttributeError, match="no 'beauty'"):
        _ = stats.beauty
