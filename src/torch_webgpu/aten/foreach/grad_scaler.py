"""What ``torch.amp.GradScaler`` asks of a device: unscaling gradients, and moving the scale."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.torch_abi import aten, impl


def unscale_(grads: list[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """Multiplies each gradient by ``inv_scale``; ``found_inf`` becomes 1 if any element is infinite or NaN."""
    for grad in grads:
        if grad.numel():
            found_inf.logical_or_(grad.isfinite().all().logical_not())
            if grad.is_complex():
                grad.mul_(inv_scale.to(grad.dtype))
    real = [grad for grad in grads if not grad.is_complex()]
    if real:
        torch._foreach_mul_(real, inv_scale.reshape(()))


def update_scale_(
    scale: torch.Tensor, growth_tracker: torch.Tensor, found_inf: torch.Tensor, growth_factor: float,
    backoff_factor: float, growth_interval: int,
) -> torch.Tensor:  # fmt: skip
    """Backs off after an overflow; grows after ``growth_interval`` steps without one, unless that would overflow."""
    overflow = found_inf != 0
    successes = growth_tracker + 1
    due = successes == growth_interval
    grown = scale * growth_factor
    grown = torch.where(due & grown.isfinite(), grown, scale)
    scale.copy_(torch.where(overflow, scale * backoff_factor, grown))
    growth_tracker.copy_(torch.where(overflow | due, torch.zeros_like(successes), successes))
    return scale


def register() -> None:
    impl(aten._amp_foreach_non_finite_check_and_unscale_.default, unscale_)
    impl(aten._amp_update_scale_.default, update_scale_)
