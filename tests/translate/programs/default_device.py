"""A physics-informed network and an ensemble under torch.func, everything on the default device."""

import json

import torch
import torch.nn as nn
from torch.func import functional_call, grad, hessian, jacrev, stack_module_state, vmap

assert torch.cuda.is_available(), "this needs a GPU"
torch.set_default_device("cuda")
torch.set_default_dtype(torch.float32)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
assert all(p.is_cuda for p in net.parameters())
points = torch.linspace(0, torch.pi, 32).unsqueeze(1)
assert points.device.type == "cuda" and torch.get_default_device().type == "cuda"
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
losses = []


def residual():
    x = points.clone().requires_grad_()
    u = net(x)
    du = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
    ddu = torch.autograd.grad(du, x, torch.ones_like(du), create_graph=True)[0]
    edge = net(torch.tensor([[0.0], [torch.pi]]))
    return (ddu + torch.sin(x)).pow(2).mean() + 10 * edge.pow(2).mean()


def closure():
    optimizer.zero_grad()
    loss = residual()
    loss.backward()
    return loss


for _ in range(10):
    losses.append(optimizer.step(closure).item())

# torch.func
params = dict(net.named_parameters())


def u(x, params):
    return functional_call(net, params, (x.view(1, 1),)).squeeze()


slope = vmap(grad(u), in_dims=(0, None))(points.squeeze(1), params)
curve = vmap(jacrev(jacrev(u)), in_dims=(0, None))(points[:4].squeeze(1), params)
per_sample = vmap(grad(lambda p, x: u(x, p) ** 2), in_dims=(None, 0))(params, points.squeeze(1))
assert per_sample["0.weight"].shape == (32, 16, 1) and slope.is_cuda
quadratic = hessian(lambda v: (v**2).sum())(torch.arange(3.0))
torch.testing.assert_close(quadratic, 2 * torch.eye(3))

# an ensemble
models = [nn.Linear(2, 3) for _ in range(4)]
stacked, buffers = stack_module_state(models)
base = nn.Linear(2, 3, device="meta")
inputs = torch.arange(10.0).view(5, 2)
together = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(stacked, buffers, inputs)
torch.testing.assert_close(together[1], models[1](inputs), rtol=1e-4, atol=1e-4)

with torch.device("cpu"):
    assert not torch.zeros(1).is_cuda
with torch.device("meta"):
    empty = nn.Linear(8, 8)
empty = empty.to_empty(device="cuda")
nn.init.kaiming_normal_(empty.weight)
assert empty.weight.is_cuda and empty.weight.std() > 0
generator = torch.Generator(device="cuda").manual_seed(7)
noise = torch.randn(4, generator=generator)
again = torch.randn(4, generator=torch.Generator("cuda").manual_seed(7))
assert noise.is_cuda and torch.equal(noise, again)
order = torch.randperm(6, generator=torch.Generator(device="cuda"))
assert sorted(order.tolist()) == list(range(6))
torch.set_default_device("cpu")
assert not torch.ones(1).is_cuda
torch.set_default_device(None)
print(json.dumps({"losses": losses, "slope": slope[::8].tolist(), "curve": curve.tolist(), "gpu": slope.is_cuda}))
