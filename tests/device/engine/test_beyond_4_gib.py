"""Tensors of 5 GiB, as they are: more bytes, and in uint8 more elements, than 32 bits number.

Only a GPU has such buffers, and the program needs some 64 GiB of memory: TORCH_WEBGPU_TEST_HUGE=1 asks for it. The
limits put in by hand, for every adapter: test_divided.py, test_divided_operators.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.conformance.target import DEVICE

from torch_webgpu.errors import AddressError

GIB = 1 << 30
pytestmark = [
    pytest.mark.skipif(DEVICE.type != "webgpu", reason="about the webgpu device"),
    pytest.mark.skipif(not os.environ.get("TORCH_WEBGPU_TEST_HUGE"), reason="set TORCH_WEBGPU_TEST_HUGE=1"),
]
Function = Callable[[torch.Tensor], torch.Tensor]


def one_half_to_the_other(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[0] // 2
    x[-half:].add_(x[:half])
    return x


def rows(x: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] // 1024 * 1024].view(-1, 1024)


def last_row(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([x.shape[0] // 1024 - 1, 0], device=x.device)


# Of each tensor one answer that reads all of it, or lies where 32 bits have ended.
SUMS: dict[str, Function] = {
    "sum": lambda x: x.sum(dtype=torch.float32 if x.is_floating_point() else torch.int64),
    "max": lambda x: x.max(),
    "count": lambda x: torch.count_nonzero(x),
    "any": lambda x: (x > 100).any(),
}
PARTS: dict[str, Function] = {
    "the end": lambda x: x[-7:] * 2,
    "steps": lambda x: x[:: 1 << 20] + 1,
    "around 2**32": lambda x: x.flatten()[(1 << 32) // x.element_size() - 9 :][:20].clone(),
    "written beyond 2**32": lambda x: x.flatten()[(1 << 32) // x.element_size() - 9 :][:20].fill_(5),
}
WHOLE: dict[str, Function] = {
    "copy": lambda x: x.clone(),
    "arithmetic": lambda x: x * 3 + 1,
    "in place": lambda x: x.add_(1),
    "compare": lambda x: x > 2,
    "sums of rows": lambda x: rows(x).sum(1, dtype=torch.float32 if x.is_floating_point() else torch.int64),
}
# What may be refused: then the words say so, and nothing has happened.
OTHERS: dict[str, Function] = {
    "one half to the other": one_half_to_the_other,
    "index": lambda x: rows(x)[last_row(x)],
    "index_select": lambda x: rows(x).index_select(0, last_row(x)),
    "embedding": lambda x: F.embedding(last_row(x), rows(x)),
    "product of the last rows": lambda x: rows(x)[-3:].float() @ torch.ones(1024, 2, device=x.device),
    "softmax of the last rows": lambda x: rows(x)[-3:].float().softmax(-1),
    "softmax of rows": lambda x: rows(x).softmax(-1) if x.dtype == torch.float32 else x[:1],
    "argmax of rows": lambda x: rows(x).argmax(-1),
    "cumsum of the last rows": lambda x: rows(x)[-3:].cumsum(-1),
}
FAMILIES = {**SUMS, **PARTS, **WHOLE, **OTHERS}


@pytest.fixture(scope="module", params=[torch.uint8, torch.float16, torch.float32], ids=lambda d: str(d)[6:])
def pair(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor]:
    largest = torch.webgpu.get_device_properties(DEVICE).max_buffer_size
    if largest < 5 * GIB + 64:
        pytest.skip(f"this adapter's buffers end at {largest / GIB:.2f} GiB")
    numel = 5 * GIB // request.param.itemsize + 7
    pattern = torch.arange(65537).remainder_(101).to(request.param)  # of a length that no power of two divides
    x = pattern.repeat(-(-numel // 65537))[:numel].clone()
    x[-3:] = 120
    return x, x.to(DEVICE)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_is_the_cpus(pair: tuple[torch.Tensor, torch.Tensor], name: str) -> None:
    x, on_device = pair
    fn = FAMILIES[name]
    try:
        actual = fn(on_device).cpu()
    except AddressError:
        if name not in OTHERS:
            raise
        return
    expected = fn(x)
    if actual.is_floating_point() and ("sum" in name or "softmax" in name):  # each adds in an order of its own
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-6)
    else:
        assert torch.equal(actual, expected)
