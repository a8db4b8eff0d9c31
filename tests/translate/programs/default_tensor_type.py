import json

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

if torch.cuda.is_available():
    dev = torch.device("cuda:0")  # you can continue going on here, like cuda:1 cuda:2....etc.
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    print("Running on the GPU")
else:
    dev = torch.device("cpu")
    torch.set_default_tensor_type("torch.FloatTensor")
    print("Running on the CPU")

generator = torch.Generator(device="cuda").manual_seed(3)
torch.manual_seed(3)


class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 1)
        self.gain = nn.Parameter(torch.zeros(1))
        self.steps = torch.arange(4.0)

    def forward(self, x):
        return self.net(x) * (1 + self.gain) + self.steps.sum() * 0


model = Filter()
assert all(p.is_cuda for p in model.parameters()) and model.steps.is_cuda
nn.init.constant_(model.net.weight, 0.5)
nn.init.zeros_(model.net.bias)
x = torch.tensor([[i / 16, 1 - i / 16] for i in range(16)])
y = x[:, :1] * 3 - 1
assert x.is_cuda and torch.Tensor([1.0]).is_cuda and torch.zeros(2).device.type == "cuda"
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, generator=generator)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
losses = []
for epoch in range(12):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
torch.set_default_tensor_type(torch.FloatTensor)
assert not torch.zeros(1).is_cuda

torch.set_default_device("cuda")
assert torch.zeros(1).is_cuda and nn.Linear(2, 2).weight.device == torch.device("cuda:0")
assert torch.get_default_device().type == "cuda"
torch.set_default_device("cpu")
with torch.device("cuda"):
    assert torch.ones(3).is_cuda and torch.arange(3).is_cuda
assert not torch.ones(3).is_cuda
print(json.dumps({"losses": losses, "gain": model.gain.item(), "gpu": dev.type == "cuda"}))
