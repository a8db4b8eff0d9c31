"""Code for as many GPUs as there are: replicas, scatter and gather by hand, pipelines over devices."""

import json

import torch
import torch.cuda.comm as comm
import torch.nn as nn
from torch.nn.parallel import DataParallel, gather, parallel_apply, replicate, scatter

n = torch.cuda.device_count()
devices = [torch.device(f"cuda:{i}") for i in range(n)]
torch.manual_seed(0)
first, last = devices[0], devices[-1]


class Pipeline(nn.Module):
    """Half of the layers on the first device, half on the last."""

    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).to(first)
        self.back = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.0), nn.Linear(16, 2)).to(last)

    def forward(self, x):
        return self.back(self.front(x.to(first)).to(last))


x, y = torch.linspace(-1, 1, 64).view(8, 8), torch.tensor([0, 1] * 4)
model = Pipeline()
optimizer = torch.optim.SGD(
    [{"params": model.front.parameters()}, {"params": model.back.parameters(), "lr": 0.2}], lr=0.1, momentum=0.9
)
losses = []
for _ in range(10):
    optimizer.zero_grad()
    out = model(x)
    loss = nn.functional.cross_entropy(out, y.to(out.device))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

net = nn.Linear(8, 3).cuda(0)
parallel = DataParallel(net, device_ids=list(range(n)), output_device=0)
inputs = x.cuda()
expected = net(inputs)
torch.testing.assert_close(parallel(inputs), expected)
torch.testing.assert_close(DataParallel(net)(x), expected)
assert all(key.startswith("module.") for key in parallel.state_dict())

ids = list(range(n))
replicas = replicate(net, ids)
pieces = scatter((inputs,), ids)
outputs = parallel_apply(replicas[: len(pieces)], pieces, devices=ids[: len(pieces)])
torch.testing.assert_close(gather(outputs, 0), expected)

copies = comm.broadcast(inputs, devices=ids)
assert all(copy.is_cuda for copy in copies)
parts = comm.scatter(inputs, ids, dim=0)
torch.testing.assert_close(comm.gather(parts, dim=0, destination=torch.device("cpu")), x)
total = comm.reduce_add([copy * 2 for copy in copies], destination=0)
torch.testing.assert_close(total.cpu(), 2 * n * x)
for i in range(n):
    with torch.cuda.device(i):
        t = torch.ones(3).cuda()
        assert t.get_device() == torch.cuda.current_device() == i
        assert torch.cuda.can_device_access_peer(i, i) in (True, False)
    with torch.cuda.device_of(inputs):
        assert torch.cuda.current_device() == inputs.get_device()
print(json.dumps({"losses": losses, "outputs": expected.tolist(), "gpu": expected.is_cuda}))
