"""Products of one row as GPUs compute them: many lanes share a sum, by subgroups or workgroup memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.compile import test_patterns_projections as patterns
from tests.compile.test_patterns_projections import DTYPES, ROUNDING, compare, matrix, rms_norm, row, vector
from tests.device.subgroups import as_on_a_gpu

from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.matmul import matmul, projections

LENGTHS = [(1, 8), (9, 37), (24, 64), (33, 896), (130, 1028), (7, 4864)]


@pytest.fixture(autouse=True, params=["subgroups", "memory"])
def shared_by(request: pytest.FixtureRequest, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    size = as_on_a_gpu(device, monkeypatch)
    if request.param == "subgroups":
        monkeypatch.setattr(projections, "SHARE", projections.SHARE._replace(lanes=size))
        monkeypatch.setattr(matmul, "LEAST_LANES", size)
    else:
        target = engine().device(device.index or 0).target
        monkeypatch.setattr(engine().device(device.index or 0), "target", replace(target, subgroup_size=0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), LENGTHS)
def test_a_vector(n: int, k: int, dtype: torch.dtype) -> None:
    x, a, bias = row(k, dtype), matrix(n, k, dtype), vector(n, dtype)
    y = F.linear(x, a, bias)
    want = F.linear(*[t.cpu().double() for t in (x, a, bias)])
    torch.testing.assert_close(y.cpu().double(), want, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


def test_a_vector_beside_infinities() -> None:
    """What a lane loads past the end does not count, whatever it is."""
    a = matrix(3, 100)
    a[0, 99], a[1, 96:] = float("inf"), float("nan")
    y = F.linear(row(100).abs() + 1, a).flatten().cpu()
    assert y[0] == float("inf")
    assert y[1].isnan()
    assert y[2].isfinite()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [*LENGTHS, (5, 2049)])
def test_a_norm_before_products(n: int, k: int, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, gain: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = rms_norm(x, gain)
        return F.silu(F.linear(y, a)) * F.linear(y, b)

    compare(f, row(k, dtype), vector(k, dtype), matrix(n, k, dtype), matrix(n, k, dtype))


def test_layer_norms() -> None:
    f = lambda x, gain, a: F.linear(F.layer_norm(x, (2056,), gain), a)
    compare(f, row(2056), vector(2056), matrix(9, 2056))


def test_other_units() -> None:
    patterns.compare(patterns.swiglu, row(904), matrix(40, 904), matrix(40, 904))
