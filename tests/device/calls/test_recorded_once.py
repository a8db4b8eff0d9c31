"""Kernels that run once per signature: what is recorded again is what running them again would record."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_webgpu")

from torch_webgpu.aten.dispatch.recorded_once import record_once
from torch_webgpu.engine.recipe import Excerpt
from torch_webgpu.engine.record import engine


@pytest.fixture(autouse=True)
def batching():
    """A flush at every node leaves nothing to trace."""
    with engine().using(batching=True):
        yield


@pytest.fixture
def calls():
    return []


def doubled_and_summed(calls):
    @record_once
    def kernel(x, y, scale=1):
        calls.append(x.shape)
        doubled = x * 2
        return doubled + y * scale, doubled.sum(0)

    return kernel


def test_runs_once_per_signature(device, calls):
    kernel = doubled_and_summed(calls)
    for k in range(3):
        x, y = torch.full((3, 4), float(k), device=device), torch.arange(4.0, device=device)
        a, b = kernel(x, y, scale=2)
        assert a.tolist() == [[2 * k + 2.0 * i for i in range(4)]] * 3
        assert b.tolist() == [6.0 * k] * 4
    assert len(calls) == 1
    kernel(x, y, scale=3)
    kernel(x.t(), y[:3].expand(4, 3), scale=3)
    kernel(x.half(), y, scale=3)
    assert len(calls) == 4


def test_offsets_and_shared_storages(device, calls):
    kernel = doubled_and_summed(calls)
    base = torch.arange(64.0, device=device)
    for start in (0, 4, 20):
        x = base[start : start + 8].view(2, 4)
        assert kernel(x, base[start : start + 4])[0].tolist() == (x.cpu() * 2 + x.cpu()[0]).tolist()
        assert kernel(x, base[start + 4 : start + 8])[0].tolist() == (x.cpu() * 2 + x.cpu()[1]).tolist()
        assert kernel(x, x)[0].tolist() == (x.cpu() * 3).tolist()
    assert len(calls) == 3


def test_writes_to_arguments(device, calls):
    @record_once
    def kernel(x, y):
        calls.append(0)
        return x[1:].add_(y), x

    first = torch.zeros(4, device=device)
    for k in range(3):
        x = torch.full((4,), float(k), device=device)
        with pytest.raises(TypeError):
            kernel(x, y=torch.ones(3, device=device), z=1)
        kernel(x, torch.ones(3, device=device))
        assert x.tolist() == [k, k + 1, k + 1, k + 1]
    assert first.sum().item() == 0


def test_kernels_that_read_and_write_on_the_host_are_run_every_time(device, calls):
    @record_once
    def kernel(x):
        calls.append(0)
        return x.copy_(x.cpu() + 1)

    for k in range(3):
        x = torch.full((2,), float(k), device=device)
        assert x.tolist() == [k] * 2  # nothing is left that the reading in the kernel would have to flush
        kernel(x)
        assert x.tolist() == [k + 1] * 2
    assert len(calls) == 3


@pytest.mark.float64
def test_float64_sums_that_run_on_the_cpu_do_so_every_time(device):
    index, terms = torch.tensor([2, 0, 2], device=device), torch.ones(3, dtype=torch.float64, device=device)
    for method in ("index_put_", "put_"):
        for _ in range(3):
            x = torch.zeros(4, dtype=torch.float64, device=device)
            assert [t.tolist() for t in (x, index, terms)] == [[0] * 4, [2, 0, 2], [1] * 3]
            getattr(x, method)((index,) if method == "index_put_" else index, terms, accumulate=True)
            assert x.tolist() == [1, 0, 2, 0], method


def test_kernels_that_wait_are_run_every_time(device, calls):
    @record_once
    def kernel(x):
        calls.append(0)
        return x + float(x.max())

    for k in range(20):
        assert kernel(torch.full((2,), float(k), device=device)).tolist() == [2 * k] * 2
    assert len(calls) == 20


def test_uploads_are_not_kept(device, calls):
    @record_once
    def kernel(x):
        calls.append(0)
        return x + torch.tensor([float(len(calls))]).to(x.device)

    assert kernel(torch.zeros(2, device=device)).tolist() == [1, 1]
    assert kernel(torch.zeros(2, device=device)).tolist() == [2, 2]


def test_temporaries_are_fresh_each_time(device):
    x = torch.arange(8.0, device=device)
    index = torch.tensor([3, 1], device=device)
    results = [torch.sort(x.index_add(0, index, x[:2] + k), descending=True)[0] for k in range(5)]
    expected = [
        torch.sort(x.cpu().index_add(0, index.cpu(), x.cpu()[:2] + k), descending=True)[0].tolist() for k in range(5)
    ]
    assert [r.tolist() for r in results] == expected


def test_zeros_without_elements_are_not_looked_for(device, monkeypatch):
    """As in the gradient of ``cat`` with an empty tensor. What a fill refuses, it refuses without elements, too."""
    made: list[object] = []
    recipe = Excerpt.recipe
    monkeypatch.setattr(Excerpt, "recipe", lambda self, *a: (made.append(a), recipe(self, *a))[1])
    for shape in ((0,), (3, 0)):
        x = torch.empty(shape, device=device)
        assert x.zero_() is x
        assert torch.zeros(shape, device=device).shape == shape
    assert made == []
    small = torch.empty(0, dtype=torch.int8, device=device)
    for _ in range(2):
        assert small.fill_(1) is small
        with pytest.raises(RuntimeError, match="overflow"):
            small.fill_(300)


def test_what_a_kernel_needs_for_itself_takes_no_tensor_and_its_memory_goes_back(device, monkeypatch):
    kernel = record_once(lambda x: (x * 2).sum(0) + 1)
    x = torch.ones(64, 4, device=device)
    for _ in range(2):
        kernel(x)
    torch.webgpu.synchronize()
    eng, made = engine(), []
    make = eng.mailbox.make
    monkeypatch.setattr(eng.mailbox, "make", lambda template: made.append(template) or make(template))
    eng.reclaim()
    known, before = len(eng.mailbox.allocations), torch.webgpu.memory_allocated()
    torch.webgpu.reset_peak_memory_stats()
    assert kernel(x).tolist() == [129] * 4
    assert len(made) == 1
    assert torch.webgpu.max_memory_allocated() >= before + x.nbytes  # the doubled numbers
    eng.reclaim()
    assert (len(eng.mailbox.allocations), torch.webgpu.memory_allocated()) == (known, before)
