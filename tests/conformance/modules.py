"""PyTorch's module database (ModuleInfo): its modules and inputs, and steps over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

from .target import CPU, Replica, synchronize

INFOS = {info.name: info for info in module_db}


@dataclass(frozen=True)
class Step:
    """One forward and backward pass of a module that is built anew each time."""

    info: Any
    module_input: Any
    training: bool
    dtype: torch.dtype
    wrap: Callable[[torch.nn.Module], Callable[..., Any]] = lambda module: module
    """What is called in place of the module."""

    def __call__(self, device: torch.device, *, seed: int = 0, widen: bool = False) -> dict[str, Any]:
        """``output``, ``grads`` of the inputs and parameters, and the ``state`` afterwards (running statistics)."""
        module, args, kwargs = self._module(device, widen)
        torch.manual_seed(seed)
        output = self.wrap(module)(*args, **kwargs)
        wanted = [*pytree.tree_leaves((args, kwargs)), *module.parameters()]
        wanted = [leaf for leaf in wanted if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        grads = list(self._grads([leaf for leaf in pytree.tree_leaves(output) if _differentiable(leaf)], wanted))
        if device.type != "cpu":
            synchronize()
        return {"output": output, "grads": grads, "state": dict(module.state_dict())}

    def _module(self, device: torch.device, widen: bool) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        construct, forward = self.module_input.constructor_input, self.module_input.forward_input
        dtype = torch.float64 if widen else self.dtype
        replica = Replica(device, widen=widen)
        args, kwargs = replica.tree((tuple(forward.args), forward.kwargs))
        torch.manual_seed(0)
        module = self.info.module_cls(*deepcopy(construct.args), **deepcopy(construct.kwargs)).train(self.training)
        if self.info.is_lazy:
            module.to(self.dtype)(*Replica(CPU).tree(forward.args))
        return module.to(device).to(dtype), args, kwargs

    def _grads(self, outputs: list[torch.Tensor], wanted: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        if not (outputs and wanted):
            return ()
        generator = torch.Generator().manual_seed(0)
        cotangents = [
            torch.randn(o.shape, dtype=self.dtype, generator=generator).to(o.device, o.dtype) for o in outputs
        ]
        return torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True)


def _differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def steps(name: str, dtype: torch.dtype, count: int) -> Iterator[tuple[str, Step]]:
    """The first ``count`` of PyTorch's inputs for the module, in each mode that makes a difference."""
    info = INFOS[name]
    for training in (True, False) if info.train_and_eval_differ else (True,):
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        usable = (i for i in inputs if i.forward_input is not None)
        for index, module_input in enumerate(islice(usable, count)):
            label = f"{'train' if training else 'eval'} input {index} {module_input.desc}"
            yield label, Step(info, module_input, training, dtype)
