"""Attention over tiles of scores on subgroup matrices: the kernels of :mod:`.flash` for float16 and bfloat16.

The forward rescales what it has summed up only when a score exceeds the last reference by more than ``SLACK``: sums are
fragments, which go through workgroup memory for it, and after the first blocks that is rare.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import e, log2

from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.matmul.matrix_tile import config_for
from torch_webgpu.kernels.matmul.operand import in_groups
from torch_webgpu.kernels.matmul.tile import UNITS
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

SLACK = 6.0
"""In powers of two. Weights are up to 64 then, which leaves float16 room for what dropout multiplies them by."""

LARGE, MEDIUM, SMALL = FragmentTile(128, 32, 4), FragmentTile(64, 32, 4), FragmentTile(32, 32, 2)
LONG = FragmentTile(64, 64, 4)
"""For few workgroups, each of which is alone."""

TILES = {"forward": (LARGE, MEDIUM, LONG, SMALL), "query": (MEDIUM, SMALL), "key": (MEDIUM, SMALL)}
"""Of each kernel, the best first."""

WIDEST = {LARGE: 64, LONG: 64}
"""The widest lines that a subgroup has registers for (LARGE), or that were measured (LONG)."""

UNIT_BYTES = 50_000
"""Workgroup memory of a compute unit, as an H200's driver divides it."""

STEP_NS = {LARGE: (880, 510), MEDIUM: (650, 350), LONG: (250, 1430), SMALL: (650, 250)}
"""What a block of scores takes a compute unit of an H200: the first, and the second for each workgroup that it runs."""


def operand(draft: Draft, name: str, arg: int, spec: Spec) -> None:
    """Declares ``<name>_run``: run ``i`` of a line, zeros where there is none; and the same with where the head's first
    line starts, in runs, which ``<name>_start`` says.
    """
    draft.binding(Binding(name, spec.dtype), arg)
    draft.add(
        place(draft.params, name, arg, spec, LINE),
        f"fn {name}_start(b: u32, head: u32) -> u32 {{ return {name}_at(b, head, 0u, 0u) / {RUN}u; }}",
        f"fn {name}_run_from(start: u32, line: u32, i: u32) -> vec4<u32> {{",
        f"  if (line >= {'P.keys' if name in 'kv' else 'P.queries'} || i >= {spec.shape[3] // RUN}u) "
        "{ return vec4<u32>(); }",
        f"  return {name}_load_words4(start + line * ({name}_delta(0u, 0u, 1u, 0u) / {RUN}u) + i);",
        "}",
        f"fn {name}_run(b: u32, head: u32, line: u32, i: u32) -> vec4<u32> {{",
        f"  return {name}_run_from({name}_start(b, head), line, i);",
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
    width, value_width = p.q.shape[3], p.v.shape[3]
    widest = max(width, value_width)
    bytes_of = {}
    for tile in TILES[kernel]:
        if tile.suits(config) and widest <= WIDEST.get(tile, widest):
            size_bytes = MEMORY[kernel](width, value_width, tile, config).size_bytes
            if size_bytes <= target.workgroup_bytes:
                bytes_of[tile] = size_bytes
    if not bytes_of:
        return None
    if kernel != "forward":
        return next(iter(bytes_of)), config
    return min(bytes_of, key=lambda tile: forward_ns(p, tile, bytes_of[tile])), config


def forward_ns(p: Flash, tile: FragmentTile, size_bytes: int) -> float:
    """About what the forward takes on an H200 in blocks of ``tile``, which need so much workgroup memory."""
    batches, heads, queries, _ = p.q.shape
    keys, blocks = p.k.shape[2], -(-queries // tile.rows)
    seen = min(keys, (queries + tile.rows) // 2) if p.attention.causal else keys
    most = max(1, UNIT_BYTES // size_bytes)
    rounds, rest = divmod(-(-batches * heads * blocks // UNITS), most)
    first, each = STEP_NS.get(tile, STEP_NS[SMALL])
    turns = [most] * rounds + [rest] * (rest > 0)
    return -(-seen // tile.columns) * sum(first + each * groups for groups in turns)


class ForwardMemory(FragmentMemory):
    slack = SLACK
    extra_bytes = 4

    def __init__(self, width: int, value_width: int, tile: FragmentTile, config: MatrixConfig) -> None:
        super().__init__(tile, config)
        self.k = self.v = self.lines_of(tile.columns, max(width, value_width))


class QueryMemory(FragmentMemory):
    def __init__(self, width: int, value_width: int, tile: FragmentTile, config: MatrixConfig) -> None:
        super().__init__(tile, config)
        self.k, self.v = self.lines_of(tile.columns, width), self.lines_of(tile.columns, value_width)


class KeyMemory(FragmentMemory):
    def __init__(self, width: int, value_width: int, tile: FragmentTile, config: MatrixConfig) -> None:
        super().__init__(tile, config)
        self.q, self.g = self.lines_of(tile.columns, width), self.lines_of(tile.columns, value_width)
        self.extra_bytes = 8 * tile.columns + 4 * self.threads


MEMORY = {"forward": ForwardMemory, "query": QueryMemory, "key": KeyMemory}


def lower(kernel: str, p: Flash, tile: FragmentTile, config: MatrixConfig, target: Target) -> Lowered:
    """One of :data:`.flash_problem.KERNELS`, on fragments."""
    draft, grid = KERNELS[kernel].draft(p, tile.rows, tile.columns, target, operand, has_one_row=True)
    scaling = Scaling(p)
    scaling.read(draft, p.args)
    draft.param("log2_scale", p.attention.scale * log2(e), "f32")
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
