"""python -m project.train --device cuda --set lr=0.05"""

import argparse
import json
import logging

import torch
from torch.utils.data import DataLoader, TensorDataset

from .config import DEVICE, TrainConfig
from .models import Net
from .utils.device import describe, seed_everything, to_device

logging.basicConfig(level=logging.INFO)
logger = logging.getLogger(__name__)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "cpu", "mps"], default="cuda")
    parser.add_argument("--set", nargs="*", default=[])
    return parser.parse_args()


def main():
    args = parse_args()
    config = TrainConfig(device=args.device, **{k: float(v) for k, v in (s.split("=") for s in args.set)})
    device = torch.device(config.device)
    logger.info("device: %s (%s)", device, describe(device))
    seed_everything(0)
    x = torch.randn(64, 8)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, pin_memory=device.type == "cuda")
    model = Net().to(DEVICE)
    assert model.device.type == config.device and str(model.device) in config.devices + ["cpu"]
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9)
    losses = []
    for epoch in range(config.epochs):
        for batch in loader:
            inputs, labels = to_device(batch, device)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        logger.info("epoch %d: %.4f", epoch, losses[-1])
    print(json.dumps({"losses": losses, "gpu": device.type == "cuda", "amp": config.amp}))


if __name__ == "__main__":
    main()
