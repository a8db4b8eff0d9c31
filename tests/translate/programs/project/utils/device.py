import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def to_device(batch, device):
    if isinstance(batch, (list, tuple)):
        return [to_device(x, device) for x in batch]
    return batch.to(device, non_blocking=device.type == "cuda")


def describe(device: torch.device) -> str:
    match device.type:
        case "cuda":
            properties = torch.cuda.get_device_properties(device)
            capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
            return f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB, capability {capability}"
        case "mps":
            return "Apple"
        case _:
            return "CPU"
