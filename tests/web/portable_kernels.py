"""The kernels that PyTorch's own samples of operators are compiled to for browsers: WGSL texts, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from tests.golden.programs import PROGRAMS
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from torch_webgpu.export.targets import target_named
from torch_webgpu.plan import trace
from torch_webgpu.wgsl.link import link

DTYPES = (torch.float32, torch.int64, torch.bool, torch.float16)
MAX_CANDIDATES = 12


@dataclass
class Kernels:
    """``sources``: WGSL text → label. ``traced`` and ``refused``: samples, by whether a plan could be made of them."""

    target: Any
    sources: dict[str, str] = field(default_factory=dict)
    traced: int = 0
    refused: int = 0

    def add(self, op: Any, sample: Any) -> None:
        """The kernels of one sample."""
        leaves, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]

        def run(*inputs: torch.Tensor) -> Any:
            given = iter(inputs)
            filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            args, rest, kwargs = pytree.tree_unflatten(filled, tree)
            result = op(args, *rest, **kwargs)
            return [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]

        try:
            plan = trace(run, *tensors, target=self.target)
        except Exception:  # an operator without a plan: what reads values, what the CPU computes
            self.refused += 1
            return
        self.traced += 1
        for kernel in plan.kernels:
            self.sources.setdefault(link(kernel, self.target).source, f"{op.name}: {kernel.name}")


def golden_kernels(names: Iterable[str] = PROGRAMS) -> Kernels:
    """Of programs of ``tests/golden``, which have the kernels that samples of operators are too small for."""
    kernels = Kernels(target_named("portable"))
    for name in names:
        program = PROGRAMS[name]
        meta = [torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in program.inputs]
        for kernel in trace(program.run, *meta, target=kernels.target).kernels:
            kernels.sources.setdefault(link(kernel, kernels.target).source, f"{name}: {kernel.name}")
        kernels.traced += 1
    return kernels


def portable_kernels(
    every: int = 1, samples: int = 3, first: int = 0, dtypes: Iterable[torch.dtype] = DTYPES, target: str = "portable"
) -> Kernels:
    """Of ``samples`` samples of every so-manieth operator from ``first``, for each dtype that it takes on the CPU."""
    kernels = Kernels(target_named(target))
    for op in op_db[first::every]:
        for dtype in dtypes:
            if dtype not in op.dtypes:
                continue
            try:
                found = list(islice(op.sample_inputs("cpu", dtype), MAX_CANDIDATES))
            except Exception:  # some generators want LAPACK, or more memory
                continue
            for sample in found[:: max(1, -(-len(found) // samples))]:
                kernels.add(op, sample)
    return kernels
