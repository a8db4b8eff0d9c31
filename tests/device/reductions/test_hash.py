"""``hash_tensor``: the exclusive or of bits, exactly the CPU's."""

from __future__ import annotations

import pytest
import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
          torch.bool)  # fmt: skip


@pytest.fixture(autouse=True)
def natively():
    """No test may have run on the CPU."""
    before = torch.webgpu.fallback_stats()
    yield
    assert torch.webgpu.fallback_stats() == before


def same(device: torch.device, x: torch.Tensor, *args: object, **kwargs: object) -> None:
    expected, found = (torch.ops.aten.hash_tensor(t, *args, **kwargs) for t in (x, x.to(device)))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert torch.equal(found.cpu(), expected), (x.dtype, args, kwargs)


@pytest.mark.parametrize("dtype", [*DTYPES, pytest.param(torch.float64, marks=pytest.mark.float64)], ids=str)
def test_of_every_dtype(device, dtype):
    x = (100 * torch.randn(5, 7, 3)).to(dtype)
    for t in (x, x[:, ::2], x.transpose(0, 2), x[:1].expand(4, 7, 3)):
        for dim in ([], [0], [0, 1], [-1]):
            same(device, t, dim)
            same(device, t, dim, keepdim=True)
    same(device, x[0, 0, 0])


def test_floats_that_are_not_normal(device):
    small = (1e-45, -1e-40, 5.9e-39, 1.1754944e-38, 0.0, -0.0, 3e38, float("inf"), float("-inf"), float("nan"))
    for value in small:
        same(device, torch.tensor([value]))


def test_empty_and_out(device):
    same(device, torch.zeros(0, 3), [1])
    out = torch.empty(0, dtype=torch.uint64, device=device)
    x = torch.randn(9)
    assert torch.hash_tensor(x.to(device), out=out) is out
    assert torch.equal(out.cpu(), torch.hash_tensor(x))


@pytest.mark.parametrize("call", [
    lambda d: torch.hash_tensor(torch.ones(2, dtype=torch.complex64, device=d)),
    lambda d: torch.hash_tensor(torch.ones(2, device=d), mode=1),
    lambda d: torch.hash_tensor(torch.ones(0, device=d)),
    lambda d: torch.ops.aten.hash_tensor(torch.ones(0, 3, device=d), [0]),
])  # fmt: skip
def test_what_is_refused(device, call):
    with pytest.raises((RuntimeError, IndexError)) as expected:
        call("cpu")
    with pytest.raises(type(expected.value)) as found:
        call(device)
    assert str(found.value) == str(expected.value)
