"""Memory under several names: slices of storages, DLPack, lazy clones; and numbers that are copied."""

from __future__ import annotations

import pytest
import torch


def test_slices_of_storages_are_read_where_they_start(device: torch.device) -> None:
    for begin, end in ((0, 4), (4, 8), (4, 12), (16, 32), (28, 32)):
        seen = []
        for where in ("cpu", device):
            x = torch.arange(1.0, 9.0).to(where)
            part = x.untyped_storage()[begin:end]
            copied = torch.zeros(end - begin, dtype=torch.uint8, device=where).untyped_storage().copy_(part)
            seen.append((part.tolist(), part.cpu().tolist(), part.clone().tolist(), copied.tolist(), part.nbytes()))
            part.fill_(0)
            seen[-1] += (x.tolist(),)
        assert seen[0] == seen[1]


def test_tensors_over_slices_of_storages(device: torch.device) -> None:
    x = torch.arange(8.0, device=device)
    y = torch.empty(0, device=device).set_(x.untyped_storage()[16:32])
    assert y.tolist() == [4, 5, 6, 7]
    y.copy_(x[3:7])  # overlaps it under another name
    assert x.tolist() == [0, 1, 2, 3, 3, 4, 5, 6]
    y.mul_(2)
    assert (x + 1).tolist() == [1, 2, 3, 4, 7, 9, 11, 13]
    if device.type == "webgpu":
        with pytest.raises(RuntimeError, match="copy the slice"):
            torch.empty(0, device=device).set_(x.untyped_storage()[2:10])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64, torch.complex64], ids=str)
def test_slices_of_storages_start_at_any_element(device: torch.device, dtype: torch.dtype) -> None:
    seen = []
    for where in ("cpu", device):
        whole = torch.arange(96, dtype=torch.uint8).to(where)
        values: list[object] = []
        for start in range(0, 17, dtype.itemsize):
            part = torch.empty(0, dtype=dtype, device=where).set_(whole.untyped_storage()[start : start + 48])
            values += [part.tolist(), (part[1:] + part[:-1]).tolist(), part.view(2, -1).t().flip(0).tolist()]
            part[1:3].fill_(1)
            values += [torch.from_dlpack(part[1:]).tolist(), whole.tolist()]
        seen.append(repr(values))
    assert seen[0] == seen[1]


def test_slices_of_storages_do_not_grow(device: torch.device) -> None:
    for where in ("cpu", device):
        whole = torch.arange(8, dtype=torch.uint8, device=where)
        part = torch.empty(0, dtype=torch.uint8, device=where).set_(whole.untyped_storage()[3:6])
        with pytest.raises(RuntimeError, match="Trying to resize storage that is not resizable"):
            part.resize_(20)
        assert whole.untyped_storage().nbytes() == 8


def test_dlpack_shares_memory(device: torch.device) -> None:
    x = torch.arange(8.0, device=device)
    if device.type == "webgpu":
        assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLExtDev, 0)
    for y in (
        torch.from_dlpack(x), torch.from_dlpack(x, device=device), torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
        torch.from_dlpack(x.view(2, 4).t()),
    ):  # fmt: skip
        assert y.device == x.device
        assert y.data_ptr() == x.data_ptr()
        y.add_(1)
    assert x.tolist() == [4.0 + k for k in range(8)]
    part = torch.from_dlpack(x[4:])
    del x, y
    assert (part * 2).tolist() == [16, 18, 20, 22]
    assert torch.from_dlpack(part, copy=True).data_ptr() != part.data_ptr()
    assert torch.from_dlpack(part, device="cpu").device.type == "cpu"
    assert torch.from_dlpack(torch.ones(2), device=device).device.type == device.type


def test_dlpack_refusals(device: torch.device) -> None:
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(torch.ones(2, device=device, requires_grad=True))
    if device.type == "webgpu":
        with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):
            pytest.importorskip("numpy").from_dlpack(torch.ones(2, device=device))


def test_canary_pytorch_names_no_dlpack_device_of_python_backends(device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("about webgpu")
    with pytest.raises(ValueError, match="Unknown device type"):
        torch.Tensor.__dlpack_device__.__wrapped__(torch.ones(1, device=device))


def test_lazy_clones(device: torch.device) -> None:
    base = torch.arange(12.0)
    for view in (base, base.view(3, 4).t(), base[2:8:2], base[:1].expand(5), base[:0]):
        on_device = (
            view.to(device)
            if view.is_contiguous()
            else base.to(device).as_strided(view.shape, view.stride(), view.storage_offset())
        )
        clone, expected = torch._lazy_clone(on_device), torch._lazy_clone(view)
        assert clone.stride() == expected.stride()
        assert torch.equal(clone.cpu(), expected)
        if clone.numel():
            clone[0] = 100
            assert (on_device != 100).all()


def test_numbers_are_copied_as_on_the_cpu(device: torch.device) -> None:
    for dtype in (torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64):
        for value in (3.0, 3.7, -2, True, 0):
            if dtype == torch.uint8 and value == -2:
                continue
            result = torch.ones(2, 3, dtype=dtype, device=device).copy_(value)
            assert torch.equal(result.cpu(), torch.ones(2, 3, dtype=dtype).copy_(value)), (dtype, value)
