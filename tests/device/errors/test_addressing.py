"""Tensors that kernels have no numbers for: refused in words, never computed wrong.

Software adapters have no buffers of that size, so that their limit is lifted; nothing of that size is run. What is
computed beyond the limit: tests/device/engine/test_divided.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.conformance.target import DEVICE

import torch_webgpu
from torch_webgpu.engine.record import engine
from torch_webgpu.errors import AddressError
from torch_webgpu.layout import MAX_BYTES, MAX_INDEX
from torch_webgpu.plan import trace

pytestmark = pytest.mark.skipif(DEVICE.type != "webgpu", reason="about the webgpu device")
GIB = 1 << 30


@pytest.fixture
def large_buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The adapter's buffers end at a tebibyte, or so it seems."""
    torch.zeros(1, device=DEVICE).cpu()
    monkeypatch.setitem(engine()._largest_bytes, 0, 1 << 40)
    yield
    torch.webgpu.synchronize()
    vars(engine()).pop("append", None)


def one() -> torch.Tensor:
    return torch.ones(1, device=DEVICE)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.usefixtures("large_buffers")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64])
def test_a_tensor_of_more_bytes_than_any_kernel_reaches_is_not_made(dtype: torch.dtype) -> None:
    too_many = MAX_BYTES // dtype.itemsize + 1
    for make in (
        lambda: torch.empty(too_many, dtype=dtype, device=DEVICE),
        lambda: torch.zeros(2, too_many // 2 + 1, dtype=dtype, device=DEVICE),
        lambda: torch.empty_strided((2,), (too_many,), dtype=dtype, device=DEVICE),
        lambda: torch.empty(1, dtype=dtype, device=DEVICE).untyped_storage().resize_(MAX_BYTES + 1),
        lambda: torch.empty(1, dtype=dtype, device=DEVICE).resize_(too_many),
        lambda: torch._foreach_add([torch.empty(1, dtype=dtype, device=DEVICE).expand(too_many)], 1),
    ):
        with pytest.raises(AddressError, match=r"addresses of 36 bits|kernels number"):
            make()
    torch.empty(too_many - 1, dtype=dtype, device=DEVICE)  # which is no memory before it is used


def test_what_the_adapter_cannot_hold_is_out_of_memory_as_ever() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="its buffers end at"):
        torch.empty(1 << 40, device=DEVICE)


USES: dict[str, Callable[[torch.Tensor], object]] = {
    "argmax": lambda x: x.expand(1 << 33).argmax(),
    "gather": lambda x: x.expand(1 << 33).gather(0, torch.zeros(3, dtype=torch.int64, device=DEVICE)),
    "index_select": lambda x: x.expand(1 << 33).index_select(0, torch.zeros(3, dtype=torch.int64, device=DEVICE)),
    "product": lambda x: x.expand(2, 1 << 32) @ x.expand(1 << 32, 2),
}


@pytest.mark.parametrize("name", USES)
def test_expanded_tensors_of_too_many_elements_are_refused(name: str) -> None:
    x = one()
    with pytest.raises(RuntimeError, match=r"numbers? elements, and 32-bit words|unsupported operation|kernels number"):
        USES[name](x)
    assert (x + 1).item() == 2


@pytest.mark.slow
def test_reductions_of_too_many_elements_are_divided() -> None:
    many = (1 << 32) + 5
    x = torch.ones(1, dtype=torch.uint8, device=DEVICE).expand(many)
    assert x.sum().item() == many
    assert x.max().item() == 1


def test_views_of_too_many_elements_may_be_made_and_cut() -> None:
    x = one().expand(1 << 40)
    assert x.shape == (1 << 40,)
    assert x[1 << 39 : (1 << 39) + 5].sum().item() == 5


TRACED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "a column": (lambda a: a[:, 5] + 1, meta(70000, 70000, dtype=torch.float16)),
    "steps": (lambda a: a[:: 1 << 20] + 1, meta(5 * GIB, dtype=torch.uint8)),
    "far away": (lambda a: a[5 * GIB - 9 :] + 1, meta(5 * GIB, dtype=torch.uint8)),
    "far away in a list": (lambda a: torch._foreach_add([a[5 * GIB - 8 :]], 1)[0], meta(5 * GIB, dtype=torch.uint8)),
    "far away by bytes": (lambda a: a.view(torch.uint8)[-16:] + 1, meta(5 * GIB // 4)),
    "as_strided": (lambda a: a.as_strided((2, 2), (1 << 32, 1)) + 1, meta(5 * GIB, dtype=torch.uint8)),
    "as_strided from afar": (lambda a: a.as_strided((2,), (1,), 5 * GIB - 4) + 1, meta(5 * GIB, dtype=torch.uint8)),
    "64-bit words": (lambda a: a[-1:] + 1, meta(MAX_INDEX // 2 + 1, dtype=torch.int64)),
    "index_select": (
        lambda a: a.index_select(0, torch.zeros(2, dtype=torch.int64, device=DEVICE)),
        meta(70000, 70000, dtype=torch.float16),
    ),
    "all of it": (lambda a: a.mul_(2), meta(MAX_INDEX + 1, dtype=torch.uint8)),
}


@pytest.mark.usefixtures("large_buffers")
@pytest.mark.parametrize("name", TRACED)
def test_plans_for_too_large_tensors_are_refused(name: str) -> None:
    fn, a = TRACED[name]
    with pytest.raises(AddressError, match=r"numbers? elements,? and 32-bit words"):
        trace(fn, a)


@pytest.mark.usefixtures("large_buffers")
def test_plans_for_tensors_that_are_just_small_enough_have_numbers_of_32_bits() -> None:
    columns = trace(lambda a: a[:, 5] + 1, meta(60000, 60000, dtype=torch.float16))
    last = trace(lambda a: a[-16:] * 2, meta(MAX_INDEX, dtype=torch.uint8))
    for plan in (columns, last):
        torch_webgpu.plan.check(plan)
        words = [word for step in plan.steps for word in step.words if isinstance(word, int)]
        assert max(words) < 1 << 32


@pytest.mark.usefixtures("large_buffers")
def test_a_plan_is_not_run_on_an_input_that_lies_too_far_into_its_storage() -> None:
    bound = torch_webgpu.plan.bind(trace(lambda a: a + 1, meta(16, dtype=torch.uint8)))
    storage = torch.empty(5 * GIB, dtype=torch.uint8, device=DEVICE)
    with pytest.raises(AddressError, match="input 0 of a plan"):
        bound(storage[-16:])


@pytest.mark.usefixtures("large_buffers")
def test_near_tensors_in_a_large_storage_are_used_as_ever() -> None:
    """A storage of 5 GiB is checked at every use; what lies near its start can be addressed."""
    plan = trace(lambda a: (a[:64] + 1, torch._foreach_add([a[:8], a[8:16]], 1)[1]), meta(5 * GIB, dtype=torch.uint8))
    assert [spec.shape for spec in plan.outputs] == [(64,), (8,)]
