"""Operators that PyTorch composes of others, recorded as one: the same results, and the parts for whoever asks."""

from __future__ import annotations

import pytest
import torch
from tests.device.against_cpu import check
from torch.utils._python_dispatch import TorchDispatchMode

from torch_webgpu.aten.dispatch.recipes import statistics

linear, matmul = torch.nn.functional.linear, torch.matmul


class Names(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6), (2, 1, 3, 6), (0, 6), (2, 0, 6)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_linear(device, shape, bias, backward):
    tensors = [torch.randn(shape), torch.randn(5, 6), *[torch.randn(5)] * bias]
    for _ in range(3):
        check(device, linear, *tensors, backward=backward)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "shapes",
    [
        ((6,), (6,)),
        ((4, 6), (6,)),
        ((6,), (6, 5)),
        ((2, 3, 4, 6), (6, 5)),
        ((2, 1, 4, 6), (3, 6, 5)),
        ((2, 4, 0), (0, 5)),
    ],
    ids=str,
)
def test_matmul(device, shapes, backward):
    tensors = [torch.randn(shape) for shape in shapes]
    for _ in range(3):
        check(device, matmul, *tensors, backward=backward)


def test_strides(device):
    x, weight = torch.randn(3, 6, 4).transpose(1, 2), torch.randn(6, 5).t()
    expanded = torch.randn(1, 1, 6).expand(2, 3, 6)
    for _ in range(3):
        check(device, linear, x, weight)
        check(device, linear, expanded, weight, torch.randn(5))
        check(device, linear, x[:, ::2], weight[1:])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_is_recognised(device, mode):
    """A call like one before asks for nothing, and its result is an inference tensor where CPU's is."""
    x, weight, bias = torch.randn(2, 3, 6), torch.randn(5, 6), torch.randn(5)
    on_device = [t.to(device) for t in (x, weight, bias)]
    with mode():
        expected = linear(x, weight, bias)
        linear(*on_device)
        by_key, made = statistics.by_key, statistics.made
        result = linear(*on_device)
        assert (statistics.by_key, statistics.made) == (by_key, made)
    assert result.is_inference() == expected.is_inference()
    assert not result.requires_grad
    torch.testing.assert_close(result.cpu(), expected)


def test_modes_see_the_parts(device):
    names = {}
    for where in (device, "cpu"):
        x, weight = torch.randn(2, 3, 6).to(where), torch.randn(5, 6).to(where)
        with torch.no_grad():
            for _ in range(2):
                linear(x, weight)
            with Names() as seen:
                linear(x, weight)
        names[where] = seen.names
    assert names[device] == names["cpu"]


def test_derivatives_of_parts(device):
    """Those of a product are recorded whatever was called before, also second ones and forward ones."""
    x, weight = torch.randn(2, 3, 6), torch.randn(5, 6)

    def second(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            linear(x, weight)
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad((linear(x, weight) ** 3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            linear(x, weight)
            return torch.func.jvp(lambda x: linear(x, weight), (x,), (x * 2,))[1]

    check(device, second, x, weight)
    check(device, forward, x, weight)
    check(device, lambda x, weight: torch.vmap(linear, (0, None))(x, weight), x, weight)


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (linear, (torch.ones(2, 3, 6), torch.ones(5, 7))),
        (linear, (torch.ones(2, 3, 6), torch.ones(5, 6), torch.ones(4))),
        (matmul, (torch.ones(2, 3, 6), torch.ones(3, 5, 6))),
        (matmul, (torch.ones(()), torch.ones(3))),
    ],
)
def test_errors(device, function, tensors):
    for _ in range(2):
        with torch.no_grad(), pytest.raises(RuntimeError) as expected:
            function(*tensors)
        with torch.no_grad(), pytest.raises(type(expected.value)):
            function(*[t.to(device) for t in tensors])


def test_other_tensors(device):
    """Sparse ones and subclasses have a composition of their own."""
    dense = torch.randn(4, 6)
    with torch.no_grad():
        sparse = torch.relu(torch.randn(5, 4)).to_sparse()
        torch.testing.assert_close(matmul(sparse.to(device), dense.to(device)).cpu(), matmul(sparse, dense))

        class Sub(torch.Tensor):
            pass

        x = dense.to(device)
        sub = x.as_subclass(Sub)
        for _ in range(2):
            assert type(linear(sub, x)) is Sub
            assert type(linear(x, x)) is torch.Tensor


def test_flags(device):
    """Tensors that are negated or conjugated by a flag, before and after ones that are not."""
    x, weight = torch.randn(2, 3, 6), torch.randn(5, 6)
    z, w = torch.randn(3, 6, dtype=torch.complex64), torch.randn(5, 6, dtype=torch.complex64)

    def negated(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        return [linear(a, b) for a in (x, torch._neg_view(x), x) for b in (weight, torch._neg_view(weight))]

    def conjugated(z: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [linear(a, b) for a in (z, z.conj(), z) for b in (w, w.conj())]

    for _ in range(2):
        check(device, negated, x, weight)
        check(device, conjugated, z, w)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32], ids=str)
def test_dtypes(device, dtype):
    x, weight = torch.randint(-3, 4, (2, 3, 6)).to(dtype), torch.randint(-3, 4, (5, 6)).to(dtype)
    for _ in range(2):
        check(device, linear, x, weight)
        check(device, matmul, x, weight.t())


@pytest.mark.parametrize(
    "wanted", [(True, True, True), (True, False, False), (False, True, False), (False, False, True)]
)
def test_linear_backward(device, wanted):
    """As of the parts, of whichever arguments; the layouts of gradients, too."""
    results = {}
    for where in ("cpu", device):
        torch.manual_seed(0)
        tensors = [torch.randn(2, 3, 6), torch.randn(5, 6), torch.randn(5)]
        copies = [t.to(where).requires_grad_(needed) for t, needed in zip(tensors, wanted)]
        for _ in range(3):
            out = linear(*copies)
            found = torch.autograd.grad(out.sum(), [t for t in copies if t.requires_grad])
        results[where] = found
    for ours, theirs in zip(results[device], results["cpu"], strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs)


def test_transforms_of_the_backward(device):
    x, weight, bias = torch.randn(2, 3, 6), torch.randn(5, 6), torch.randn(5)

    def batched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = [t.detach().requires_grad_() for t in (x, weight, bias)]
        out = linear(*tensors).sum((0, 1))
        return torch.autograd.grad(out, tensors, torch.eye(5, device=x.device), is_grads_batched=True)

    def mixed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = [t.detach().requires_grad_() for t in (x, weight, bias)]
        first = torch.autograd.grad(linear(*tensors).pow(3).sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum([g.pow(2).sum() for g in first]), tensors)

    def checkpointed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = [t.detach().requires_grad_() for t in (x, weight, bias)]
        out = torch.utils.checkpoint.checkpoint(lambda *t: linear(*t).relu(), *tensors, use_reentrant=False)
        return torch.autograd.grad(out.sum(), tensors)

    def on_cpu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = [t.detach().requires_grad_() for t in (x, weight, bias)]
        with torch.autograd.graph.save_on_cpu():
            out = linear(*tensors)
        return torch.autograd.grad(out.sum(), tensors)

    for function in (batched, mixed, checkpointed, on_cpu):
        check(device, function, x, weight, bias, tol=1e-4)


def test_modes_see_the_parts_of_what_they_record(device):
    names = {}
    for where in (device, "cpu"):
        x, weight = torch.randn(2, 3, 6).to(where), torch.randn(5, 6).to(where).requires_grad_()
        with Names() as seen:
            linear(x, weight).sum().backward()
        names[where] = seen.names
    assert names[device] == names["cpu"]
