import json

import torch

N, D_in, H, D_out = 16, 32, 16, 8
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(D_in, H), torch.nn.Tanh(), torch.nn.Linear(H, D_out)).cuda()
loss_fn = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

# Placeholders used for capture
data = torch.randn(8, N, D_in)
static_input = torch.zeros(N, D_in, device="cuda")
static_target = torch.zeros(N, D_out, device="cuda")

# warmup: uses static_input and static_target here for convenience
s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for i in range(3):
        optimizer.zero_grad(set_to_none=True)
        y_pred = model(static_input)
        loss = loss_fn(y_pred, static_target)
        loss.backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(s)

# capture
g = torch.cuda.CUDAGraph()
# Sets grads to None before capture, so backward() will create .grad attributes with allocations from the graph's pool
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(g):
    assert torch.cuda.is_current_stream_capturing()
    static_y_pred = model(static_input)
    static_loss = loss_fn(static_y_pred, static_target)
    static_loss.backward()
    optimizer.step()

losses = []
for epoch in range(4):
    for input in data:
        static_input.copy_(input)
        static_target.copy_(input[:, :D_out].sin())
        g.replay()
        losses.append(static_loss.item())

# parts of a network
module1 = torch.nn.Linear(D_in, H).cuda()
module2 = torch.nn.Linear(H, D_out).cuda()
sample = torch.randn(N, D_in, device="cuda")
h_sample = torch.randn(N, H, device="cuda", requires_grad=True)
expected = module2(torch.tanh(module1(data[0].cuda()))).sum().item()
module1 = torch.cuda.make_graphed_callables(module1, (sample,))
module2 = torch.cuda.make_graphed_callables(module2, (h_sample,))
parts = []
optimizer = torch.optim.SGD([*module1.parameters(), *module2.parameters()], lr=0.1)
for input in data:
    optimizer.zero_grad(set_to_none=True)
    tmp = module2(torch.tanh(module1(input.cuda())))
    if not parts:
        assert abs(tmp.sum().item() - expected) < 1e-3
    loss = loss_fn(tmp, input[:, :D_out].sin().cuda())
    loss.backward()
    optimizer.step()
    parts.append(loss.item())

# graphs that share a pool
g1, g2 = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
x = torch.ones(4, device="cuda")
with torch.cuda.graph(g1):
    a = x * 2
with torch.cuda.graph(g2, pool=g1.pool()):
    b = a + 1
x.fill_(3)
g1.replay()
g2.replay()
torch.cuda.synchronize()
print(json.dumps({"losses": losses, "parts": parts, "b": b.tolist(), "gpu": b.is_cuda}))
