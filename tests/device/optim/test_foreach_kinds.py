"""Lists of bounds and exponents, clones, tensors that share a buffer: one operation each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .foreach_lists import lists, moved, outcome, pending, same


@pytest.mark.parametrize("name", ["clamp_min", "clamp_max", "maximum", "minimum", "pow"])
@pytest.mark.parametrize("numbers", [[0.75, 1.25, 2.5], [4, 5, 7], [float("nan"), 1.0, 0.5], [2, 3, -1]], ids=str)
def test_lists_of_numbers_with_special_ones(device: Any, name: str, numbers: list[float]) -> None:
    for suffix in ("", "_"):
        for dtype in (torch.float32, torch.int32):
            results = []
            for where in ("cpu", device):
                (values,) = lists(where, 0)
                values = [(3 * v).to(dtype) for v in values]
                operator = getattr(torch, f"_foreach_{name}{suffix}")
                run = (lambda o, v: o(v, numbers) and v) if suffix else (lambda o, v: o(v, numbers))
                results.append(outcome(lambda run=run, o=operator, v=values: run(o, v)))
            (error, expected), (actual_error, actual) = results
            assert (actual_error is None) == (error is None)
            if error is None:
                same(list(actual), list(expected), torch.float32)


def test_bounds_are_one_operation(device: Any) -> None:
    (values,) = lists(device, 0)
    torch.webgpu.synchronize()
    torch._foreach_clamp_min_(values, [0.6, 0.7, 0.8])
    torch._foreach_pow_(values, [1.5, 2.5, 3.5])
    assert pending() == 2


@pytest.mark.skipif(not hasattr(torch, "_foreach_clone"), reason="a newer PyTorch's")
def test_clones(device: Any) -> None:
    values = [*lists(device, 0)[0], torch.rand(6, 5, device=device).t()]
    torch.webgpu.synchronize()
    copies = torch._foreach_clone(values)
    assert pending() == 1
    torch._foreach_zero_(values)
    assert all(c.stride() == v.stride() and c.data_ptr() != v.data_ptr() for c, v in zip(copies, values))
    expected = [*lists("cpu", 0)[0]]
    same(moved(list(copies[:3]), "cpu"), expected, torch.float32)
    flat = torch._foreach_clone(values, memory_format=torch.contiguous_format)
    assert flat[-1].is_contiguous()


def test_gradients_in_one_buffer_are_read_as_a_list(device: Any) -> None:
    """As DistributedDataParallel's ``gradient_as_bucket_view`` leaves them."""
    results = []
    for where in ("cpu", device):
        bucket = torch.arange(40.0).to(where)
        views = [bucket[:12].view(3, 4), bucket[12:20], bucket[20:]]
        (params,) = lists(where, 0, shapes=((3, 4), (8,), (20,)))
        if where == device:
            torch.webgpu.synchronize()
        torch._foreach_add_(params, views, alpha=0.5)
        if where == device:
            assert pending() == 1
        torch._foreach_mul_(views, 2.0)  # written, they are looked at one by one
        torch._foreach_add_(params, views)
        overlapping = [bucket[:8], bucket[4:12]]
        torch._foreach_add_(overlapping, 1.0)
        results.append(moved([*params, bucket], "cpu"))
    same(results[1], results[0], torch.float32)


def test_strides_of_one_element_decide_nothing(device: Any) -> None:
    """Gradients of 1x1 weights come with channels last, and lie as the weights do."""
    shapes = ((6, 5, 1, 1), (1, 7), (3, 1, 4))
    results = []
    for where in ("cpu", device):
        params, means, grads = lists(where, 0, 1, 2, shapes=shapes)
        other = [torch.empty_strided(s, t, device=where) for s, t in zip(shapes, ((5, 1, 5, 5), (3, 1), (4, 9, 1)))]
        torch._foreach_copy_(other, grads)
        if where == device:
            torch.webgpu.synchronize()
        torch._foreach_lerp_(means, other, 0.1)
        torch._foreach_addcmul_(params, other, means, 0.5)
        if where == device:
            assert pending() == 2
        sums = torch._foreach_add(other, params)
        turned = [torch.rand(5, 6, device=where).t()]
        square = [torch.zeros(6, 5, device=where)]
        torch._foreach_copy_(square, turned)
        assert torch.equal(square[0], turned[0])
        results.append(moved([*params, *means, *sums], "cpu"))
    same(results[1], results[0], torch.float32)
