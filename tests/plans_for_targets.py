"""Functions whose plans are made for targets in one process and run in another: ``python -m tests.plans_for_targets``.

``make FOLDER`` writes the plans, wherever it runs; ``run FOLDER`` binds them to ``webgpu:0`` and compares with the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from torch_webgpu.plan import Plan, bind, trace

TARGET = "browser"


def convnet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10)
    )


def training_step(params: Any, state: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
    """The loss, and the parameters after a step; batch norm's statistics are written in place."""
    params = {name: p.detach().requires_grad_() for name, p in params.items()}
    loss = F.cross_entropy(functional_call(convnet(), {**params, **state}, (x,)), labels)
    gradients = torch.autograd.grad(loss, list(params.values()))
    return loss.detach(), {k: (p - 0.1 * g).detach() for (k, p), g in zip(params.items(), gradients, strict=True)}


def attention(pair: tuple[torch.Tensor, torch.Tensor], mask: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    q, kv = pair
    return {"y": F.scaled_dot_product_attention(q, kv, kv, mask[0]), "lengths": mask[0].sum(-1)}


def lists(weights: list[torch.Tensor], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    torch._foreach_add_(weights, gradients, alpha=-0.5)
    return torch._foreach_sqrt(torch._foreach_abs(weights))


def constants(x: torch.Tensor) -> torch.Tensor:
    return (x * torch.tensor([1.0, 2.0, 3.0], device=x.device)).sort(descending=True).values


def looked_up(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.embedding(i, table).cumsum(0) // 2


def inputs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The functions, and CPU tensors to run them on."""
    model = convnet()
    generator = torch.Generator().manual_seed(1)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)
    step = (dict(model.named_parameters()), dict(model.named_buffers()), randn(4, 1, 8, 8), torch.tensor([1, 0, 9, 3]))
    return {
        "training_step": (training_step, step),
        "attention": (attention, ((randn(1, 2, 5, 8), randn(1, 2, 7, 8)), [mask])),
        "lists": (lists, ([randn(3, 4), randn(5)], [randn(3, 4), randn(5)])),
        "constants": (constants, (randn(4, 3),)),
        "looked_up": (looked_up, (randn(11, 8) * 10, torch.tensor([[1, 10, 3], [0, 0, 7]]))),
    }


def plans() -> dict[str, Plan]:
    """The plans of all of them, from inputs without contents."""
    made = {}
    for name, (fn, args) in inputs().items():
        meta = pytree.tree_map_only(torch.Tensor, meta_of, args)
        made[name] = trace(fn, *meta, target=TARGET)
    return made


def meta_of(t: torch.Tensor) -> torch.Tensor:
    like = torch.empty_like(t, device="meta")
    return nn.Parameter(like) if isinstance(t, nn.Parameter) else like


def run(name: str, plan: Plan) -> None:
    """Compares a plan with its function on the CPU: what it returns, and what it writes into its inputs."""
    fn, args = inputs()[name]
    on_device = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to("webgpu"), args)
    got, want = bind(plan)(*on_device), fn(*args)
    compare = (pytree.tree_leaves((got, on_device)), pytree.tree_leaves((want, args)))
    for actual, expected in zip(*compare, strict=True):
        torch.testing.assert_close(actual.cpu(), expected.detach(), rtol=1e-4, atol=1e-5)


def main(what: str, folder: Path) -> None:
    if what == "make":
        for name, plan in plans().items():
            plan.save(folder / f"{name}.npz")
        print("adapters:", torch.webgpu.device_count())
        return
    for name in inputs():
        run(name, Plan.load(folder / f"{name}.npz"))
        print("ran", name)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
