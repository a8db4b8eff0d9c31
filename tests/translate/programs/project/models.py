import torch
from torch import nn

from . import config


class Net(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, 3))
        self.register_buffer("scale", torch.ones(1))

    @property
    def device(self):
        return next(self.parameters()).device

    def forward(self, x):
        if x.device.type != config.DEVICE.type:
            raise ValueError(f"input is on {x.device}, the model on {self.device}")
        with torch.autocast(x.device.type, dtype=config.DTYPES[x.device.type], enabled=False):
            return self.body(x) * self.scale
