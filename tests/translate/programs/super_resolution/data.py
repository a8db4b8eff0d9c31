import torch
import torch.nn.functional as F
import torch.utils.data as data


class Waves(data.Dataset):
    def __init__(self, n, size, upscale_factor):
        super(Waves, self).__init__()
        g = torch.Generator().manual_seed(n)
        x = torch.linspace(0, 6.28, size)
        self.targets = torch.sin(x.view(1, -1, 1) * torch.rand(n, 1, 1, generator=g) * 3 + x).unsqueeze(1)
        self.inputs = F.avg_pool2d(self.targets, upscale_factor)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]

    def __len__(self):
        return len(self.inputs)


def get_training_set(upscale_factor):
    return Waves(32, 24, upscale_factor)


def get_test_set(upscale_factor):
    return Waves(8, 24, upscale_factor)
