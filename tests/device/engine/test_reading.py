"""What comes with a number that is read: its own bytes, and the flags of kernels that may have raised some."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_webgpu
from torch_webgpu.engine.record import engine

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_number_of_any_dtype(device: torch.device, dtype: torch.dtype) -> None:
    expected = torch.tensor([0.0, 1.0, 3.0]).to(dtype)
    values = expected.to(device)
    for k in range(3):
        number = values[k].item()
        assert number == expected[k].item()
        assert type(number) is type(expected[k].item())


def test_a_number_that_is_lazily_conjugated_or_negated(device: torch.device) -> None:
    z = torch.tensor([1 + 2j, 3 - 4j], device=device)
    assert z.conj()[1].item() == 3 + 4j
    assert z.conj().imag[0].item() == -2


def eagerly(x: torch.Tensor, index: torch.Tensor) -> Callable[[], object]:
    return lambda: x[index]


def as_a_graph(x: torch.Tensor, index: torch.Tensor) -> Callable[[], object]:
    graph = torch.webgpu.Graph()  # type: ignore[attr-defined]
    with torch.webgpu.graph(graph):  # type: ignore[attr-defined]
        kept = x[index]
    return lambda: (graph.replay(), kept)


def as_a_plan(x: torch.Tensor, index: torch.Tensor) -> Callable[[], object]:
    bound = torch_webgpu.plan.bind(torch_webgpu.plan.trace(lambda x, index: x[index], x, index))
    return lambda: bound(x, index)


@pytest.mark.parametrize("way", [eagerly, as_a_graph, as_a_plan])
def test_any_read_raises_what_any_kernel_flagged_before(device: torch.device, way: Callable[..., Callable[[], object]]):
    x, index, other = (
        torch.arange(4.0, device=device),
        torch.tensor([1, 2], device=device),
        torch.ones(1, device=device),
    )
    run = way(x, index)
    for wrong in (9, 8, 7):  # the first submission, a second one that is prepared, one that was
        assert other.add_(1).item() > 1  # nothing is flagged, and nothing left
        index[1] = wrong
        kept = run()
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
            other.add_(1).item()
        del kept
        index[1] = 2
        run()
        assert other.item() > 1


def test_flags_are_read_only_where_a_kernel_may_have_raised_some(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = engine().device(device.index or 0)
    x, index = torch.arange(4.0, device=device), torch.tensor([1, 2], device=device)
    torch.webgpu.synchronize()
    transfer = gpu.opened.transfer
    begin, sizes = transfer.begin, []

    def counted(requests, into):  # type: ignore[no-untyped-def]
        sizes.append([size for _, _, size in requests])
        return begin(requests, into)

    monkeypatch.setattr(transfer, "begin", counted)
    assert x.add_(1).sum().item() == 10
    assert x[index].sum().item() == 5
    assert x.add_(1).sum().item() == 14
    assert [len(each) for each in sizes] == [1, 2, 1]
