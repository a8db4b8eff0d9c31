import json

import torch
import torch._dynamo
import torch.nn as nn

assert torch.cuda.is_available()
torch.set_float32_matmul_precision("high")
torch.manual_seed(0)


class Gate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w = nn.Linear(dim, dim)

    def forward(self, x):
        if x.device.type == "cuda" and x.is_cuda:
            x = torch.nn.functional.silu(self.w(x)) * x
        else:
            x = x * float("nan")
        return x + torch.zeros(x.shape[-1], device="cuda")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.Sequential(Gate(8), Gate(8))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.gates(x))


model = Net().cuda()
x = torch.randn(32, 8)
y = x.prod(dim=1, keepdim=True).tanh()


def generate_data(b):
    return (x.to(torch.float32).cuda(), y.cuda())


def timed(fn):
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    result = fn()
    end.record()
    torch.cuda.synchronize()
    return result, start.elapsed_time(end) / 1000


opt = torch.optim.Adam(model.parameters(), lr=2e-2)
expected = model(x.cuda()).detach()


def train(mod, data):
    opt.zero_grad(True)
    loss = nn.functional.mse_loss(mod(data[0]), data[1])
    loss.backward()
    opt.step()
    return loss.item()


compiled = torch.compile(model, mode="reduce-overhead")
with torch.no_grad():
    torch.testing.assert_close(compiled(x.cuda()), expected, rtol=1e-3, atol=1e-3)
losses = []
for i in range(8):
    loss, seconds = timed(lambda: train(compiled, generate_data(16)))
    losses.append(loss)
    print(f"compile train time {i}: {seconds}")


@torch.compile(fullgraph=True)
def normalise(v, eps: float = 1e-5):
    mask = torch.arange(v.shape[-1], device=v.device) > 1
    scale = 2.0 if v.is_cuda else 1.0
    return torch.where(mask, v / (v.norm(dim=-1, keepdim=True) + eps), v) * scale


torch._dynamo.reset()
print(json.dumps({"losses": losses, "normalised": normalise(x.cuda()).mean().item(), "gpu": True}))
