"""``torch.func`` and ``torch.vmap`` on the device, against the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.against_cpu import check
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def energy(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.exp()).sum()


def mixed(x: torch.Tensor) -> torch.Tensor:
    return x.sin() @ x.t().softmax(0)


TRANSFORMS = {
    "grad": grad(energy),
    "grad_and_value": grad_and_value(energy),
    "vmap of grad": vmap(grad(energy)),
    "grad of grad": grad(lambda x: grad(energy)(x).square().sum()),
    "jacrev": jacrev(mixed),
    "jacfwd": jacfwd(mixed),
    "hessian": hessian(energy),
    "jacrev of jacrev": jacrev(jacrev(lambda x: x.prod(1).sum())),
    "jvp": lambda x: jvp(mixed, (x,), (x.cos(),)),
    "vjp": lambda x: vjp(mixed, x)[1](mixed(x)),
    "linearize": lambda x: linearize(mixed, x)[1](x.cos()),
    "hessian-vector product": lambda x: jvp(grad(energy), (x,), (x.cos(),)),
    "vmap in_dims": lambda x: vmap(torch.dot, in_dims=(1, 1))(x, x + 1),
    "vmap out_dims": lambda x: vmap(lambda row: row * 2, out_dims=1)(x),
    "nested vmap": lambda x: vmap(vmap(lambda a, b: a * b, (None, 0)), (0, None))(x[:, 0], x[0]),
    "chunked vmap": lambda x: vmap(lambda row: row.cumsum(0), chunk_size=2)(x),
    "vmap of a reduction": lambda x: vmap(lambda m: m.logsumexp(0))(x[None].expand(3, *x.shape)),
    "vmap of a convolution": lambda x: vmap(lambda row: F.conv1d(row[None, None], x[:1, None, :3]))(x),
    "vmap of batch_norm": lambda x: vmap(lambda m: F.batch_norm(m, None, None, training=True))(x.expand(2, *x.shape)),
    "vmap of linalg": lambda x: vmap(lambda row: torch.outer(row, row) @ row)(x),
    "functionalize": torch.func.functionalize(lambda x: x.clone().add_(1).view(-1).mul_(2)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(device, name):
    check(device, TRANSFORMS[name], seeded(3, 4), tol=1e-4)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


def on(device: torch.device, *values: Any) -> list[Any]:
    return [copy.deepcopy(v).to(device) for v in values]


def test_gradients_of_each_sample(device):
    model, x, y = network(), seeded(5, 1, 6, 6), torch.tensor([0, 2, 1, 1, 0])

    def each(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

        return vmap(grad(loss), in_dims=(None, 0, 0))(dict(model.named_parameters()), x, y)

    actual = {name: g.cpu() for name, g in each(*on(device, model, x, y)).items()}
    torch.testing.assert_close(actual, each(model, x, y), atol=1e-4, rtol=1e-4)


def test_ensembles(device):
    models, x = [nn.Linear(4, 2) for _ in range(3)], seeded(5, 4)

    def ensemble(models: list[nn.Linear], x: torch.Tensor) -> torch.Tensor:
        parameters, buffers = torch.func.stack_module_state(models)
        base = copy.deepcopy(models[0]).to("meta")
        return vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(parameters, buffers, x)

    actual = ensemble([m for (m,) in (on(device, m) for m in models)], x.to(device))
    torch.testing.assert_close(actual.cpu(), ensemble(models, x))


def test_functional_call_leaves_the_module_alone(device):
    model = nn.BatchNorm1d(3).to(device)
    replaced = {"weight": torch.full((3,), 2.0, device=device)}
    out = functional_call(model, replaced, (seeded(4, 3).to(device),))
    assert out.std(0, correction=0).sub(2).abs().max().item() < 1e-2
    assert model.weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize("make", [torch.rand_like, lambda row: F.dropout(row, 0.5), torch.randn_like])
def test_randomness_under_vmap(device, make):
    x = torch.ones(4, 200, device=device)
    same = vmap(make, randomness="same")(x)
    assert same.eq(same[0]).all()
    different = vmap(make, randomness="different")(x)
    assert not different[0].equal(different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(make)(x)
