"""Tensors of any size are refused in words before anything is recorded, or have numbers of 32 bits throughout: rows 6
and 7 of the audit of 23 November 2026. Single cases: tests/device/errors/test_addressing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.target import DEVICE

from torch_webgpu.engine.record import engine
from torch_webgpu.engine.tensor import ADDRESS_BITS, FIRST_BYTE
from torch_webgpu.errors import AddressError
from torch_webgpu.layout import MAX_BYTES, MAX_INDEX
from torch_webgpu.plan import trace

pytestmark = pytest.mark.skipif(DEVICE.type != "webgpu", reason="about the webgpu device")
EXAMPLES = 150
DTYPES = (torch.uint8, torch.float16, torch.float32, torch.int64)
USES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x + 1,
    lambda x: x.sum(),
    lambda x: x.clone(),
    lambda x: torch.cat([x, x]),
    lambda x: torch._foreach_add([x], 1)[0],
    lambda x: x.flip(0),
)


def test_row_7_no_tensor_is_larger_than_what_lies_between_two_allocations() -> None:
    assert FIRST_BYTE + MAX_BYTES < 1 << ADDRESS_BITS


@st.composite
def views(draw: st.DrawFn) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]:
    """The layout of a small view that reaches somewhere near the last element that has a number, or far from it."""
    dtype = draw(st.sampled_from(DTYPES))
    words = max(1, dtype.itemsize // 4)
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    last = draw(st.one_of(st.integers(0, 1000), st.integers(-40, 40).map(lambda k: MAX_INDEX // words + k)))
    strides, rest = [], max(0, last)
    for size in shape:
        stride = draw(st.integers(0, rest // (size - 1))) if size > 1 else 1
        strides.append(stride)
        rest -= stride * (size - 1)
    return dtype, shape, tuple(strides), rest


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@given(views(), st.sampled_from(USES))
def test_row_6_a_view_is_refused_or_its_numbers_fit(
    view: tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int], use: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    dtype, shape, strides, offset = view
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    known = engine()._largest_bytes
    before = known.get(0)
    known[0] = 1 << 40
    try:
        whole = torch.empty(last + 1, dtype=dtype, device="meta")
        if whole.nbytes > MAX_BYTES:
            with pytest.raises(AddressError, match="addresses of 36 bits"):
                trace(lambda x: use(x.as_strided(shape, strides, offset)), whole)
            return
        is_reached = (last + 1) * max(1, dtype.itemsize // 4) <= MAX_INDEX
        if not is_reached:
            with pytest.raises(AddressError, match=r"Use parts of it|a list with a tensor"):
                trace(lambda x: use(x.as_strided(shape, strides, offset)), whole)
            return
        plan = trace(lambda x: use(x.as_strided(shape, strides, offset)), whole)
        numbers = [
            word for step in plan.steps if hasattr(step, "words") for word in step.words if isinstance(word, int)
        ]
        assert all(0 <= number < 1 << 32 for number in numbers)
        assert all(prod(spec.shape) < 1000 for spec in plan.outputs)
    finally:
        if before is None:
            del known[0]
        else:
            known[0] = before
