"""Denoising diffusion with everything in one file, as in many small repositories."""

import json
import math
from collections import namedtuple
from functools import partial
from random import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import autocast
from torch.optim import Adam

ModelPrediction = namedtuple("ModelPrediction", ["pred_noise", "pred_x_start"])


def exists(x):
    return x is not None


def default(val, d):
    if exists(val):
        return val
    return d() if callable(d) else d


def cycle(dl):
    while True:
        for data in dl:
            yield data


def extract(a, t, x_shape):
    b, *_ = t.shape
    out = a.gather(-1, t)
    return out.reshape(b, *((1,) * (len(x_shape) - 1)))


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim, theta=10000):
        super().__init__()
        self.dim = dim
        self.theta = theta

    def forward(self, x):
        device = x.device
        half_dim = self.dim // 2
        emb = math.log(self.theta) / (half_dim - 1)
        emb = torch.exp(torch.arange(half_dim, device=device) * -emb)
        emb = x[:, None] * emb[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim=-1)


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim**0.5
        self.g = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x):
        return F.normalize(x, dim=1) * self.g * self.scale


class Denoiser(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.time = nn.Sequential(SinusoidalPosEmb(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.init_conv = nn.Conv2d(1, dim, 3, padding=1)
        self.norm = RMSNorm(dim)
        self.mid = nn.Conv2d(dim, dim, 3, padding=1)
        self.final = nn.Conv2d(dim, 1, 1)

    def forward(self, x, t):
        h = self.init_conv(x) + self.time(t)[:, :, None, None]
        h = h + F.silu(self.mid(self.norm(h)))
        return self.final(h)


def cosine_beta_schedule(timesteps, s=0.008):
    x = torch.linspace(0, timesteps, timesteps + 1, dtype=torch.float64)
    alphas_cumprod = torch.cos(((x / timesteps) + s) / (1 + s) * math.pi * 0.5) ** 2
    alphas_cumprod = alphas_cumprod / alphas_cumprod[0]
    return torch.clip(1 - (alphas_cumprod[1:] / alphas_cumprod[:-1]), 0, 0.999)


class GaussianDiffusion(nn.Module):
    def __init__(self, model, *, image_size, timesteps=8):
        super().__init__()
        self.model, self.image_size, self.num_timesteps = model, image_size, timesteps
        betas = cosine_beta_schedule(timesteps)
        alphas = 1.0 - betas
        alphas_cumprod = torch.cumprod(alphas, dim=0)
        alphas_cumprod_prev = F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)
        # helper function to register buffer from float64 to float32
        register_buffer = lambda name, val: self.register_buffer(name, val.to(torch.float32))
        register_buffer("betas", betas)
        register_buffer("sqrt_alphas_cumprod", torch.sqrt(alphas_cumprod))
        register_buffer("sqrt_one_minus_alphas_cumprod", torch.sqrt(1.0 - alphas_cumprod))
        register_buffer("coef1", betas * torch.sqrt(alphas_cumprod_prev) / (1.0 - alphas_cumprod))
        register_buffer("coef2", (1.0 - alphas_cumprod_prev) * torch.sqrt(alphas) / (1.0 - alphas_cumprod))

    @property
    def device(self):
        return self.betas.device

    def predict(self, x, t):
        noise = self.model(x, t)
        x_start = (x - extract(self.sqrt_one_minus_alphas_cumprod, t, x.shape) * noise) / extract(
            self.sqrt_alphas_cumprod, t, x.shape
        ).clamp(min=0.05)
        return ModelPrediction(noise, x_start.clamp_(-1.0, 1.0))

    @torch.inference_mode()
    def sample(self, batch_size=2):
        shape = (batch_size, 1, self.image_size, self.image_size)
        img = torch.randn(shape, device=self.device)
        for time in reversed(range(0, self.num_timesteps)):
            t = torch.full((batch_size,), time, device=self.device, dtype=torch.long)
            x_start = self.predict(img, t).pred_x_start
            img = extract(self.coef1, t, img.shape) * x_start + extract(self.coef2, t, img.shape) * img
        return img

    @autocast("cuda", enabled=False)
    def q_sample(self, x_start, t, noise=None):
        noise = default(noise, lambda: torch.randn_like(x_start))
        return (
            extract(self.sqrt_alphas_cumprod, t, x_start.shape) * x_start
            + extract(self.sqrt_one_minus_alphas_cumprod, t, x_start.shape) * noise
        )

    def forward(self, img):
        b, _, h, w, device = *img.shape, img.device
        assert h == self.image_size and w == self.image_size
        t = torch.randint(0, self.num_timesteps, (b,), device=device).long()
        noise = torch.randn_like(img)
        return F.mse_loss(self.model(self.q_sample(img, t, noise), t), noise)


class EMA(nn.Module):
    def __init__(self, model, beta=0.9):
        super().__init__()
        self.online = [model]
        self.ema = torch.optim.swa_utils.AveragedModel(
            model, device="cuda", avg_fn=lambda avg, new, n: beta * avg + (1 - beta) * new
        )

    def update(self):
        self.ema.update_parameters(self.online[0])


torch.manual_seed(0)
diffusion = GaussianDiffusion(Denoiser(8), image_size=8).cuda()
waves = torch.sin(torch.linspace(0, 6.28, 8)).expand(32, 1, 8, 8) * torch.rand(32, 1, 8, 1)
dl = cycle(torch.utils.data.DataLoader(waves, batch_size=16, shuffle=True, pin_memory=True))
opt = Adam(diffusion.parameters(), lr=2e-2, betas=(0.9, 0.99))
scaler = torch.amp.GradScaler("cuda")
ema = EMA(diffusion)
losses = []
for step in range(24):
    data = next(dl).to(diffusion.device)
    with torch.autocast("cuda", enabled=random() < 0):
        loss = diffusion(data)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(diffusion.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    ema.update()
    losses.append(loss.item())
sampled = ema.ema.module.sample(batch_size=2)
assert sampled.isfinite().all()
print(json.dumps({"losses": losses, "gpu": sampled.is_cuda, "largest": sampled.abs().max().item()}))
