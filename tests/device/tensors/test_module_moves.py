"""Modules and parameters that move keep all that they keep when ``.double()`` converts them on the CPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torch_webgpu.aten.dispatch.torch_abi import KERNELS
from torch_webgpu.aten.tensors import views

Move = Callable[[nn.Module], nn.Module]


def halves(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(0.5)
    return module


def run(module: nn.Module, like: torch.Tensor) -> torch.Tensor:
    return module(torch.ones(1, 3, dtype=like.dtype, device=like.device))


def what_hooks_see(move: Move) -> Any:
    linear = halves(nn.Linear(3, 2))
    weight, seen = linear.weight, []
    run(linear, weight).sum().backward()
    weight.register_hook(lambda grad: grad * 2)
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p is weight))
    move(linear)
    assert linear.weight is weight
    run(linear, weight).sum().backward()
    weight.register_hook(lambda grad: grad + 1)
    run(linear, weight).sum().backward()
    return weight.grad.tolist(), seen, weight.grad.device == weight.device, weight.grad.dtype == weight.dtype


def what_views_and_references_see(move: Move) -> Any:
    linear = halves(nn.Linear(3, 2))
    weight = linear.weight
    view, detached, reference, version = weight.view(6), weight.detach(), weakref.ref(weight), weight._version
    move(linear)
    weight.data.fill_(9)
    return (
        reference() is weight, view._base is weight, view.device.type, view.dtype, view.tolist(), detached.tolist(),
        weight._version - version, weight.tolist(),
    )  # fmt: skip


def what_a_graph_from_before_does(move: Move) -> Any:
    linear = halves(nn.Linear(3, 2))
    loss = run(linear, linear.weight).sum()
    move(linear)
    loss.backward()
    return linear.weight.grad.device, linear.weight.grad.dtype, linear.weight.grad.tolist()


def what_reparametrized_modules_give(move: Move) -> Any:
    found = []
    for wrap in (nn.utils.weight_norm, nn.utils.spectral_norm, nn.utils.parametrizations.weight_norm):
        linear = wrap(halves(nn.Linear(3, 2)))
        run(linear, torch.ones(1))
        move(linear)
        out = run(linear, next(linear.parameters()))
        out.sum().backward()
        found.append((out.shape, all(p.grad is not None for p in linear.parameters())))
    return found


def what_lazy_modules_become(move: Move) -> Any:
    linear = move(nn.LazyLinear(2))
    out = run(linear, linear.weight)
    return type(linear.weight), out.shape, out.device == linear.weight.device


def what_flags_remain(move: Move) -> Any:
    frozen = nn.Linear(3, 2).requires_grad_(False)
    with torch.inference_mode():
        made_there, moved_there = nn.Linear(3, 2), move(nn.Linear(3, 2))
    return [
        (p.requires_grad, p.is_leaf, p.is_inference())
        for module in (move(frozen), move(made_there), moved_there)
        for p in module.parameters()
    ]


pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")

QUESTIONS = [
    what_hooks_see,
    what_views_and_references_see,
    what_a_graph_from_before_does,
    what_reparametrized_modules_give,
    what_lazy_modules_become,
    what_flags_remain,
]


@pytest.mark.parametrize("ask", QUESTIONS, ids=lambda q: q.__name__)
def test_moving_keeps_what_converting_keeps(ask: Callable[[Move], Any], device: torch.device) -> None:
    expected = ask(lambda module: module.double())
    if ask is what_a_graph_from_before_does:
        assert expected[1] == torch.float32  # PyTorch accumulates what the old graph gives, in its type
    assert ask(lambda module: module.to(device)) == expected


@pytest.mark.parametrize("ask", QUESTIONS[:4], ids=lambda q: q.__name__)
def test_there_and_back(ask: Callable[[Move], Any], device: torch.device) -> None:
    assert ask(lambda module: module.to(device).cpu()) == ask(lambda module: module.double().float())


def test_data_crosses_devices_both_ways(device: torch.device) -> None:
    p = nn.Parameter(torch.arange(4.0))
    reference, seen = weakref.ref(p), []
    p.register_hook(seen.append)
    for where in (device, torch.device("cpu"), device):
        p.data = p.data.to(where)
        assert p.device.type == where.type
        assert type(p) is nn.Parameter
        (p * 2).sum().backward()
        assert p.grad.device.type == where.type
        assert seen.pop().device.type == where.type
        p.grad = None
    assert reference() is p
    p.data = torch.ones(2, 3, dtype=torch.float16, device=device).t()
    assert (p.shape, p.stride(), p.dtype) == ((3, 2), (1, 3), torch.float16)


def test_data_of_other_kinds_is_refused(device: torch.device) -> None:
    dense, sparse = torch.ones(2, 2, device=device), torch.ones(2, 2).to_sparse()
    for t, data in ((dense, sparse), (sparse, dense), (torch.ones(2, device="meta"), dense)):
        if t.device == data.device and t.layout == data.layout:
            continue
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            t.data = data
    with pytest.raises(RuntimeError, match="floating point or complex"):
        torch.ones(2, requires_grad=True).data = torch.ones(2, dtype=torch.int32, device=device)


def test_tied_weights_and_optimizers_follow(device: torch.device) -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    reference = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    reference.load_state_dict(model.state_dict())
    reference[1].weight = reference[0].weight
    expected = torch.optim.Adam(reference.parameters(), lr=0.1)
    model.to(device)
    assert len(list(model.parameters())) == 1
    for _ in range(2):
        for m, o, where in ((model, optimizer, device), (reference, expected, "cpu")):
            o.zero_grad()
            m(torch.tensor([1, 2], device=where)).square().sum().backward()
            o.step()
    torch.testing.assert_close(model[1].weight.cpu(), reference[1].weight, rtol=1e-4, atol=1e-5)


def test_flags_of_pytorch_still_decide(device: torch.device) -> None:
    linear = nn.Linear(2, 2)
    weight = linear.weight
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        assert linear.to(device).weight is not weight
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    weight = linear.weight
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        assert linear.cpu().weight is weight
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_canary_cpp_lists_the_devices_with_ordinary_tensors(device: torch.device) -> None:
    """Where this fails, PyTorch knows of this device, and :func:`torch_abi.have_compatible_keys` can go."""
    if device.type != "webgpu":
        pytest.skip("about webgpu's registration")
    overload = torch.ops.aten._has_compatible_shallow_copy_type.default
    assert overload in KERNELS
    assert KERNELS[overload] == views.__name__.rpartition(".")[2]
    composite = torch.library.get_kernel(overload, "Meta")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
    assert not composite.call_boxed(keys, torch.ones(1), torch.ones(1, device=device))
