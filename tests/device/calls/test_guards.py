"""Calls recognised by guards get what they would get without: whatever they cannot tell goes the long way."""

from __future__ import annotations

import pytest
import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.guards import guard_for
from torch_webgpu.aten.dispatch.recipes import GUARDS_PER_SHAPE, Recipes
from torch_webgpu.aten.dispatch.recorded_once import record_once
from torch_webgpu.aten.dispatch.register_pointwise import POINTWISE, PointwiseKernel
from torch_webgpu.engine.tensor import ADDRESS_BITS

aten = torch.ops.aten


def guards_of(overload: OpOverload, shape: tuple[int, ...]) -> int:
    return len(POINTWISE[overload].recipes.guarded.get(torch.Size(shape), ()))


def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that grows with each call for which a key is made."""
    seen: list[object] = []
    plain = PointwiseKernel.key_of
    monkeypatch.setattr(
        PointwiseKernel, "key_of", lambda self, p, v, *a: (seen.append((self.name, p.name)), plain(self, p, v, *a))[1]
    )
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


def test_numbers_of_one_class_share_a_guard(device, monkeypatch):
    x = torch.ones(4, 9, device=device)
    assert (x * 1.5).sum().item() == 54
    seen = long_ways(monkeypatch)
    assert [(x * k).sum().item() for k in (0.5, -2.0, 1e30 * 0)] == [18, -72, 0]
    assert seen == []
    assert torch.equal((x * float("inf")).cpu(), torch.full((4, 9), float("inf")))
    assert (x * 1e300).isinf().all()
    assert (x * 3).dtype == torch.float32
    assert seen.count(("aten.mul.Tensor", "self")) == 1  # an int is another class


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


def test_a_shape_has_a_bounded_number_of_guards(device):
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
    assert 1 <= guards_of(aten.add.Tensor, (6, 5)) <= GUARDS_PER_SHAPE


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

    @record_once
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


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: x + x,
        lambda x, y: x.add(y, alpha=2.5),
        lambda x, y: x.pow(2),
        lambda x, y: x.clamp(None, 0.5),
        lambda x, y: x.div(y + 1, rounding_mode="floor"),
        lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
        lambda x, y: torch.where(x > y, x, y),
        lambda x, y: x.clone().mul_(y),
    ],
)
def test_what_guards_recognise(call, device, monkeypatch):
    """The same tensor twice, arguments by name, numbers that are code, outputs."""
    on_cpu = torch.rand(3, 11), torch.rand(3, 11)
    x, y = (t.to(device) for t in on_cpu)
    for _ in range(2):
        call(x, y)
    seen = long_ways(monkeypatch)
    torch.testing.assert_close(call(x, y).cpu(), call(*on_cpu))
    assert seen == []


def test_numbers_by_name_are_told_apart(device):
    x, y = torch.ones(7, 3, device=device), torch.ones(7, 3, device=device)
    for _ in range(3):
        assert [x.add(y, alpha=a).sum().item() for a in (1, 2, 1.0, 0.5, -1)] == [42, 63, 42, 31.5, 0]
        assert x.pow(2).sum().item() == 21
        assert x.mul(2).pow(3).sum().item() == 168
        assert torch.equal(x.div(y.mul(2), rounding_mode="floor").cpu(), torch.zeros(7, 3))
        assert torch.equal(x.div(y.mul(2)).cpu(), torch.full((7, 3), 0.5))


def test_what_no_guard_can_tell(device):
    x = torch.rand(8, device=device)
    assert guard_for((x, x), {}, False) is not None
    assert guard_for((), {"k": 2}, False) is None
    assert guard_for((x.cpu(), x), {}, False) is None
    assert guard_for((x[1:], x), {}, False) is None
    assert guard_for((x, x[1:]), {}, False) is None
    assert guard_for((x, (1, x)), {}, False) is None
    assert guard_for((x, [1.0, 2]), {}, False) is None
    guard = guard_for((x, 0.0), {}, False)
    assert guard is not None
    assert guard((x, 0.0), {}) is not None
    assert guard((x, -0.0), {}) is None
    guard = guard_for((x, 1), {"k": 2}, False)
    assert guard is not None
    assert guard((x, 1), {"k": 2}) == [x.data_ptr()]
    for args, kwargs in [
        ((x, 1), {}),
        ((x, 1), {"k": 2.0}),
        ((x, 1), {"l": 2}),
        ((x, True), {"k": 2}),
        ((x,), {"k": 2}),
        ((x.cpu(), 1), {"k": 2}),
        ((x.view(2, 4), 1), {"k": 2}),
        ((x.view(torch.int32), 1), {"k": 2}),
    ]:
        assert guard(args, kwargs) is None


def test_numbers_that_vary(device):
    x = torch.rand(8, device=device)
    for given in ((x, 0.0), (x, 1.5, "mode"), (x, x, 2.5, True)):
        guard = guard_for(given, {}, True)
        assert guard is not None
        assert guard(tuple([v + 1.0 if v.__class__ is float else v for v in given]), {}) is not None
        assert guard(tuple([v.__class__(2) if v.__class__ is bool else v for v in given]), {}) is not None
        assert guard(tuple([1 if v.__class__ is float else v for v in given]), {}) is None
    assert guard_for((x, x, 2.5, True), {}, True)((x, x, 2.5, False), {}) is None
    assert guard_for((x, 1.5, "mode"), {}, True)((x, 1.5, "other"), {}) is None
    by_name = guard_for((x,), {"alpha": 2, "out": x}, True)
    assert by_name((x,), {"alpha": 3, "out": x}) == [x.data_ptr()] * 2
    assert by_name((x,), {"alpha": 3.0, "out": x}) is None
    assert by_name((x,), {"alpha": 3}) is None


def keyed_calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that grows with each call of a recorded kernel that no guard recognises."""
    seen: list[object] = []
    get = Recipes.get
    monkeypatch.setattr(Recipes, "get", lambda self, key: (seen.append(key), get(self, key))[1])
    return seen


def test_lists_of_tensors_are_recognised(device, monkeypatch):
    on_cpu = torch.arange(24.0).view(2, 3, 4)
    x = on_cpu.to(device)
    for _ in range(2):
        torch.cat([x, x.sin()], 1)
    seen = keyed_calls(monkeypatch)
    joined = torch.cat([x, x.sin()], 1)
    assert seen == []
    torch.testing.assert_close(joined.cpu(), torch.cat([on_cpu, on_cpu.sin()], 1))
    for other in (lambda t: [t], lambda t: [t, t], lambda t: [t, t.sin(), t], lambda t: [t[:, :2], t.sin()]):
        for dim in (1, -2, 1):
            torch.testing.assert_close(torch.cat(other(x), dim).cpu(), torch.cat(other(on_cpu), dim))


def test_tensors_without_elements_are_recognised(device, monkeypatch):
    """They have no address, as in the first step of a cache that grows: ``cat([tensor([]), keys], -2)``."""
    keys = torch.arange(24.0).view(2, 3, 4)
    x = keys.to(device)
    none = torch.tensor([], device=device)
    for _ in range(2):
        torch.cat([none, x], -2)
    seen = keyed_calls(monkeypatch)
    for empty in (none, torch.tensor([], device=device)):
        assert torch.cat([empty, x], -2).cpu().equal(keys)
    assert seen == []
    guard = guard_for((none, x), {}, False)
    assert guard is not None
    for other in (none.half(), none.view(0, 1), x, torch.tensor([])):
        assert guard((other, x), {}) is None
    whole = torch.zeros(8, device=device)
    for empty in (x.view(-1)[:0], x.view(-1)[7:7], none):  # in a storage that it shares, or in one of its own
        first, second = guard((empty, x), {})
        assert ((first ^ second) >> ADDRESS_BITS == 0) == (empty is not none)
        for pair in ((empty, whole), (whole, empty), (empty, empty)):
            assert torch.cat(pair).numel() == sum(t.numel() for t in pair)


def test_zeros_of_either_sign_are_told_apart(device):
    def filled(x: torch.Tensor, value: float) -> torch.Tensor:
        return x.copysign(torch.full_like(x, value))

    once = record_once(filled)
    x = torch.ones(5, device=device)
    for value in (0.0, 0.0, -0.0, 0.0, -0.0):
        assert once(x, value).cpu().equal(filled(torch.ones(5), value))


def test_attention_that_nobody_looks_into_is_one_recipe(device, monkeypatch):
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    mask = torch.rand(5, 5) > 0.2
    on_device = [t.to(device) for t in (q, k, v, mask)]
    attend = torch.nn.functional.scaled_dot_product_attention
    for _ in range(2):
        attend(*on_device)
    seen = keyed_calls(monkeypatch)
    result = attend(*on_device)
    assert seen == []
    torch.testing.assert_close(result.cpu(), attend(q, k, v, mask))
    for options in ({"attn_mask": mask, "scale": 0.5}, {"is_causal": True}, {}):
        expected = attend(q, k, v, **options)
        given = {name: on_device[3] if value is mask else value for name, value in options.items()}
        for _ in range(2):
            torch.testing.assert_close(attend(*on_device[:3], **given).cpu(), expected)
    negated = torch._neg_view(on_device[0])
    torch.testing.assert_close(attend(negated, *on_device[1:]).cpu(), attend(-q, k, v, mask))
    grad = on_device[0].clone().requires_grad_()
    attend(grad, *on_device[1:]).sum().backward()
    assert grad.grad is not None


def test_composed_attention_computes_in_the_type_that_is_allowed_now(device):
    q, k, v = torch.randn(3, 2, 3, 5, 7, dtype=torch.float16).transpose(-1, -2).unbind()  # no fused road takes these
    on_device = [t.to(device) for t in (q, k, v)]
    attend = torch.nn.functional.scaled_dot_product_attention
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    results = []
    try:
        for allowed in (False, True, False):
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(allowed)
            results.append([attend(*on_device).cpu() for _ in range(2)])
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)
    (first, again), (halves, halves_again), (last, _) = results
    assert torch.equal(first, again)
    assert torch.equal(first, last)
    assert torch.equal(halves, halves_again)
    assert not torch.equal(first, halves)
