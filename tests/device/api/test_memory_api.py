"""Memory in torch.cuda's vocabulary: every key is there, and the numbers agree with each other."""

from __future__ import annotations

import pytest
import torch

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
