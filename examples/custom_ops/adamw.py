"""AdamW in one dispatch for each tensor: an expression that writes its arguments."""

import torch
from torch import Tensor


@torch.webgpu.op("examples::adamw_", mutates=("p", "m", "v"))
def adamw_(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, *, step: int, lr: float = 1e-3, beta1: float = 0.9,
    beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 1e-2,
) -> None:  # fmt: skip
    mean, square = "mix(g, m, beta1)", "mix(g * g, v, beta2)"
    step_size = "lr / (1.0 - pow(beta1, f32(step)))"
    root = f"sqrt(({square}) / (1.0 - pow(beta2, f32(step))))"
    return f"p * (1.0 - lr * weight_decay) - {step_size} * {mean} / ({root} + eps)", mean, square


def ours(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
    """One step, the tenth, on copies: what is compared must not change."""
    p, m, v = p.clone(), m.clone(), v.clone()
    adamw_(p, g, m, v, step=10)
    return p


def composed(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
    p, m, v = p.clone(), m.clone().lerp_(g, 0.1), v.clone().mul_(0.999).addcmul_(g, g, value=0.001)
    root = v.sqrt().div_((1 - 0.999**10) ** 0.5).add_(1e-8)
    return p.mul_(1 - 1e-3 * 1e-2).addcdiv_(m, root, value=-1e-3 / (1 - 0.9**10))


def inputs(scale: int = 1) -> tuple[Tensor, ...]:
    n = 4096 * scale
    return torch.randn(n), torch.randn(n), torch.randn(n) * 0.1, torch.rand(n)
