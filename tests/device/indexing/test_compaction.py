"""Operators whose results are as large as values say: what they give, and that each waits once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.device.against_cpu import layouts, same
from tests.device.indexing.inputs import check, values

from torch_webgpu.engine.record import engine

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32, torch.int16, torch.uint8,
    torch.bool,
)  # fmt: skip
MASK = torch.arange(60).remainder(7).lt(3)


@pytest.fixture
def waits(device, monkeypatch):
    """Of a call: how often it waits, and how often anything was submitted by its end."""
    native = engine().device(torch.device(device).index or 0)
    waited: list[str] = []
    finish = native.finish_readback

    def counted(readback):
        waited.append("the end of a submission")
        return finish(readback)

    def apart(*args):
        waited.append("a submission of its own")
        return download(*args)

    download = native.download
    monkeypatch.setattr(native, "finish_readback", counted)
    monkeypatch.setattr(native, "download", apart)

    def count(call: Callable[[], object]) -> tuple[int, int]:
        torch.webgpu.synchronize()
        waited.clear()
        before = native.work[1]
        result = call()
        counts = len(waited), native.work[1] - before
        del result
        return counts

    return count


FLAT = {
    "nonzero": lambda x, mask: mask.nonzero(),
    "nonzero, as tuple": lambda x, mask: mask.nonzero(as_tuple=True),
    "argwhere": lambda x, mask: x.argwhere(),
    "where": lambda x, mask: torch.where(mask),
    "masked_select": lambda x, mask: x.masked_select(mask),
    "mask": lambda x, mask: x[mask],
    "mask of rows": lambda x, mask: x.view(12, 5)[mask[:12]],
    "two masks": lambda x, mask: x.view(6, 10)[mask[:6], mask[3:13]],
    "written under a mask": lambda x, mask: x.index_put((mask,), x[: int(MASK.sum())]),
    "unique": lambda x, mask: x.unique(),
    "unique, all": lambda x, mask: x.unique(return_inverse=True, return_counts=True),
    "unique rows": lambda x, mask: x.view(12, 5).unique(dim=0),
    "unique_consecutive": lambda x, mask: x.unique_consecutive(),
    "bincount": lambda x, mask: x.bincount(),
    "repeat_interleave": lambda x, mask: x[:9].repeat_interleave(x[:9]),
    "one_hot": lambda x, mask: torch.nn.functional.one_hot(x),
}


@pytest.mark.parametrize("name", FLAT)
def test_one_wait_reads_the_size(device, waits, name):
    """Also where a kernel may have raised a flag before: it comes with the size."""
    call = FLAT[name]
    x, mask = torch.arange(60).remainder(9), MASK
    expected, on_device = call(x, mask), (x.to(device), mask.to(device))
    assert waits(lambda: call(*on_device)) == (1, 1)

    def after_what_may_flag() -> object:
        return on_device[0].index_select(0, on_device[0]), call(*on_device)

    assert waits(after_what_may_flag) == (1, 1)
    result = call(*on_device)
    for ours, theirs in zip(
        result if isinstance(result, tuple) else (result,), expected if isinstance(expected, tuple) else (expected,)
    ):
        same(ours, theirs)


def test_a_flag_is_raised_by_the_wait_for_a_size(device):
    x = torch.arange(60).to(device)
    x.index_select(0, x + 1)
    with pytest.raises((IndexError, RuntimeError), match="index 60"):
        x.nonzero()
    same(x.nonzero(), torch.arange(60).nonzero())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_selected_elements(device, dtype):
    """In storages of their own, which those of less than a word share words of."""
    for name, x in layouts(lambda *s: values(dtype, *s), 7, 5).items():
        backward = dtype.is_floating_point and name != "expanded"
        for mask in (
            torch.rand(7, 5) < 0.5,
            torch.ones(7, 5, dtype=torch.bool),
            torch.zeros(7, 5, dtype=torch.bool),
            (torch.rand(5, 7) < 0.5).t(),
            (torch.rand(7, 1) < 0.5).expand(7, 5),
            torch.tensor(True).expand(7, 5),
        ):
            check(device, torch.nonzero, mask)
            check(device, lambda x, mask: x[mask], x, mask, backward=backward)
            check(device, torch.masked_select, x, mask, backward=backward)
        check(device, torch.masked_select, x, torch.rand(5) < 0.5)
        check(device, torch.masked_select, x[0], torch.rand(3, 1) < 0.5)
        check(device, torch.masked_select, x[2, 3], torch.tensor(True))
        check(device, torch.masked_select, x, torch.tensor(True))
        check(device, lambda x: x.flatten()[1:][x.flatten()[:-1] != 0], x)
    empty = values(dtype, 0, 3)
    check(device, lambda x, mask: x[mask], empty, torch.ones(0, 3, dtype=torch.bool))
    check(device, torch.masked_select, empty, torch.ones(3, dtype=torch.bool))


def test_the_mask_may_change_afterwards(device):
    x, mask = torch.arange(60).to(device), MASK.to(device)
    chosen, places = x[mask], mask.nonzero()
    mask.logical_not_()
    x.zero_()
    same(chosen, torch.arange(60)[MASK])
    same(places, MASK.nonzero())


def test_several_masks(device):
    x = torch.rand(4, 5, 6)
    rows, columns = torch.tensor([True, False, True, True]), torch.tensor([True, True, False, False, True, False])
    for index in (
        (rows, slice(None), columns),
        (rows, torch.tensor([0, 1, 1]), columns),
        (rows, slice(None), torch.tensor([5])),
        (torch.zeros(4, dtype=torch.bool), slice(None), torch.zeros(6, dtype=torch.bool)),
    ):
        moved = tuple(i.to(device) if isinstance(i, torch.Tensor) else i for i in index)
        same(x.to(device)[moved], x[index])
    with pytest.raises(IndexError, match="shape of the mask"):
        x.to(device)[rows.to(device), rows.to(device)]


def test_what_a_mask_selects_is_overwritten_without_a_wait(device, waits):
    x, mask = torch.arange(60.0, device=device).view(12, 5), MASK.to(device)

    def overwrite():
        x[mask.view(12, 5)] = 3.0
        x[mask[:12]] = torch.arange(5.0, device=device)
        x[:, mask[:5]] = torch.tensor(2.0)
        x.index_put_((mask[:12],), torch.ones(1, 5, device=device), accumulate=True)

    assert waits(overwrite)[0] == 0
    expected = torch.arange(60.0).view(12, 5)
    expected[MASK.view(12, 5)] = 3.0
    expected[MASK[:12]] = torch.arange(5.0)
    expected[:, MASK[:5]] = 2.0
    expected[MASK[:12]] += 1
    assert torch.equal(x.cpu(), expected)
