from dataclasses import dataclass, field
from typing import Literal

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_WORKERS = 2 if DEVICE.type == "cuda" else 0
DTYPES = {"cuda": torch.float16, "cpu": torch.float32}


@dataclass
class TrainConfig:
    device: Literal["cuda", "cpu"] = "cuda"
    devices: list = field(default_factory=lambda: ["cuda:0"])
    epochs: int = 6
    lr: float = 0.05
    amp: bool = DEVICE.type == "cuda"

    def __post_init__(self):
        if self.device not in ("cuda", "cpu", "mps"):
            raise ValueError(f"unknown device {self.device!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            self.device = "cpu"
