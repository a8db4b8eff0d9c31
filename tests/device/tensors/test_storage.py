"""Storages: resizing under views, copying, sharing; what PyTorch asks of them around tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def bytes_of(*values: float) -> list[int]:
    return torch.tensor(values, dtype=torch.float32).untyped_storage().tolist()


def test_construction(device: torch.device) -> None:
    assert torch.UntypedStorage(10, device=device).nbytes() == 10
    assert torch.UntypedStorage(device=device).nbytes() == 0
    assert torch.UntypedStorage([1, 2, 255], device=device).tolist() == [1, 2, 255]
    assert torch.UntypedStorage(3, device=device).device.type == device.type
    assert torch.UntypedStorage(4, device="cpu").fill_(1).tolist() == [1] * 4
    assert torch.UntypedStorage(4).device.type == "cpu"
    assert torch.ones(3, device=device).untyped_storage().new().nbytes() == 0
    assert torch.TypedStorage(5, dtype=torch.float32, device=device).nbytes() == 20


def test_contents(device: torch.device) -> None:
    storage = torch.tensor([1.0, 2.0], device=device).untyped_storage()
    assert storage.tolist() == bytes_of(1.0, 2.0)
    assert storage.cpu().tolist() == bytes_of(1.0, 2.0)
    assert storage.clone().tolist() == bytes_of(1.0, 2.0)
    assert storage.clone().data_ptr() != storage.data_ptr()
    assert storage[3] == bytes_of(1.0)[3]
    storage[3] = 7
    assert storage[3] == 7
    assert storage.fill_(3).tolist() == [3] * 8
    assert storage.copy_(torch.tensor([3.0, 4.0]).untyped_storage()).tolist() == bytes_of(3.0, 4.0)
    assert torch.zeros(2).untyped_storage().copy_(storage).tolist() == bytes_of(3.0, 4.0)
    assert "size 8" in repr(storage)


def test_moving(device: torch.device) -> None:
    storage = torch.tensor([1.0]).untyped_storage().to(device=device)
    assert storage.device.type == device.type
    assert storage.to(device="cpu", non_blocking=True).tolist() == bytes_of(1.0)
    assert storage.to(device=storage.device) is storage
    if device.type == "webgpu":
        assert torch.tensor([1.0]).untyped_storage().webgpu().is_webgpu


def test_one_storage_under_all_views(device: torch.device) -> None:
    x = torch.arange(6.0, device=device)
    assert x[2:].untyped_storage()._cdata == x.untyped_storage()._cdata
    assert x[2:].data_ptr() == x.data_ptr() + 8
    assert x.is_set_to(x.view(6))
    assert not x.is_set_to(x.clone())
    assert not x[1:].is_set_to(x[:-1])
    assert x.clone().data_ptr() != x.data_ptr()


def test_resize_grows_under_every_view(device: torch.device) -> None:
    x = torch.arange(4.0, device=device)
    view, pointer = x[1:3], x.untyped_storage()._cdata
    x.add_(1)
    x.resize_(3, 5)
    assert x.untyped_storage()._cdata == pointer
    assert x.untyped_storage().nbytes() == 60
    assert x.flatten()[:4].tolist() == [1, 2, 3, 4]
    x.fill_(9)
    assert view.tolist() == [9, 9]
    view.fill_(5)
    assert x.flatten()[:4].tolist() == [9, 5, 5, 9]


def test_resize_keeps_the_storage_when_shrinking(device: torch.device) -> None:
    x = torch.arange(12.0, device=device)
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    assert x.untyped_storage().nbytes() == 48
    assert x.resize_(12).tolist() == list(range(12))


def test_resize_memory_formats_and_offsets(device: torch.device) -> None:
    x = torch.empty(0, device=device).resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)
    y = torch.arange(6.0, device=device)[4:]
    assert y.resize_(4)[:2].tolist() == [4, 5]
    assert y.untyped_storage().nbytes() == 32
    assert torch.arange(6.0, device=device).resize_as_(torch.empty(2, 3, device=device)).shape == (2, 3)
    with pytest.raises(RuntimeError, match="Preserve"):
        torch.empty(0, device=device).resize_(3, memory_format=torch.preserve_format)
    with pytest.raises(RuntimeError):
        torch.ones(3, device=device, requires_grad=True).resize_(4)


def test_resize_beyond_the_adapter(device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("about the adapter's limits")
    x = torch.arange(3.0, device=device)
    with pytest.raises(torch.OutOfMemoryError, match="cannot hold"):
        x.resize_(1 << 40)
    assert x.tolist() == [0, 1, 2]
    assert x.untyped_storage().nbytes() == 12


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.int64], ids=str)
def test_resize_other_types(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.ones(3, dtype=dtype, device=device)
    assert x.resize_(7)[:3].tolist() == [1, 1, 1]


@pytest.mark.usefixtures("settled")
def test_freed_and_refilled_storage(device: torch.device) -> None:
    """What FSDP does between uses of a parameter."""
    x = torch.arange(1024.0, device=device)
    view = x.view(32, 32)
    storage = x.untyped_storage()
    before = torch.webgpu.memory_allocated() if device.type == "webgpu" else 0
    storage.resize_(0)
    assert storage.nbytes() == 0
    if device.type == "webgpu":
        assert torch.webgpu.memory_allocated() == before - 4096
    storage.resize_(4096)
    x.copy_(torch.arange(1024.0) * 2)
    assert view[1, 0].item() == 64
    storage.resize_(2048)
    storage.resize_(4096)
    assert x[:512].tolist() == [2.0 * i for i in range(512)]


def test_set_(device: torch.device) -> None:
    x = torch.arange(6.0, device=device)
    empty = torch.empty(0, device=device)
    assert empty.set_(x).is_set_to(x)
    assert empty.set_(x.untyped_storage()).tolist() == x.tolist()
    assert empty.set_(x.untyped_storage(), 1, (2, 2), (1, 2)).tolist() == [[1, 3], [2, 4]]
    assert empty.set_(x, 2, (2,), (3,)).tolist() == [2, 5]
    assert empty.set_(x.untyped_storage(), 3, (2,)).tolist() == [3, 4]
    assert empty.set_().numel() == 0
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    grown = torch.empty(0, device=device).set_(x.untyped_storage(), 4, (4,))
    assert grown[:2].tolist() == [4, 5]
    assert x.untyped_storage().nbytes() == 32
    if device.type != "cpu":
        with pytest.raises(RuntimeError, match="device"):
            torch.empty(0, device=device).set_(torch.ones(3).untyped_storage())
        with pytest.raises(RuntimeError):
            torch.empty(0, device=device).set_(torch.ones(3))


def test_data_and_swapping(device: torch.device) -> None:
    x, y = torch.zeros(2, device=device), torch.arange(3.0, device=device)
    x.data = y
    assert x.data_ptr() == y.data_ptr()
    p = nn.Parameter(torch.zeros(2, device=device))
    p.data = y
    p.data.mul_(2)
    assert y.tolist() == [0, 2, 4]
    a, b = torch.zeros(2, device=device), torch.ones(3, device=device)
    torch.utils.swap_tensors(a, b)
    assert (a.shape, b.shape) == ((3,), (2,))


def test_modules_keep_their_parameters_when_they_move(device: torch.device) -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    model[0].weight.tag = "tied"
    model[0].weight.grad = torch.ones(5, 4)
    before = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to(device)
    assert model[0].weight is before
    assert model[1].weight is before
    assert before.device.type == device.type
    assert before.grad is not None
    assert before.grad.device.type == device.type
    assert before.tag == "tied"
    assert model[0].weight.data_ptr() == model[1].weight.data_ptr()
    value = before.detach().cpu().clone()
    optimizer.step()
    torch.testing.assert_close(model[1].weight.detach().cpu(), value - 1)
    optimizer.zero_grad()
    model(torch.tensor([1, 2], device=device)).sum().backward()
    assert model.cpu()[1].weight is before
    assert before.device.type == "cpu"
    assert before.requires_grad
    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_modules_move_between_forward_passes(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LSTM(4, 2))
    x = torch.randn(5, 3)
    model[:2](x).sum().backward()
    model.to(device)
    model[:2](x.to(device)).sum().backward()
    assert all(p.device.type == device.type for p in model.parameters())
    assert model[1].running_mean.device.type == device.type
    assert model.half()[0].weight.dtype == torch.float16
    meta = nn.Linear(3, 3, device="meta").to_empty(device=device)
    assert meta.weight.device.type == device.type


def test_sharing_between_processes_is_refused(device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("other devices may share their memory")
    x = torch.ones(2, device=device)
    with pytest.raises(RuntimeError, match=r"shared between processes.*cpu\(\)"):
        x.share_memory_()
    with pytest.raises(RuntimeError, match="shared between processes"):
        x.untyped_storage().share_memory_()
    assert not x.is_shared()


# Canaries: each fails when PyTorch no longer needs a patch (see tests/test_patches.py).


def test_python_backends_still_cannot_hook_storage_or_pinned_memory() -> None:
    hooks = {name for name in dir(torch._C._acc.PrivateUse1Hooks) if not name.startswith("_")}
    assert hooks == {"has_primary_context", "is_available", "is_built"}


def test_printing_would_still_need_float64() -> None:
    import inspect

    from torch import _tensor_str

    assert "webgpu" not in inspect.getsource(_tensor_str.tensor_totype)
    assert "torch.double" in inspect.getsource(_tensor_str.tensor_totype)
