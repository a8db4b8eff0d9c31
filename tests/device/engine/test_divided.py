"""Tensors of more elements than kernels can number: the answer is right, or there is none, and words say why.

The limit is lowered to a thousand. That it is where 32 bits end: tests/device/errors/test_addressing.py. Every operator
of PyTorch's database: test_divided_operators.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.target import DEVICE
from tests.device.engine.few_numbers import few_numbers

from torch_webgpu.engine import record
from torch_webgpu.errors import AddressError
from torch_webgpu.plan import trace

pytestmark = pytest.mark.skipif(DEVICE.type != "webgpu", reason="about the webgpu device")
LIMIT = 1000
Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def a_thousand() -> Iterator[None]:
    with few_numbers(LIMIT):
        yield


def again(x: torch.Tensor, fn: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """A copy of ``x`` after ``fn`` changed it."""
    copy = x.clone()
    fn(copy)
    return copy


# What must be computed, whatever the size.
DIVIDED: dict[str, Function] = {
    "unary": lambda x: x.abs().sqrt(),
    "binary": lambda x: x * 2 + x,
    "a number": lambda x: x.add(3, alpha=2),
    "in place": lambda x: again(x, lambda y: y.mul_(3)),
    "in place, a part": lambda x: again(x, lambda y: y[y.shape[0] // 2 :].mul_(3)),
    "out": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "broadcast": lambda x: x + x[:1],
    "compare": lambda x: torch.where(x > 0, x, -x),
    "fill": lambda x: torch.empty_like(x).fill_(7),
    "zero": lambda x: again(x, lambda y: y.zero_()),
    "ones": lambda x: torch.ones(x.shape, dtype=x.dtype, device=x.device),
    "copy": lambda x: x.clone(),
    "copy into a part": lambda x: again(x.repeat(2, *[1] * (x.dim() - 1)), lambda y: y[x.shape[0] :].copy_(x)),
    "to float": lambda x: x.float(),
    "to int64": lambda x: x.to(torch.int64),
    "to half": lambda x: x.clamp(-100, 100).half(),
    "to bool": lambda x: x.bool(),
    "to uint8": lambda x: x.abs().to(torch.uint8),
    "transposed": lambda x: (x.t() + 1).contiguous() if x.dim() == 2 else x + 1,
    "steps": lambda x: x[::3] * 2,
    "far away": lambda x: x[-10:] * 2,
    "a column": lambda x: x[..., -1] * 2,
    "cat": lambda x: torch.cat([x, x]),
    "sum": lambda x: x.sum(),
    "sum as float": lambda x: x.sum(dtype=torch.float32),
    "prod": lambda x: x.sign().prod(),
    "mean": lambda x: x.float().mean(),
    "var": lambda x: x.float().var(),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "aminmax": lambda x: torch.stack(list(torch.aminmax(x))),
    "any": lambda x: (x > 2).any(),
    "all": lambda x: (x > -2).all(),
    "count": lambda x: torch.count_nonzero(x),
    "norm": lambda x: torch.linalg.vector_norm(x.float()),
    "logsumexp": lambda x: x.float().flatten().logsumexp(0),
    "sum of rows": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0, keepdim=True),
    "expanded": lambda x: x[:1].expand(700, *x.shape[1:]).sum(),
    "gradient": lambda x: grad(lambda y: (y.sigmoid() * 3).sum(), x),
    "read": lambda x: x[-1:].clone(),
}
# What may be refused.
OTHERS: dict[str, Function] = {
    "softmax of rows": lambda x: x.float().softmax(-1),
    "layer norm": lambda x: F.layer_norm(x.float(), x.shape[-1:]),
    "argmax": lambda x: x.argmax(),
    "argmax of rows": lambda x: x.argmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "sort": lambda x: x.sort(-1).values,
    "topk": lambda x: x.topk(3, -1).values if x.shape[-1] > 3 else x,
    "unique": lambda x: x.int().unique(),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x[x > 1],
    "arange": lambda x: torch.arange(x.numel(), device=x.device),
    "tril": lambda x: x.tril() if x.dim() == 2 else x,
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "gather": lambda x: x.flatten().gather(0, torch.tensor([0, 2, 1], device=x.device)),
    "index": lambda x: x[torch.tensor([0, 1], device=x.device)],
    "index_add": lambda x: again(x.float(), lambda y: y.index_add_(0, one(x) * 0, y[:1])),
    "scatter": lambda x: again(x.flatten(), lambda y: y.scatter_(0, one(x), y[:1])),
    "embedding": lambda x: F.embedding(torch.tensor([1, 0], device=x.device), x.float()) if x.dim() == 2 else x,
    "product": lambda x: x.float() @ x.float().t() if x.dim() == 2 else x.float() @ x.float(),
    "small product": lambda x: x.float().flatten()[-9:].view(3, 3) @ x.float().flatten()[:9].view(3, 3),
    "bmm": lambda x: torch.bmm(x.float()[None], x.float().t()[None]) if x.dim() == 2 else x,
    "conv1d": lambda x: F.conv1d(x.float().flatten()[None, None], torch.ones(1, 1, 3, device=x.device)),
    "max_pool1d": lambda x: F.max_pool1d(x.float().flatten()[None], 2),
    "interpolate": lambda x: F.interpolate(x.float().flatten()[None, None], scale_factor=2),
    "pad": lambda x: F.pad(x, (1, 1)),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.float()[None]] * 3) if x.dim() == 2 else x,
    "fft": lambda x: torch.view_as_real(torch.fft.rfft(x.float().flatten())),
    "copy within": lambda x: again(x, lambda y: y[:2].copy_(y[-2:])),
    "list": lambda x: torch.cat([t.flatten() for t in torch._foreach_add([x, x], 1)]),
    "norm of a list": lambda x: torch.stack(torch._foreach_norm([x.float(), x.float()])),
    "complex": lambda x: torch.view_as_real(torch.complex(x.float(), x.float()) * 2),
    "bits": lambda x: x.contiguous().view(torch.uint8)[..., -1:] + 1,
}
FAMILIES = {**DIVIDED, **OTHERS}


def one(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(1, dtype=torch.int64, device=x.device)


def grad(fn: Function, x: torch.Tensor) -> torch.Tensor:
    y = x.float().clone().requires_grad_()
    fn(y).backward()
    assert y.grad is not None
    return y.grad


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """Of tensors around the limit, and up to five times as large."""
    if draw(st.booleans()):
        return (draw(st.one_of(st.integers(LIMIT - 70, LIMIT + 70), st.integers(2, 5 * LIMIT))),)
    columns = draw(st.integers(2, 120))
    return draw(st.integers(2, 5 * LIMIT // columns)), columns


DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.bool)


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    numbers = torch.randint(-3, 4, shape, generator=generator)
    return numbers.abs().to(dtype) if dtype in (torch.uint8, torch.bool) else numbers.to(dtype)


def compare(fn: Function, x: torch.Tensor) -> bool:
    """Whether it was computed, as the CPU computes it, and not refused."""
    try:
        expected = fn(x)
    except (RuntimeError, IndexError, NotImplementedError):
        return True  # nothing to compare with
    on_device = x.to(DEVICE)
    try:
        actual = fn(on_device).cpu()
    except AddressError:
        torch.testing.assert_close(on_device.cpu(), x, rtol=0, atol=0)  # which nothing has happened to
        return False
    tolerance = 2e-2 if expected.dtype in (torch.float16, torch.bfloat16) else 1e-4
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    return True


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(shape=shapes(), dtype=st.sampled_from(DTYPES))
def test_every_family_is_right_or_refused(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    computed = compare(FAMILIES[name], values(shape, dtype))
    assert computed or name in OTHERS


def test_what_is_divided_is_no_part_of_plans_and_graphs() -> None:
    x = torch.ones(3 * LIMIT, device=DEVICE)
    with pytest.raises(AddressError, match="cannot be part of a plan, a compiled or a captured graph"):
        trace(lambda a: a + 1, torch.empty(3 * LIMIT, device="meta"))
    graph = torch.webgpu.Graph()
    with pytest.raises(AddressError, match="captured graph"), torch.webgpu.graph(graph):
        x + 1
    assert (x + 1).sum().item() == 6 * LIMIT


def test_division_calls_come_back() -> None:
    """What an operator records once and repeats must not repeat where parts lay."""
    for size in (3 * LIMIT, 3 * LIMIT, 2 * LIMIT + 5, 3 * LIMIT):
        x = torch.arange(float(size), device="cpu")
        y = x.to(DEVICE)
        y[size // 2 :].add_(y[: size - size // 2].clone())
        x[size // 2 :].add_(x[: size - size // 2].clone())
        torch.testing.assert_close(y.to("cpu"), x)
        torch.testing.assert_close(y.relu().mean().item(), x.mean().item())


def test_parts_leave_nothing_behind() -> None:
    x = torch.ones(5 * LIMIT, device=DEVICE)
    known = record.engine().mailbox.allocations
    (x * 2).sum().item()
    record.engine().reclaim()
    before, bytes_before = len(known), torch.webgpu.memory_allocated()
    for _ in range(5):
        (x * 2).sum().item()
        record.engine().reclaim()
    assert len(known) == before
    assert torch.webgpu.memory_allocated() == bytes_before
