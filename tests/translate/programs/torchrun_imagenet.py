"""The example "imagenet" of PyTorch's, as torchrun starts it: samplers, workers, mixed precision, checkpoints."""

import argparse
import json
import os
import sys

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
import torch.nn.parallel
import torch.optim
import torch.utils.data
import torch.utils.data.distributed
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Subset

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("-j", "--workers", default=2, type=int)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int)
parser.add_argument("--lr", default=0.05, type=float)
parser.add_argument("--dist-backend", default="nccl" if torch.cuda.is_available() else "gloo")
args = parser.parse_args()
checkpoint = os.path.join(args.folder, "checkpoint.pth.tar")


class Block(nn.Module):
    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.downsample(x))


def resnet():
    torch.manual_seed(0)
    features = [nn.Conv2d(3, 8, 3, 1, 1), Block(8, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(16, 4))


def images():
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (64,), generator=g)
    pixels = 0.1 * torch.randn(64, 3, 8, 8, generator=g)
    pixels += (labels.view(-1, 1, 1, 1) - 1.5) * torch.linspace(-1, 1, 8)
    return torch.utils.data.TensorDataset(pixels, labels)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(backend=args.dist_backend, init_method="env://")
    use_cuda = torch.cuda.is_available()
    if use_cuda:
        torch.cuda.set_device(local_rank)
        cudnn.benchmark = True
    log = {"gpu": use_cuda, "ranks": dist.get_world_size()}
    log["losses"], log["accuracy"], _ = work(local_rank, use_cuda, 0, args.epochs, amp=False)
    log["resumed"], log["resumed_accuracy"], _ = work(local_rank, use_cuda, args.epochs, args.epochs + 1, amp=False)
    log["mixed"], log["mixed_accuracy"], log["scale"] = work(local_rank, use_cuda, 0, args.epochs, amp=True)
    if dist.get_rank() == 0:
        print(json.dumps(log))
    dist.destroy_process_group()


def work(local_rank, use_cuda, start_epoch, epochs, amp):
    model = resnet()
    if use_cuda:
        model.cuda(local_rank)
        # The batch is of all GPUs of the node; each process has its part of it, and of the workers.
        batch_size = int(args.batch_size / torch.cuda.device_count())
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank], output_device=local_rank)
        device = torch.device("cuda:{}".format(local_rank))
    else:
        batch_size = int(args.batch_size / dist.get_world_size())
        model = torch.nn.parallel.DistributedDataParallel(model)
        device = torch.device("cpu")
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.9)
    scaler = torch.cuda.amp.GradScaler(init_scale=1024.0, enabled=amp and use_cuda)

    if start_epoch:
        loc = "cuda:{}".format(local_rank) if use_cuda else "cpu"
        loaded = torch.load(checkpoint, map_location=loc)
        assert {value.device for value in loaded["state_dict"].values()} == {device}, loc
        model.load_state_dict(loaded["state_dict"])
        optimizer.load_state_dict(loaded["optimizer"])
        scheduler.load_state_dict(loaded["scheduler"])
        scaler.load_state_dict(loaded["scaler"])

    dataset = images()
    train_sampler = torch.utils.data.distributed.DistributedSampler(dataset)
    val_sampler = torch.utils.data.distributed.DistributedSampler(dataset, shuffle=False, drop_last=True)
    options = {"batch_size": batch_size, "num_workers": args.workers, "pin_memory": True}
    train_loader = torch.utils.data.DataLoader(
        dataset, shuffle=(train_sampler is None), sampler=train_sampler, persistent_workers=args.workers > 0, **options
    )
    val_loader = torch.utils.data.DataLoader(
        Subset(dataset, range(len(dataset))), shuffle=False, sampler=val_sampler, **options
    )
    history = []
    for epoch in range(start_epoch, epochs):
        train_sampler.set_epoch(epoch)
        model.train()
        losses = AverageMeter(device)
        for pixels, target in train_loader:
            pixels = pixels.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            with torch.cuda.amp.autocast(enabled=amp and use_cuda):
                output = model(pixels)
                loss = criterion(output, target)
            losses.update(loss.item(), pixels.size(0))
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
        losses.all_reduce()
        history.append(losses.avg)
        print(f"Epoch: [{epoch}] loss {losses.avg:.4f}", file=sys.stderr)
        scheduler.step()
        if dist.get_rank() == 0 and not amp:
            state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"scheduler": scheduler.state_dict(), "scaler": scaler.state_dict()}, checkpoint)
        dist.barrier()
    return history, validate(val_loader, model, device), scaler.get_scale()


def validate(loader, model, device):
    top1 = AverageMeter(device)
    model.eval()
    with torch.no_grad():
        for pixels, target in loader:
            pixels = pixels.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            correct = model(pixels).topk(1, 1, True, True)[1].t().eq(target.view(1, -1).expand(1, -1))
            top1.update(correct.reshape(-1).float().mean().item(), pixels.size(0))
    top1.all_reduce()
    return top1.avg


class AverageMeter:
    def __init__(self, device):
        self.device, self.sum, self.count = device, 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float32, device=self.device)
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        self.sum, self.count = total.tolist()
        self.avg = self.sum / self.count


if __name__ == "__main__":
    main()
