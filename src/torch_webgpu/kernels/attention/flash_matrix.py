"""Attention over tiles of scores on subgroup matrices: the kernels of :mod:`.flash` for float16 and bfloat16.

The forward rescales what it has summed up only when a score exceeds the last reference by more than ``SLACK``: sums are
fragments, which go through workgroup memory for it, and after the first blocks that is rare.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.matmul.matrix_tile import config_for
from torch_webgpu.kernels.matmul.operand import in_groups
from torch_webgpu.kernels.points import Draft
from torch_webgpu.kernels.template import render
from torch_webgpu.target import MatrixConfig, Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered

from .attention import place
from .flash_fragments import RUN, FragmentMemory, FragmentTile
from .flash_problem import KERNELS, LINE, Flash
from .flash_scaled import Scaling, lowered

IS_USED = True
"""Whether matrices are used where there are some."""

SLACK = 4.0
"""Weights are up to exp(4) then, which leaves float16 room for what dropout multiplies them by."""

TILES = {
    "forward": (FragmentTile(64, 64, 2, 2), FragmentTile(64, 32, 2, 2), FragmentTile(32, 32, 2, 2)),
    "query": (FragmentTile(64, 32, 2, 2), FragmentTile(32, 32, 2, 2)),
    "key": (FragmentTile(64, 32, 2, 2), FragmentTile(32, 32, 2, 2)),
}
"""Of each kernel, the best first."""


def operand(draft: Draft, name: str, arg: int, spec: Spec) -> None:
    """Declares ``<name>_run``: run ``i`` of a line, zeros where there is none."""
    draft.binding(Binding(name, spec.dtype), arg)
    draft.add(
        place(draft.params, name, arg, spec, LINE),
        f"fn {name}_run(b: u32, head: u32, line: u32, i: u32) -> vec4<u32> {{",
        f"  if (line >= {'P.keys' if name in 'kv' else 'P.queries'} || i >= {spec.shape[3] // RUN}u) "
        "{ return vec4<u32>(); }",
        f"  return {name}_load_words4({name}_at(b, head, line, {RUN}u * i) / {RUN}u);",
        "}",
    )


def multiplies(specs: Iterable[Spec], target: Target) -> bool:
    """Whether the adapter multiplies such operands: float16, or bfloat16 (:mod:`.flash_scaled`), in whole runs."""
    dense = all(s.dtype in ("f16", "bf16") and in_groups(s, 3, RUN) for s in specs)
    return IS_USED and dense and config_for(target, "f16") is not None


def choice(kernel: str, p: Flash, target: Target) -> tuple[FragmentTile, MatrixConfig] | None:
    """The best tile of a kernel, and its fragments; None where the adapter cannot."""
    config = config_for(target, "f16")
    if config is None or not multiplies((spec for _, _, spec in p.multiplied), target):
        return None
    for tile in TILES[kernel]:
        if tile.suits(config):
            memory = MEMORY[kernel](p.q.shape[3], p.v.shape[3], tile, config)
            if memory.size_bytes <= target.workgroup_bytes:
                return tile, config
    return None


class ForwardMemory(FragmentMemory):
    slack = SLACK

    def __init__(self, width: int, value_width: int, tile: FragmentTile, config: MatrixConfig) -> None:
        super().__init__(tile, config)
        self.q = self.lines_of(tile.rows, width)
        self.kv = self.lines_of(tile.columns, max(width, value_width))
        self.s = self.scores()
        self.p = self.weights()
        self.extra_bytes = 4 * (self.threads + tile.rows + 1)


class QueryMemory(FragmentMemory):
    def __init__(self, width: int, value_width: int, tile: FragmentTile, config: MatrixConfig) -> None:
        super().__init__(tile, config)
        self.q, self.g = self.lines_of(tile.rows, width), self.lines_of(tile.rows, value_width)
        self.k, self.v = self.lines_of(tile.columns, width), self.lines_of(tile.columns, value_width)
        self.s = self.scores()
        self.p = self.weights()


class KeyMemory(FragmentMemory):
    def __init__(self, width: int, value_width: int, tile: FragmentTile, config: MatrixConfig) -> None:
        super().__init__(tile, config)
        self.k, self.v = self.lines_of(tile.rows, width), self.lines_of(tile.rows, value_width)
        self.q, self.g = self.lines_of(tile.columns, width), self.lines_of(tile.columns, value_width)
        self.s = self.scores()
        self.p = self.weights()
        self.extra_bytes = 8 * tile.columns + 4 * self.threads


MEMORY = {"forward": ForwardMemory, "query": QueryMemory, "key": KeyMemory}


def lower(kernel: str, p: Flash, tile: FragmentTile, config: MatrixConfig, target: Target) -> Lowered:
    """One of :data:`.flash_problem.KERNELS`, on fragments."""
    draft, grid = KERNELS[kernel].draft(p, tile.rows, target, operand)
    scaling = Scaling(p.multiplied)
    scaling.read(draft, p.args)
    memory = MEMORY[kernel](p.q.shape[3], p.v.shape[3], tile, config)
    text = render(
        f"attention/flash_{KERNELS[kernel].template}_matrix",
        p=p,
        memory=memory,
        scaling=scaling,
        has_subgroup_sizes=target.subgroup_sizes,
    )
    launch = draft.build(f"{KERNELS[kernel].name}_matrix", [text], memory.threads, grid)
    return lowered(launch, p, p.multiplied, operand, p.args)
