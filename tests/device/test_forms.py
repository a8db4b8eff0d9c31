"""Calls recognised by guards get what they would get without: whatever the guards cannot tell goes the long way."""

from __future__ import annotations

import pytest
import torch
from torch._ops import OpOverload

from torch_webgpu.aten.forms import FORMS_PER_SHAPE, matcher
from torch_webgpu.aten.register import POINTWISE, PointwiseKernel
from torch_webgpu.aten.traced import traced

aten = torch.ops.aten


def forms_of(overload: OpOverload, shape: tuple[int, ...]) -> int:
    kernel: PointwiseKernel = POINTWISE[overload]
    return len(kernel.forms.known.get(torch.Size(shape), ()))


def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that grows with each call that no form recognised."""
    seen: list[object] = []
    plain = PointwiseKernel.call
    monkeypatch.setattr(PointwiseKernel, "call", lambda self, *a: (seen.append(self.name), plain(self, *a))[1])
    return seen


def test_a_call_seen_before_is_recognised(device, monkeypatch):
    x, y = torch.rand(3, 7, 2, device=device), torch.rand(3, 7, 2, device=device)
    first = x + y
    seen = long_ways(monkeypatch)
    assert torch.equal((x + y).cpu(), first.cpu())
    assert seen == []


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat([x.flatten(), x.flatten()[:1]])[1:].view_as(x),  # starts in the middle of 16 bytes
        lambda x: x.half(),
        lambda x: x.bool(),
        lambda x: x[:1],
        lambda x: x[:, :1],
        lambda x: 2,
        lambda x: 2.5,
        lambda x: True,
        lambda x: x.cpu()[0, 0],
        lambda x: x[0, 0],
        lambda x: x.expand(2, *x.shape),
    ],
)
def test_other_calls_are_not_taken_for_it(device, other):
    on_cpu = torch.arange(30.0).reshape(5, 6) / 7
    x = on_cpu.to(device)
    for _ in range(3):
        assert torch.equal((x + x).cpu(), on_cpu + on_cpu)
        for _ in range(2):
            torch.testing.assert_close((x + other(x)).cpu(), on_cpu + other(on_cpu))
            torch.testing.assert_close((x * other(x)).cpu(), on_cpu * other(on_cpu))


def test_numbers_of_one_class_share_a_form(device, monkeypatch):
    x = torch.ones(4, 9, device=device)
    assert (x * 1.5).sum().item() == 54
    seen = long_ways(monkeypatch)
    assert [(x * k).sum().item() for k in (0.5, -2.0, 1e30 * 0)] == [18, -72, 0]
    assert seen == []
    assert torch.equal((x * float("inf")).cpu(), torch.full((4, 9), float("inf")))
    assert (x * 1e300).isinf().all()
    assert (x * 3).dtype == torch.float32
    assert seen.count("aten.mul.Tensor") == 1  # an int is another class


def test_in_place_on_itself_and_on_parts_of_itself(device):
    x = torch.arange(8.0, device=device)
    expected = torch.arange(8.0)
    for _ in range(3):
        x.add_(x)
        expected.add_(expected)
        x[:4].add_(x[4:])
        expected[:4].add_(expected[4:])
        x.view(2, 4).mul_(x.view(2, 4))
        expected.view(2, 4).mul_(expected.view(2, 4))
        x.div_(x.max())
        expected.div_(expected.max())
    assert torch.allclose(x.cpu(), expected)


def test_a_shape_has_a_bounded_number_of_forms(device):
    x = torch.rand(6, 5, device=device)
    layouts = [
        x,
        x.t().contiguous().t(),
        x.half(),
        x.bfloat16(),
        x.to(torch.int32),
        x.to(torch.int16),
        x.to(torch.int8),
    ]
    for other in layouts:
        for _ in range(2):
            x + other
    assert 1 <= forms_of(aten.add.Tensor, (6, 5)) <= FORMS_PER_SHAPE


def test_gradients_and_modes_do_not_matter(device):
    x = torch.rand(3, 5, device=device)
    w = torch.rand(3, 5, device=device, requires_grad=True)
    for _ in range(2):
        assert (x * w).requires_grad
        with torch.no_grad():
            assert not (x * w).requires_grad
        with torch.inference_mode():
            assert (x * w).is_inference()
        with torch.autocast(device_type="webgpu"):
            torch.testing.assert_close((x * w).float(), x * w)


def test_traces_tell_plain_values_apart(device):
    ran = []

    @traced
    def kernel(x: torch.Tensor, k: object = 1, *, scale: object = 1) -> torch.Tensor:
        ran.append((k, scale))
        return x * (2 if k is True else 3 if k == 1 and isinstance(k, int) else 4) + scale

    x = torch.ones(5, device=device)
    for _ in range(3):
        assert kernel(x, True)[0].item() == 3
        assert kernel(x, 1)[0].item() == 4
        assert kernel(x, 1.0)[0].item() == 5
        assert kernel(x, 1, scale=2)[0].item() == 5
        assert kernel(x, scale=2.5)[0].item() == 5.5
        assert kernel(x, [1])[0].item() == 5
    assert len(ran) == 6


def test_zeros_of_both_signs(device):
    x, first = torch.ones(4, device=device), torch.tensor([0], device=device)
    for _ in range(2):
        for zero in (0.0, -0.0):
            made = (x.index_fill(0, first, zero), torch.full_like(x, zero), x * zero, x.clamp(max=zero))
            assert [t.cpu()[0].signbit().item() for t in made] == [str(zero) == "-0.0"] * 4


def test_what_no_form_can_tell(device):
    x = torch.rand(8, device=device)
    assert matcher((x, x), {}, False) is not None
    assert matcher((x[1:], x), {}, False) is None
    assert matcher((x, (1, x)), {}, False) is None
    assert matcher((x, [1.0, 2]), {}, False) is None
    assert matcher((x,), {"out": x}, False) is None
    match = matcher((x, 1), {"k": 2}, False)
    assert match is not None
    assert match((x, 1), {"k": 2}) == [x.data_ptr()]
    for args, kwargs in [
        ((x, 1), {}),
        ((x, 1), {"k": 2.0}),
        ((x, True), {"k": 2}),
        ((x,), {"k": 2}),
        ((x.cpu(), 1), {"k": 2}),
    ]:
        assert match(args, kwargs) is None
