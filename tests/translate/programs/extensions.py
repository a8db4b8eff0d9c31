"""Optional CUDA-only packages behind try, as repositories guard them."""

import json

import torch
import torch.nn as nn
import torch.nn.functional as F

try:
    from apex.normalization import FusedLayerNorm as LayerNorm
except ImportError:
    from torch.nn import LayerNorm
try:
    from flash_attn import flash_attn_func

    HAS_FLASH = True
except ImportError:
    flash_attn_func = None
    HAS_FLASH = False
try:
    import bitsandbytes as bnb

    Adam = bnb.optim.Adam8bit
except ImportError:
    Adam = torch.optim.Adam
try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
try:
    import xformers.ops

    XFORMERS = True
except (ImportError, ModuleNotFoundError):
    XFORMERS = False
try:
    import pynvml

    pynvml.nvmlInit()
except Exception:
    pynvml = None

try:
    from torch.utils.cpp_extension import CUDA_HOME, load_inline

    fused = load_inline(
        name="fused_bias", cpp_sources="", cuda_sources="__global__ void k() {}", functions=[], with_cuda=True
    )
except Exception as e:
    print(f"fused kernels are not available ({type(e).__name__}); using the PyTorch implementation")
    fused = None


def attention(q, k, v):
    if HAS_FLASH and q.is_cuda:
        return flash_attn_func(q, k, v, causal=True)
    with torch.backends.cuda.sdp_kernel(enable_flash=True, enable_math=True, enable_mem_efficient=False):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


torch.manual_seed(0)
norm, proj = LayerNorm(8).cuda(), nn.Linear(8, 8).cuda()
optimizer = Adam([*norm.parameters(), *proj.parameters()], lr=1e-2)
x = torch.randn(2, 4, 6, 8).cuda()
losses = []
for _ in range(6):
    h = proj(norm(x))
    loss = (attention(h, h, h) - x.roll(1, -1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps({"losses": losses, "gpu": h.is_cuda, "fused": fused is not None, "triton": triton is not None}))
