import json
import time

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast

torch.backends.cudnn.benchmark = True
torch.cuda.manual_seed(0)
torch.manual_seed(0)

start_time = None


def start_timer():
    global start_time
    torch.cuda.empty_cache()
    torch.cuda.reset_max_memory_allocated()
    torch.cuda.synchronize()
    start_time = time.time()


def end_timer_and_print(local_msg):
    torch.cuda.synchronize()
    end_time = time.time()
    print("\n" + local_msg)
    print("Total execution time = {:.3f} sec".format(end_time - start_time))
    print("Max memory used by tensors = {} bytes".format(torch.cuda.max_memory_allocated()))


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.to_out = nn.Linear(dim, dim)

    @autocast(enabled=False)
    def softmax(self, x):
        assert x.dtype == torch.float32
        return x.softmax(dim=-1)

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        assert q.dtype == (torch.float16 if torch.is_autocast_enabled() else torch.float32)
        attention = self.softmax((q @ k.transpose(-1, -2)).float() * x.shape[-1] ** -0.5)
        return self.to_out(attention @ v)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), Attention(32), nn.ReLU(), nn.Linear(32, 1)).cuda()


data = [torch.randn(8, 4, 16).cuda() for _ in range(10)]
targets = [4 * x.mean(dim=-1, keepdim=True) for x in data]
loss_fn = torch.nn.MSELoss().cuda()


def train(use_amp):
    net = make_model()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = GradScaler(enabled=use_amp, init_scale=2.0**10)
    losses = []
    start_timer()
    for epoch in range(3):
        for input, target in zip(data, targets):
            with autocast(enabled=use_amp):
                output = net(input)
                loss = loss_fn(output, target)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            losses.append(loss.item())
    end_timer_and_print("Mixed precision:" if use_amp else "Default precision:")
    return losses, output.dtype, scaler


full, dtype, _ = train(False)
assert dtype is torch.float32
half, dtype, scaler = train(True)
assert dtype is torch.float16
state = scaler.state_dict()
scaler = torch.cuda.amp.GradScaler()
scaler.load_state_dict(state)
print(json.dumps({"losses": full, "half": half, "scale": scaler.get_scale(), "gpu": torch.cuda.is_available()}))
