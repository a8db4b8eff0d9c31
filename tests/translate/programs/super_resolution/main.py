from __future__ import print_function

import argparse
import json
import os
import tempfile
from math import log10

import torch
import torch.nn as nn
import torch.optim as optim
from data import get_test_set, get_training_set
from model import Net
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser(description="PyTorch Super Res Example")
parser.add_argument("--upscale_factor", type=int, default=2, help="super resolution upscale factor")
parser.add_argument("--batchSize", type=int, default=8)
parser.add_argument("--testBatchSize", type=int, default=4)
parser.add_argument("--nEpochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--cuda", action="store_true", help="use cuda?")
parser.add_argument("--mps", action="store_true", default=False, help="enables macOS GPU training")
parser.add_argument("--threads", type=int, default=0, help="number of threads for data loader to use")
parser.add_argument("--seed", type=int, default=123)
opt = parser.parse_args()

print(opt)

if opt.cuda and not torch.cuda.is_available():
    raise Exception("No GPU found, please run without --cuda")
if not opt.mps and torch.backends.mps.is_available():
    raise Exception("Found mps device, please run with --mps to enable macOS GPU")

torch.manual_seed(opt.seed)
use_mps = opt.mps and torch.backends.mps.is_available()

if opt.cuda:
    device = torch.device("cuda")
elif use_mps:
    device = torch.device("mps")
else:
    device = torch.device("cpu")

print("===> Loading datasets")
train_set = get_training_set(opt.upscale_factor)
test_set = get_test_set(opt.upscale_factor)
training_data_loader = DataLoader(train_set, num_workers=opt.threads, batch_size=opt.batchSize, shuffle=True)
testing_data_loader = DataLoader(test_set, num_workers=opt.threads, batch_size=opt.testBatchSize, shuffle=False)

print("===> Building model")
model = Net(upscale_factor=opt.upscale_factor).to(device)
criterion = nn.MSELoss()
optimizer = optim.Adam(model.parameters(), lr=opt.lr)
out = tempfile.mkdtemp()
losses = []


def train(epoch):
    epoch_loss = 0
    for iteration, batch in enumerate(training_data_loader, 1):
        input, target = batch[0].to(device), batch[1].to(device)
        optimizer.zero_grad()
        loss = criterion(model(input), target)
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print("===> Epoch {} Complete: Avg. Loss: {:.4f}".format(epoch, epoch_loss / len(training_data_loader)))


def test(model):
    avg_psnr = 0
    with torch.no_grad():
        for batch in testing_data_loader:
            input, target = batch[0].to(device), batch[1].to(device)
            mse = criterion(model(input), target)
            avg_psnr += 10 * log10(1 / mse.item())
    print("===> Avg. PSNR: {:.4f} dB".format(avg_psnr / len(testing_data_loader)))
    return avg_psnr / len(testing_data_loader)


def checkpoint(epoch):
    model_out_path = os.path.join(out, "model_epoch_{}.pth".format(epoch))
    torch.save(model, model_out_path)
    print("Checkpoint saved to {}".format(model_out_path))
    return model_out_path


for epoch in range(1, opt.nEpochs + 1):
    train(epoch)
    psnr = test(model)
    path = checkpoint(epoch)

# super_resolve.py
model = torch.load(path, weights_only=False)
input = test_set[0][0].unsqueeze(0)
if opt.cuda:
    model = model.cuda()
    input = input.cuda()
out = model(input)
out = out.cpu()
image = out[0].detach().numpy()
print(json.dumps({"losses": losses, "psnr": psnr, "gpu": input.is_cuda, "mean": float(image.mean())}))
