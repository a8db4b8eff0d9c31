"""The harness finds what it is there to find: each kind of difference between the devices makes its check fail."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from .checks import Case, backward, forward, inplace, out
from .compare import MismatchError, Tolerance, assert_same
from .samples import LAYOUTS, MIXED, choose, relayout
from .target import DEVICE, Replica
from .trials import opinfos

F32 = {torch.float32: Tolerance(1.3e-6, 1e-5)}
BASE = torch.arange(6.0).reshape(2, 3)


class Faulty:
    """An OpInfo whose function goes wrong where ``kind`` calls it on the device for the first time."""

    # Before that: the CPU's turn, and with the random numbers' detector another; ``out`` also asks what to expect.
    DEVICE_CALL: ClassVar = {backward: 3, forward: 3, inplace: 3, out: 4}

    def __init__(self, fault, kind):
        self.op = self.inplace_variant = self._call
        self.name = self.full_name = "faulty"
        self.fault, self.countdown = fault, self.DEVICE_CALL[kind]

    def _call(self, input, **kwargs):
        self.countdown -= 1
        return torch.mul(input, 1.0, **kwargs) if self.countdown else self.fault(input, **kwargs)


def check(kind, fault):
    sample = choose(opinfos()["abs"], torch.float32, 1, requires_grad=kind is backward)[0]
    kind(Case(Faulty(fault, kind), torch.float32, F32), sample)


def fails(error):
    raise error


FORWARD_FAULTS = {
    "value": lambda x, **kw: x * 1.001,
    "dtype": lambda x, **kw: x.half(),
    "shape": lambda x, **kw: x[None],
    "strides": lambda x, **kw: LAYOUTS["transposed"](x),
    "view": lambda x, **kw: x,
    "nan": lambda x, **kw: torch.full_like(x, torch.nan),
    "structure": lambda x, **kw: (x * 1,),
    "not a tensor": lambda x, **kw: 1.0,
    "device": lambda x, **kw: torch.empty_like(x, device="meta"),
    "exception": lambda x, **kw: fails(ValueError("no")),
}


@pytest.mark.parametrize("fault", FORWARD_FAULTS)
def test_forward_finds(fault):
    with pytest.raises(MismatchError):
        check(forward, FORWARD_FAULTS[fault])


def test_forward_accepts_what_is_right():
    check(forward, lambda x: x * 1.0)


def test_a_write_to_an_input_is_found():
    with pytest.raises(MismatchError):
        check(inplace, lambda x: x.add_(1).sub(1))


def test_a_wrong_gradient_is_found():
    with pytest.raises(MismatchError):
        check(backward, lambda x: x.detach() - x)
    check(backward, lambda x: x * 1.0)


def test_an_out_that_is_not_written_is_found():
    with pytest.raises(MismatchError, match="out=fresh"):
        check(out, lambda x, out=None: x * 1.0)


def test_referee_forgives_rounding_only():
    """A result off the CPU's is accepted where it is nearer to the truth, and only there."""
    cpu, truth = torch.tensor([1.0001]), torch.tensor([1.0], dtype=torch.float64)
    assert_same(torch.tensor([1.0], device=DEVICE), cpu, F32, truth=lambda: truth)
    with pytest.raises(MismatchError):
        assert_same(torch.tensor([1.001], device=DEVICE), cpu, F32, truth=lambda: truth)
    with pytest.raises(MismatchError):
        assert_same(torch.tensor([1.0], device=DEVICE), cpu, F32)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replica_keeps_the_geometry(layout):
    tensor = LAYOUTS[layout](BASE)
    copy = Replica(DEVICE).tensor(tensor)
    assert (copy.size(), copy.stride(), copy.storage_offset()) == (
        tensor.size(),
        tensor.stride(),
        tensor.storage_offset(),
    )
    assert torch.equal(copy.cpu(), tensor)


def test_replica_keeps_sharing():
    replica = Replica(DEVICE)
    whole, row = replica.tree((BASE, BASE[1]))
    row.zero_()
    assert whole[1].cpu().eq(0).all()
    assert len(replica.storages) == 1
    assert BASE[1].ne(0).all()


def test_layouts_differ_from_the_sample():
    sample = next(s for s in choose(opinfos()["add"], torch.float32, 8) if s.input.dim() == 2)
    for layout in (*LAYOUTS, MIXED):
        changed = relayout(sample, layout, torch.float32)
        assert changed is not None
        assert changed.input.shape == sample.input.shape or changed.derived
