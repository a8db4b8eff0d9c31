"""A small decoder trained with activation checkpointing, gradient accumulation and a custom autograd function."""

import json
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.amp import custom_bwd, custom_fwd
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cuda.enable_mem_efficient_sdp(True)

device = torch.device("cuda", torch.cuda.current_device())
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)


class Swish(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(Swish.apply(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, vocab=32, dim=32, depth=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.zeros(1, 16, dim))
        self.blocks = nn.Sequential(*[Block(dim, 4) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight
        self.mode = "none"

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        if self.mode == "each":
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=True)
        elif self.mode == "reentrant":
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=True)
        elif self.mode == "sequential":
            x = checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)
        else:
            x = self.blocks(x)
        return self.head(x)


model = Decoder().to(device)
seen = []
model.blocks[0].proj.weight.register_hook(lambda grad: seen.append(float(grad.abs().max())))
tokens = torch.arange(8 * 17, device=device).view(8, 17).remainder(29)
grads, peaks = {}, {}
for mode in ("none", "each", "reentrant", "sequential"):
    model.mode = mode
    model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    logits = model(tokens[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    grads[mode] = [p.grad.clone() for p in model.parameters()]
    peaks[mode] = torch.cuda.max_memory_allocated(device)
for mode in ("each", "reentrant", "sequential"):
    for a, b in zip(grads["none"], grads[mode]):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)

torch.cuda.memory._record_memory_history(max_entries=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), fused=torch.cuda.is_available())
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=12)
scaler = torch.amp.GradScaler("cuda")
accumulate, losses = 2, []
model.mode = "each"
with torch.autograd.set_detect_anomaly(False):
    for step in range(12):
        total = 0.0
        for micro in tokens.chunk(accumulate):
            with torch.autocast(device_type="cuda", dtype=torch.float16):
                logits = model(micro[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1).float(), micro[:, 1:].flatten()) / accumulate
            scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        losses.append(total.item())
torch.cuda.memory._record_memory_history(enabled=None)
assert len(seen) >= 4
print(json.dumps({"losses": losses, "norm": norm.item(), "gpu": next(model.parameters()).is_cuda}))
