"""Views alias: random programs of views and in-place writes give what they give on the CPU, strides included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from torch_webgpu.layout import overlaps_itself

View = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, View] = {
    "view": lambda t: t.view(6, 4),
    "view infer": lambda t: t.view(-1, 2),
    "reshape": lambda t: t.reshape(3, 8),
    "permute": lambda t: t.permute(2, 0, 1),
    "transpose": lambda t: t.transpose(0, 2),
    "expand": lambda t: t[:, :1].expand(2, 5, 4),
    "expand_as": lambda t: t[:1].expand_as(t),
    "slice": lambda t: t[:, 1:, ::2],
    "steps": lambda t: t[..., ::3],
    "select": lambda t: t.select(1, 2),
    "index": lambda t: t[1, -1],
    "narrow": lambda t: t.narrow(2, 1, 2),
    "split": lambda t: t.split([1, 2], dim=1)[1],
    "chunk": lambda t: t.chunk(3, dim=2)[1],
    "tensor_split": lambda t: t.tensor_split(2, dim=2)[1],
    "hsplit": lambda t: t.hsplit(3)[1],
    "unbind": lambda t: t.unbind(1)[2],
    "unfold": lambda t: t.unfold(2, 3, 1),
    "diagonal": lambda t: t.diagonal(1, 1, 2),
    "squeeze": lambda t: t[:1].squeeze(0),
    "squeeze all": lambda t: t[:1, :1].squeeze(),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "movedim": lambda t: t.movedim(0, -1),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "as_strided": lambda t: t.as_strided((3, 2), (4, 1), 5),
    "detach": lambda t: t.detach(),
    "alias": lambda t: torch.ops.aten.alias(t),
    "unflatten": lambda t: t.unflatten(2, (2, 2)),
    "flatten": lambda t: t.flatten(1),
    "T": lambda t: t[0].T,
    "mT": lambda t: t.mT,
    "H": lambda t: t[1].H,
    "view_as": lambda t: t.view_as(torch.empty(4, 6)),
    "ravel": lambda t: t.ravel(),
    "same dtype": lambda t: t.view(t.dtype),
}
DTYPES = [torch.float32, torch.int64, torch.bfloat16, torch.uint8, torch.bool, torch.complex64]
WIDTHS = [torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]


def start(dtype: torch.dtype) -> torch.Tensor:
    x = torch.arange(24).reshape(2, 3, 4)
    return (x % 3 == 0) if dtype == torch.bool else x.to(dtype)


def check(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape
    assert got.stride() == want.stride()
    assert got.storage_offset() == want.storage_offset()
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_aliases(name: str, dtype: torch.dtype, device: torch.device) -> None:
    on_cpu = start(dtype)
    x = on_cpu.to(device)
    view, want = VIEWS[name](x), VIEWS[name](on_cpu)
    check(view, want)
    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    if 0 not in want.stride() and name != "unfold":
        view.fill_(1)
        want.fill_(1)
        check(x, on_cpu)
    x.fill_(0)
    on_cpu.fill_(0)
    check(view, want)


COPIES: dict[str, tuple[Any, ...]] = {
    "alias_copy": (),
    "as_strided_copy": ((3, 2), (4, 1), 5),
    "detach_copy": (),
    "diagonal_copy": (0, 1, 2),
    "expand_copy": ((5, 2, 3, 4),),
    "narrow_copy": (1, 1, 2),
    "permute_copy": ((2, 0, 1),),
    "select_copy": (1, 2),
    "slice_copy": (2, 1, 4, 2),
    "split_copy": (2, 1),
    "split_with_sizes_copy": ((1, 2), 1),
    "squeeze_copy": (),
    "transpose_copy": (0, 2),
    "unbind_copy": (1,),
    "unfold_copy": (2, 3, 1),
    "unsqueeze_copy": (1,),
    "view_copy": ((6, 4),),
}


@pytest.mark.parametrize("name", COPIES)
def test_copying_variants_do_not_alias(name: str, device: torch.device) -> None:
    on_cpu = start(torch.float32)
    x = on_cpu.to(device)
    op = getattr(torch.ops.aten, name)
    results, wanted = op(x, *COPIES[name]), op(on_cpu, *COPIES[name])
    x.zero_()
    for got, want in zip(*([r] if isinstance(r, torch.Tensor) else r for r in (results, wanted)), strict=True):
        assert got.untyped_storage()._cdata != x.untyped_storage()._cdata
        assert got.stride() == want.stride()
        torch.testing.assert_close(got.cpu(), want)


def test_scatters_into_copies(device: torch.device) -> None:
    on_cpu = start(torch.float32)
    x = on_cpu.to(device)
    for scatter in (
        lambda t: torch.select_scatter(t, torch.ones(2, 4, device=t.device), 1, 2),
        lambda t: torch.slice_scatter(t, torch.ones(2, 3, 2, device=t.device), 2, 0, 4, 2),
        lambda t: torch.diagonal_scatter(t, torch.ones(2, 3, device=t.device), 0, 1, 2),
        lambda t: torch.as_strided_scatter(t, torch.ones(2, 2, device=t.device), (2, 2), (8, 3), 1),
    ):
        torch.testing.assert_close(scatter(x).cpu(), scatter(on_cpu))
    torch.testing.assert_close(x.cpu(), on_cpu)


@pytest.mark.parametrize("source", WIDTHS, ids=str)
@pytest.mark.parametrize("target", WIDTHS, ids=str)
def test_views_of_the_bits(source: torch.dtype, target: torch.dtype, device: torch.device) -> None:
    on_cpu = torch.arange(24, dtype=torch.uint8).view(source)
    x = on_cpu.to(device)
    check(x.view(target).view(torch.uint8), on_cpu.view(target).view(torch.uint8))
    x.view(target)[1].fill_(1)
    on_cpu.view(target)[1].fill_(1)
    check(x.view(torch.uint8), on_cpu.view(torch.uint8))
    with pytest.raises(RuntimeError):
        torch.zeros(3, dtype=torch.uint8, device=device).view(torch.int16)


def test_complex_parts_alias(device: torch.device) -> None:
    on_cpu = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    x = on_cpu.to(device)
    for t in (x, on_cpu):
        t.real.add_(10)
        t.imag.mul_(2)
        t.conj().imag.add_(1)
        torch.view_as_real(t)[1, 0].fill_(7)
        torch.view_as_complex(torch.view_as_real(t)).mul_(2)
    check(x, on_cpu)
    pairs = torch.arange(6.0, device=device).view(3, 2)
    torch.view_as_complex(pairs)[1] = 5 + 6j
    assert pairs.tolist() == [[0, 1], [5, 6], [4, 5]]


def test_in_place_geometry(device: torch.device) -> None:
    on_cpu = start(torch.float32)
    x = on_cpu.to(device)
    for change in (
        lambda t: t.as_strided_((3, 4), (4, 1), 2),
        lambda t: t.transpose_(0, 1),
        lambda t: t.unsqueeze_(0),
        lambda t: t.squeeze_(0),
        lambda t: t.t_(),
        lambda t: t.swapaxes_(0, 1),
    ):
        change(x)
        change(on_cpu)
        check(x, on_cpu)


def test_gradients_flow_through_views(device: torch.device) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        y = x * 2
        y[0].mul_(3)
        y.diagonal(0, 1, 2).add_(x.diagonal(0, 1, 2))
        (y.unfold(2, 2, 1).sum(-1) * y.permute(2, 0, 1).reshape(-1)[:3]).sum().backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(run(start(torch.float32).to(device)).cpu(), run(start(torch.float32)))


# Random programs ------------------------------------------------------------------------------------------------------


def random_view(t: torch.Tensor, draw: Callable[[int, int], int]) -> View:
    """A view that fits ``t``'s shape; ``draw(low, high)`` picks a number, both ends included."""
    d = t.dim()
    kind = draw(0, 8) if d else 8
    dim = draw(0, d - 1) if d else 0
    n = t.shape[dim] if d else 0
    other = draw(0, d - 1) if d else 0
    if kind == 0 and n:
        index = draw(0, n - 1)
        return lambda t: t.select(dim, index)
    if kind == 1:
        first, last, step = draw(0, n), draw(0, n), draw(1, 3)
        return lambda t: torch.ops.aten.slice(t, dim, first, last, step)
    if kind == 2:
        return lambda t: t.transpose(dim, other)
    if kind == 3 and dim != other:
        return lambda t: t.diagonal(0, dim, other)
    if kind == 4 and n:
        size, step = draw(1, n), draw(1, 2)
        return lambda t: t.unfold(dim, size, step)
    if kind == 5 and n == 1:
        return lambda t: t.expand(*(3 if k == dim else -1 for k in range(t.dim())))
    if kind == 6:
        return lambda t: t.reshape(-1)
    if kind == 7 and n and n % 2 == 0:
        return lambda t: t.unflatten(dim, (2, -1))
    return lambda t: t.unsqueeze(dim)


WRITES: tuple[Callable[[torch.Tensor, torch.Tensor], Any], ...] = (
    lambda t, other: t.add_(1),
    lambda t, other: t.mul_(2),
    lambda t, other: t.fill_(5),
    lambda t, other: t.zero_(),
    lambda t, other: t.copy_(other),
    lambda t, other: t.add_(other),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16, torch.int64], ids=str)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_programs(dtype: torch.dtype, device: torch.device, data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    base = (torch.arange(24) % 7).reshape(2, 3, 4).to(dtype)
    wanted, got = [base], [base.to(device)]
    for _ in range(draw(2, 10)):
        k = draw(0, len(wanted) - 1)
        if draw(0, 1):
            view = random_view(wanted[k], draw)
            wanted.append(view(wanted[k]))
            got.append(view(got[k]))
            assert got[-1].stride() == wanted[-1].stride()
            continue
        if overlaps_itself(tuple(wanted[k].shape), wanted[k].stride()):
            with pytest.raises(RuntimeError, match="single memory location"):
                got[k].add_(1)
            continue
        write, j = WRITES[draw(0, len(WRITES) - 1)], draw(0, len(wanted) - 1)
        other, on_device = wanted[j].clone(), got[j].clone()
        if other.numel() and j != k:
            other, on_device = other.reshape(-1)[0], on_device.reshape(-1)[0]
        elif j != k:
            continue
        write(wanted[k], other)
        write(got[k], on_device if draw(0, 1) or wanted[j].dim() else other)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=0, atol=0)
