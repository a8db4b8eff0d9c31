"""Everything is in a configuration file: python yaml_config.py [config.yaml|config.json]"""

import json
import os
import sys
import tempfile

import torch
import yaml

DEFAULT = """
experiment: regression
trainer:
  device: cuda:0
  n_gpu: 1
  epochs: 10
  precision: fp16
  cuda: true
model: {width: 16}
data: {pin_memory: true, pin_memory_device: cuda}
"""

if len(sys.argv) < 2:
    path = os.path.join(tempfile.mkdtemp(), "config.yaml")
    with open(path, "w") as f:
        f.write(DEFAULT)
else:
    path = sys.argv[1]
with open(path) as f:
    config = json.load(f) if path.endswith(".json") else yaml.safe_load(f)


class BaseTrainer:
    def __init__(self, config):
        self.config = config
        self.device, device_ids = self._prepare_device(config["trainer"]["n_gpu"])
        torch.manual_seed(0)
        width = config["model"]["width"]
        self.model = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.GELU(), torch.nn.Linear(width, 1))
        self.model = self.model.to(self.device)
        if len(device_ids) > 1:
            self.model = torch.nn.DataParallel(self.model, device_ids=device_ids)
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=1e-2)

    def _prepare_device(self, n_gpu_use):
        n_gpu = torch.cuda.device_count()
        if n_gpu_use > 0 and n_gpu == 0:
            print("Warning: There's no GPU available on this machine, training will be performed on CPU.")
            n_gpu_use = 0
        if n_gpu_use > n_gpu:
            n_gpu_use = n_gpu
        device = torch.device(self.config["trainer"]["device"] if n_gpu_use > 0 else "cpu")
        return device, list(range(n_gpu_use))

    def train(self):
        g = torch.Generator(device=self.device)
        g.manual_seed(0)
        x = torch.linspace(-1, 1, 48).view(16, 3)
        dataset = torch.utils.data.TensorDataset(x, x.prod(dim=1, keepdim=True))
        loader = torch.utils.data.DataLoader(dataset, batch_size=8, **self.config["data"])
        losses = []
        for epoch in range(self.config["trainer"]["epochs"]):
            for x, y in loader:
                x, y = x.to(self.device), y.to(self.device)
                loss = torch.nn.functional.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.item())
        return losses


device_name = config["trainer"]["device"]
if device_name.startswith("cuda") and not torch.cuda.is_available():
    raise RuntimeError("config asks for cuda, which is not available")
use_cuda = "cuda" in device_name
trainer = BaseTrainer(config)
losses = trainer.train()
x = torch.ones(2, 3, device=device_name)
assert x.device == trainer.device == torch.device(config["trainer"]["device"])
half = trainer.model.half() if config["trainer"]["precision"] == "fp16" and x.is_cuda else trainer.model
print(json.dumps({"losses": losses, "half": half(x.half()).float().mean().item(), "gpu": use_cuda}))
