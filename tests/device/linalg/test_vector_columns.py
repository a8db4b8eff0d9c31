"""Products of a vector and a matrix whose neighbours in memory are those of a row, as GPUs and CPUs compute them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.device.subgroups import as_on_a_gpu

from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.matmul import matmul

ROUNDING = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SIZES = [(1, 4), (5, 8), (37, 12), (64, 132), (300, 64), (2049, 20), (4097, 516)]
"""Of the vector, and of the result: one and several quads, lanes without work, steps that are not full."""


@pytest.fixture(autouse=True, params=["software", "subgroups", "memory"])
def summed_by(request: pytest.FixtureRequest, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "software":
        return
    size = as_on_a_gpu(device, monkeypatch)
    if request.param == "subgroups":
        monkeypatch.setattr(matmul, "MOST_QUADS", min(size // 2, matmul.MOST_QUADS))
    else:
        current = engine().device(device.index or 0)
        monkeypatch.setattr(current, "target", replace(current.target, subgroup_size=0))


def check(x: torch.Tensor, a: torch.Tensor) -> None:
    want = x.cpu().double() @ a.cpu().double()
    torch.testing.assert_close((x @ a).cpu().double(), want, rtol=ROUNDING[x.dtype], atol=ROUNDING[x.dtype])


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_a_vector(k: int, n: int, dtype: torch.dtype) -> None:
    check(torch.randn(1, k).to("webgpu", dtype), (torch.randn(k, n) / k**0.5).to("webgpu", dtype))


def test_parts_of_tensors() -> None:
    x, a = torch.randn(2, 700, device="webgpu"), torch.randn(400, 80, device="webgpu") / 20
    check(x[1:, 13:313], a[7:307, 4:72])
    check(x[:1, ::2][:, :300], a[:300, 8:40])


def test_batches() -> None:
    check(torch.randn(3, 1, 70, device="webgpu"), torch.randn(3, 70, 36, device="webgpu") / 9)
    check(torch.randn(3, 1, 70, device="webgpu"), (torch.randn(70, 36, device="webgpu") / 9).expand(3, 70, 36))


def test_nothing_to_add_up() -> None:
    assert (torch.ones(1, 0, device="webgpu") @ torch.ones(0, 8, device="webgpu")).cpu().equal(torch.zeros(1, 8))


def test_split_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "SMALL_MATRIX", 0)
    check(torch.randn(1, 30_000, device="webgpu"), torch.randn(30_000, 12, device="webgpu") / 170)


def test_infinities_beside_the_end() -> None:
    """What is loaded twice counts once: a lane past the end loads the last row again."""
    x, a = torch.ones(1, 37, device="webgpu"), torch.zeros(37, 8, device="webgpu")
    a[36, 1], a[36, 2], a[35, 3] = float("inf"), float("nan"), -float("inf")
    y = (x @ a)[0].cpu()
    assert y[1] == float("inf")
    assert y[2].isnan()
    assert y[3] == -float("inf")
    assert y[[0, 4, 5, 6, 7]].count_nonzero() == 0


def test_an_epilogue() -> None:
    x, a, bias = (torch.randn(*shape, device="webgpu") for shape in ((1, 65), (65, 24), (24,)))
    y = torch.addmm(bias, x, a).relu()
    want = torch.addmm(*[t.cpu().double() for t in (bias, x, a)]).relu()
    torch.testing.assert_close(y.cpu().double(), want, rtol=1e-5, atol=1e-5)
