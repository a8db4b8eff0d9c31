"""Saving, loading, pickling, copying and showing tensors; handing them to other processes and libraries."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
UNPICKLABLE = [torch.uint16, torch.uint32, torch.uint64]
"""PyTorch cannot unpickle (as opposed to load) these, on any device."""


def saved(value: Any, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


def some(dtype: torch.dtype) -> torch.Tensor:
    x = torch.arange(12).reshape(3, 4) % 5
    return (x == 1) if dtype == torch.bool else x.to(dtype)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


# torch.save and torch.load --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_of_every_dtype(dtype: torch.dtype, device: torch.device) -> None:
    want = some(dtype)
    x = want.to(device)
    back = torch.load(saved(x))
    assert back.device == x.device
    assert torch.equal(back.cpu(), want)
    assert torch.equal(torch.load(saved(x), map_location="cpu"), want)
    assert torch.equal(torch.load(saved(want), map_location=device).cpu(), want)
    if dtype not in UNPICKLABLE:
        assert torch.equal(pickle.loads(pickle.dumps(x)).cpu(), want)
    assert torch.equal(copy.deepcopy(x).cpu(), want)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("weights_only", [True, False])
def test_map_location(zipped: bool, weights_only: bool, device: torch.device) -> None:
    x = torch.arange(5.0)
    for source in (x, x.to(device)):
        for location in (
            str(device),
            f"{device.type}:0" if device.type != "cpu" else "cpu",
            device,
            {"cpu": str(device), f"{device.type}:0": str(device)},
            lambda storage, where: storage.to(device=torch.device(device)),
        ):
            file = saved(source, _use_new_zipfile_serialization=zipped)
            back = torch.load(file, map_location=location, weights_only=weights_only)
            assert back.device.type == device.type
            assert back.tolist() == [0, 1, 2, 3, 4]


def test_a_cuda_file_loads_here(device: torch.device) -> None:
    file = saved(torch.arange(5.0))
    relocated = file.getvalue().replace(b"cpu", b"cud")  # same length; the tag decides nothing but the location
    with pytest.raises(RuntimeError):
        torch.load(io.BytesIO(relocated))
    assert torch.load(io.BytesIO(relocated), map_location={"cud": str(device)}).tolist() == [0, 1, 2, 3, 4]


def test_memory_mapped_files(tmp_path: Path, device: torch.device) -> None:
    torch.save({"x": torch.arange(100.0)}, tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", map_location=device, mmap=True)["x"][-1].item() == 99


def test_views_share_their_storage_after_loading(device: torch.device) -> None:
    x = torch.arange(10.0, device=device)
    a, b, whole = torch.load(saved((x[2:5], x[::2], x)))
    assert a.untyped_storage()._cdata == whole.untyped_storage()._cdata
    assert b.stride() == (2,)
    whole.fill_(7)
    assert a.tolist() == [7, 7, 7]
    assert torch.load(saved(x.view(2, 5).t())).stride() == (1, 5)


def test_lazy_and_grad_flags(device: torch.device) -> None:
    z = torch.tensor([1 + 2j], dtype=torch.complex64, device=device).conj()
    assert torch.load(saved(z)).is_conj()
    assert torch.load(saved(z)).item() == 1 - 2j
    p = torch.load(saved(nn.Parameter(torch.ones(2, device=device))))
    assert isinstance(p, nn.Parameter)
    assert p.requires_grad
    assert p.device.type == device.type


def test_modules_and_optimizers(device: torch.device) -> None:
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model.head(model.norm(model.embedding(torch.arange(7, device=device)))).sum().backward()
    optimizer.step()
    state = torch.load(saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}), map_location="cpu")
    assert state["model"]["head.weight"].data_ptr() == state["model"]["embedding.weight"].data_ptr()
    twin = Net().to(device)
    twin.load_state_dict(state["model"])
    twin_optimizer = torch.optim.Adam(twin.parameters())
    twin_optimizer.load_state_dict(state["optimizer"])
    for key, value in model.state_dict().items():
        assert torch.equal(twin.state_dict()[key].cpu(), value.cpu())
    for one, other in zip(optimizer.state.values(), twin_optimizer.state.values(), strict=True):
        assert torch.equal(one["exp_avg"].cpu(), other["exp_avg"].cpu())
        assert other["exp_avg"].device.type == device.type
    whole = torch.load(saved(model), weights_only=False)
    assert whole.head.weight is whole.embedding.weight
    assert whole.norm.running_mean.device.type == device.type
    Net().load_state_dict(model.state_dict())
    assigned = Net().to("meta")
    assigned.load_state_dict(model.state_dict(), assign=True)
    assert assigned.norm.weight.device.type == device.type


def test_deep_copies(device: torch.device) -> None:
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.embedding.weight.grad = torch.ones_like(model.embedding.weight)
    optimizer.step()
    leaf = torch.ones(2, device=device, requires_grad=True)
    leaf.grad = torch.full((2,), 3.0, device=device)
    assert copy.deepcopy(leaf).grad.tolist() == [3, 3]  # type: ignore[union-attr]
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embedding.weight
    assert twin.head.weight.data_ptr() != model.head.weight.data_ptr()
    state = copy.deepcopy(optimizer.state_dict())
    assert state["state"][0]["momentum_buffer"].device.type == device.type
    x = torch.arange(6.0, device=device)
    a, b = copy.deepcopy([x[1:], x])
    b[2] = 50
    assert a[1].item() == 50
    assert x[2].item() == 2
    assert copy.copy(x).data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x.requires_grad_() * 2)


def test_loading_where_there_is_no_webgpu(tmp_path: Path, device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("about files saved from webgpu")
    torch.save({"x": torch.arange(3.0, device=device)}, tmp_path / "x.pt")
    program = f"""
import torch
assert not hasattr(torch, "webgpu")
assert torch.load({str(tmp_path / "x.pt")!r}, map_location="cpu")["x"].tolist() == [0, 1, 2]
try:
    torch.load({str(tmp_path / "x.pt")!r})
except RuntimeError as error:
    assert "webgpu:0" in str(error), error
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.float64
def test_safetensors(tmp_path: Path, device: torch.device) -> None:
    tensors = {str(dtype): some(dtype).to(device) for dtype in DTYPES if not dtype.is_complex}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    for location, expected in ((str(device), device.type), ("cpu", "cpu")):
        back = safetensors.torch.load_file(tmp_path / "x.safetensors", device=location)
        for key, value in tensors.items():
            assert back[key].device.type == expected
            assert torch.equal(back[key].cpu(), value.cpu())
    model, twin = Net().to(device), Net().to(device)
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    safetensors.torch.load_model(twin, str(tmp_path / "model.safetensors"), device=str(device))
    assert torch.equal(twin.head.weight.cpu(), model.head.weight.cpu())
    assert twin.head.weight.data_ptr() == twin.embedding.weight.data_ptr()


# Other processes ------------------------------------------------------------------------------------------------------


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)


LOADER = """
import torch
import torch_webgpu
from torch.utils.data import DataLoader, TensorDataset
x = torch.arange(12.0, device="webgpu")   # the parent has the device open
data = TensorDataset(torch.arange(12.0), torch.arange(12))
for options in ({{}}, {{"pin_memory": True}}):
    total = torch.zeros((), device="webgpu")
    for a, b in DataLoader(data, batch_size=5, num_workers={workers}, **options):
        assert a.device.type == "cpu"
        total += (a.to("webgpu", non_blocking=True) * b.to("webgpu")).sum()
    assert total.item() == sum(i * i for i in range(12)), total
assert x.sum().item() == 66
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders(workers: int, device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("about webgpu beside worker processes")
    done = run(LOADER.format(workers=workers))
    assert done.returncode == 0, done.stderr


def test_pinning_loaders(device: torch.device) -> None:
    data = TensorDataset(torch.arange(6.0), torch.arange(6))
    for options in ({"pin_memory": True}, {"pin_memory": True, "pin_memory_device": device.type}):
        batches = [a.to(device).sum().item() for a, _ in DataLoader(data, batch_size=3, **options)]
        assert batches == [3, 12]


def test_a_worker_that_uses_the_device_says_so(device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("about webgpu after a fork")
    done = run(
        """
import torch
import torch_webgpu
from torch.utils.data import DataLoader
x = torch.arange(12.0, device="webgpu")
x.sum().item()
class Bad(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return x[i].cpu()
list(DataLoader(Bad(), num_workers=1, multiprocessing_context="fork"))
"""
    )
    assert done.returncode != 0
    assert "fork" in done.stderr


def test_tensors_do_not_travel_between_processes(device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("other devices may share their memory")
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing  # registers how tensors travel

    with pytest.raises(RuntimeError, match=r"between processes.*cpu\(\)"):
        ForkingPickler.dumps(torch.ones(2, device=device))
    with pytest.raises(RuntimeError, match="between processes"):
        ForkingPickler.dumps(nn.Linear(2, 2).to(device))
    assert ForkingPickler.dumps(torch.ones(2))


# Other libraries ------------------------------------------------------------------------------------------------------


def test_numpy_and_python_numbers(device: torch.device) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    if device.type != "cpu":
        with pytest.raises(TypeError, match=r"can't convert .*Tensor\.cpu\(\)"):
            x.numpy()
        with pytest.raises(TypeError, match=r"Tensor\.cpu\(\)"):
            np.asarray(x)
    assert np.array_equal(x.numpy(force=True), [[1, 2], [3, 4]])
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert torch.tensor(3, device=device).tolist() == 3
    assert (int(x[1, 0]), float(x[0, 1]), bool(x[0, 0]), complex(x[0, 0])) == (3, 2.0, True, 1 + 0j)
    assert "abcd"[torch.tensor(2, device=device)] == "c"
    assert f"{x[1, 1]:.2f}" == "4.00"
    assert [float(row.sum()) for row in x] == [3.0, 7.0]
    for bad in (x, torch.ones(0, device=device)):
        with pytest.raises(RuntimeError):
            bad.item()


@pytest.mark.float64
def test_dlpack(device: torch.device) -> None:
    x = torch.arange(3.0, device=device)
    if device.type == "webgpu":
        with pytest.raises((ValueError, BufferError, RuntimeError)):
            np.from_dlpack(x)
    on_host = x.cpu()
    assert np.from_dlpack(on_host).tolist() == [0, 1, 2]
    assert torch.from_dlpack(np.arange(3.0)).to(device).tolist() == [0, 1, 2]


# Showing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_printing(dtype: torch.dtype, device: torch.device) -> None:
    suffix = "" if device.type == "cpu" else f", device='{device.type}:0'"
    for x in (some(dtype), some(dtype)[0, 1], some(dtype)[:0], some(dtype).t(), some(dtype)[:, ::2]):
        want = repr(x)
        plain = repr(x.to(device))
        if not suffix:
            assert plain == want
            continue
        assert suffix in plain
        without = plain.replace(f"{suffix},", ",").replace(suffix, "")
        assert without.split() == want.split()


def test_printing_large_and_tracked_tensors(device: torch.device) -> None:
    for shape in ((2000,), (50, 60), (3, 1, 2000), (40, 2, 30)):
        x = torch.arange(float(np.prod(shape))).reshape(shape)
        body = repr(x.to(device)).split("tensor(")[1]
        assert "..." in body
        assert body.split(", device")[0].split() == repr(x).split("tensor(")[1].removesuffix(")").split()
    assert "requires_grad=True" in repr(torch.ones(2, device=device, requires_grad=True))
    assert "grad_fn=<MulBackward0>" in repr(torch.ones(2, device=device, requires_grad=True) * 2)
    assert "Parameter containing" in repr(nn.Parameter(torch.ones(2, device=device)))
    assert "nan" in str(torch.tensor([float("nan"), float("inf")], device=device))


def test_short_ways_to_the_device(device: torch.device) -> None:
    if device.type != "webgpu":
        pytest.skip("about methods named after the device")
    assert torch.ones(2).webgpu().is_webgpu
    assert not torch.ones(2).is_webgpu
    assert nn.Linear(2, 2).webgpu().weight.is_webgpu
    assert torch.ones(2).to("webgpu").device == torch.device("webgpu", 0)
    assert torch.ones(2, device="webgpu").webgpu().cpu().tolist() == [1, 1]
