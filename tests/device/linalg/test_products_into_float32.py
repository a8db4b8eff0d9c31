"""Products of 16-bit floats with ``out_dtype``: PyTorch has them for CUDA alone, so they are compared with float64."""

from __future__ import annotations

import pytest
import torch

from torch_webgpu.aten.dispatch.fallback import fallback_stats

HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def no_fallback():
    before = fallback_stats()
    yield
    assert fallback_stats() == before


@pytest.mark.parametrize("shape", [(3, 5, 7, 4), (2, 40, 70, 33), (2, 0, 3, 4), (2, 3, 0, 4)], ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products(device, dtype, shape):
    torch.manual_seed(0)
    batch, m, k, n = shape
    a, b, c = torch.randn(batch, m, k).to(dtype), torch.randn(batch, n, k).to(dtype).mT, torch.randn(n)
    on_device = x, y, z = [t.to(device) for t in (a, b, c)]
    exact = a.double() @ b.double()
    options = {"out_dtype": torch.float32}
    for found, expected in (
        (torch.bmm(x, y, **options), exact),
        (torch.mm(x[0], y[0], **options), exact[0]),
        (torch.addmm(z, x[0], y[0], **options, beta=2, alpha=0.5), 2 * c + 0.5 * exact[0]),
        (torch.addmm(z * torch.inf, x[0], y[0], **options, beta=0), exact[0]),
        (torch.baddbmm(z.to(dtype), x, y, **options), c.to(dtype) + exact),
    ):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.cpu(), expected.float(), rtol=1e-5, atol=1e-5)
    out = torch.empty(m, n, device=device)
    torch.testing.assert_close(torch.mm(*[t[0] for t in on_device[:2]], **options, out=out).cpu(), exact[0].float())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_operands_own_type(device, dtype):
    a = torch.randn(5, 6).to(device, dtype)
    assert torch.equal(torch.mm(a, a.T, out_dtype=dtype), a @ a.T)


def test_refusals(device):
    a = torch.randn(4, 4, dtype=torch.float16, device=device)
    with pytest.raises(RuntimeError, match="out_dtype"):
        torch.mm(a, a, out_dtype=torch.int32)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(a, a[:3], out_dtype=torch.float32)
    with pytest.raises(RuntimeError, match="the same dtype"):
        torch.mm(a, a.float(), out_dtype=torch.float32)
    with pytest.raises(RuntimeError, match="self has to be of"):
        torch.addmm(a.to(torch.bfloat16), a, a, out_dtype=torch.float32)
