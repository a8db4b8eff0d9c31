import argparse
import json
import os

os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
os.environ["CUDA_VISIBLE_DEVICES"] = "0"

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--gpu_ids", type=str, default="0", help="gpu ids: e.g. 0  0,1,2, 0,2. use -1 for CPU")
parser.add_argument("--local_rank", type=int, default=0)
opt = parser.parse_args()
opt.gpu_ids = [int(id) for id in opt.gpu_ids.split(",") if int(id) >= 0]
if len(opt.gpu_ids) > 0:
    torch.cuda.set_device(opt.gpu_ids[0])
device = torch.device("cuda:{}".format(opt.gpu_ids[0])) if opt.gpu_ids else torch.device("cpu")


class RandomDataset(Dataset):
    def __init__(self, size, length):
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index):
        return self.data[index]

    def __len__(self):
        return self.len


class Model(nn.Module):
    def __init__(self, input_size, output_size):
        super(Model, self).__init__()
        self.fc = nn.Linear(input_size, output_size)

    def forward(self, input):
        output = self.fc(input)
        print("\tIn Model: input size", input.size(), "output size", output.size())
        return output


torch.manual_seed(0)
loader = DataLoader(dataset=RandomDataset(5, 60), batch_size=30, shuffle=True)
model = Model(5, 2)
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
    model = nn.DataParallel(model)
model.to(device)
before = sum(model(data.to(device)).sum().item() for data in loader)

net = torch.nn.DataParallel(Model(5, 2), device_ids=opt.gpu_ids).cuda()
assert next(net.parameters()).is_cuda and hasattr(net, "module")
criterion = nn.MSELoss().cuda(opt.local_rank)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
for epoch in range(5):
    for data in loader:
        inputs = data.to(f"cuda:{opt.local_rank}")
        labels = inputs[:, :2].cuda(opt.local_rank, non_blocking=True)
        loss = criterion(net(inputs), labels).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
state = {k.replace("module.", ""): v for k, v in net.state_dict().items()}
model.load_state_dict(state)
device_ids = [i for i in range(torch.cuda.device_count())]
devices = [torch.device("cuda:%d" % i) for i in device_ids]
assert devices[0] == inputs.device
peer = torch.cuda.can_device_access_peer(0, 0) if len(device_ids) > 1 else True
print(json.dumps({"losses": losses, "before": before, "gpu": str(device).startswith("cuda"), "peer": bool(peer)}))
