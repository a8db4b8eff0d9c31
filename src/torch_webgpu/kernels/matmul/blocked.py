"""Blocked products: on which hardware one is computed, by which tile, in how many parts. Matrix products and
convolutions take the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from torch_webgpu.kernels.points import Draft
from torch_webgpu.target import MatrixConfig
from torch_webgpu.wgsl.launch import Launch, Lowered

from . import halves, matrix_tile, scaled
from .direct_tile import direct_text
from .epilogue import FINISH, NOT_TOGETHER
from .halves import Halved
from .halving import halving_launch
from .matrix_tile import MatrixKernel, MatrixTile, config_for, tiles_for
from .operand import FOUR, Sides, words_of
from .problem import Problem
from .register_tile import block_text, in_runs, most_together
from .scaled import Scaled
from .store_sums import partials_together, store_sums
from .tile import Blocking, block_params, blocking, software_blocking

BAND = 8
"""Blocks of a band (see ``block.wgsl.jinja``) on subgroup matrices. GPT-2's scores (4096×50264×768, float16, an H100)
take 1.47 ms instead of 1.95, other products what they took. In float32 there is nothing to gain. Convolutions keep
their order and a loop for the epilogue: with what matrices have ResNet-50's step took 24 ms instead of 20.
"""


def lower_product(p: Problem) -> Lowered | None:
    """The product on subgroup matrices if the adapter has any that multiply its operands, or halves of these;
    otherwise on registers. None for integers that no matrices multiply.
    """
    for lower in (on_halves, on_matrices, on_registers):
        lowered = lower(p)
        if lowered is not None:
            return lowered
    return None


def on_registers(p: Problem) -> Lowered | None:
    """The product by tiles whose sums each thread keeps by itself."""
    if p.kind != "f":
        return None
    assert not any(operand.scale for operand in p.operands), "a scale is for types of fewer exponents than float32 has"
    if p.target.software:
        return on_lanes(p)
    k = p.sizes[3]
    chosen = blocking(*p.tile_sizes, p.tiles)
    tile = chosen.tile
    a, b = sides = in_runs(tile, *p.sides(FOUR.length))
    widths = widths_of(p, chosen.splits, most_together(tile, b))
    kernel = p.kernel()
    add_sums(kernel, p, chosen.splits, widths)
    grid = block_params(kernel.params, chosen, *p.sizes)
    heavy = p.epilogue.heavy and chosen.splits == 1
    main = block_text(tile, a, b, k % tile.k != 0, max(widths.values(), default=1), heavy, reads_ahead(p, widths))
    body = [*p.loads(sides, FOUR), *finish_text(widths), main]
    return with_sum(p, chosen.splits, kernel.build(f"{p.name}_{tile.m}x{tile.n}", body, tile.threads, grid))


def on_lanes(p: Problem) -> Lowered:
    """The product by the lanes of a CPU, which have no need of workgroup memory. Of an operand that lies along the sum
    lanes that share it load one number each, a position.
    """
    a, b = p.sides(FOUR.length)
    chosen = software_blocking(*p.sizes, gathers=not b.runs)
    tile, shared = chosen.tile, p.target.subgroups
    sides = replace(a, runs=a.runs and not a.k_major) if shared else a, b
    widths = widths_of(p, chosen.splits, 4)
    kernel = p.kernel()
    add_sums(kernel, p, chosen.splits, widths)
    grid = block_params(kernel.params, chosen, *p.sizes)
    together = max(widths.values(), default=1)
    main = direct_text(tile, *sides, p.sizes[3] % tile.k != 0, together, p.epilogue.heavy, shared)
    body = [*p.loads(sides, FOUR), *finish_text(widths), main]
    return Lowered((kernel.build(f"{p.name}_{tile.m}x{tile.n}", body, tile.threads, grid),))


def on_matrices(p: Problem) -> Lowered | None:
    """The product by subgroups, of operands that are scaled if they have to be; None where an adapter cannot."""
    config = matrices_for(p)
    if config is None:
        return None
    sides = p.sides(words_of(p.dtype).length)
    tiles = tiles_for(p.target, config, sides)
    if not tiles:
        return None
    if not all(side.runs for side in sides):
        tiles = [tile for tile in tiles if tile in p.gathering] or tiles
    chosen = matrix_tile.blocking(*p.tile_sizes, tiles, config)
    if config.operand == p.dtype:
        return by_subgroups(p, sides, config, chosen)
    assert p.tensors is not None, "what is scaled has tensors: see matrices_for"
    (scales,) = temporaries(p, chosen.splits, 1)
    first, second = p.operands
    operands = Scaled(first, scales), Scaled(second, scales)
    lowered = by_subgroups(replace(p, operands=operands), sides, config, chosen)
    return lowered and scaled.after(scaled.largest_launch(p.tensors, scales), lowered)


def matrices_for(p: Problem) -> MatrixConfig | None:
    """The subgroup matrices that multiply the operands; None where the adapter has none that do."""
    if p.a.dtype != p.b.dtype:
        return None
    operand = scaled.operand_for(p.dtype, prod(p.tile_sizes))
    return None if operand != p.dtype and p.tensors is None else config_for(p.target, operand)


def on_halves(p: Problem) -> Lowered | None:
    """The product by subgroups, as :attr:`Problem.halves` of each number; None where an adapter cannot."""
    tensors = p.tensors
    choice = halves.choose(p.target, tensors) if p.halves and tensors is not None else None
    if choice is None or tensors is None:
        return None
    config, tiles = choice
    slices, m, n, k = p.sizes
    joint_slices, joint_m, joint_n, _ = p.tile_sizes
    chosen = matrix_tile.blocking(joint_slices, joint_m, joint_n, p.halves * k, tiles, config)
    part, whole = chosen.tile.part(config), chosen.tile.step(config) // p.halves
    padded = -(-k // whole) * whole
    sizes = (slices, m, n, p.halves * padded)
    exponents, *copies = temporaries(p, chosen.splits, 3)
    first, second = tensors
    a = Halved.of(first, padded, p.halves, part, copies[0], exponents, 0)
    b = Halved.of(second, padded, p.halves, part, copies[1], exponents, a.lines)
    halving = halving_launch(tensors, (a, b))
    if not (a.fits(p.target) and b.fits(p.target)) or len(halving.bindings) > p.target.max_buffers:
        return None
    halved = replace(p, operands=(a, b), sizes=sizes)
    lowered = by_subgroups(halved, halved.sides(halves.RUN), config, chosen, p.halves)
    if lowered is None:
        return None
    temporary_bytes = (*lowered.temporaries, 4 * (a.lines + b.lines), a.size_bytes, b.size_bytes)
    return Lowered((halving, *lowered.launches), temporary_bytes)


def by_subgroups(
    p: Problem, sides: Sides, config: MatrixConfig, chosen: Blocking[MatrixTile], count: int = 1
) -> Lowered | None:
    """The launches of the product on these subgroup matrices, of numbers that lie as ``count`` halves, or as they are;
    None if they take more buffers than the adapter binds.
    """
    kernel, tile = p.kernel(), chosen.tile
    kernel.add(*p.loads(sides, words_of(p.dtype)))
    scales = p.a.scale, p.b.scale
    for scale in dict.fromkeys(scale for scale in scales if scale is not None):
        scaled.read_scales(kernel, scale.argument, scale.by_line)
    widths = widths_of(p, chosen.splits, 4)
    add_sums(kernel, p, chosen.splits, widths)
    if len(kernel.bindings) > p.target.max_buffers:
        return None
    grid = block_params(kernel.params, chosen, *p.sizes)
    main = MatrixKernel(
        tile,
        config,
        sides,
        scales,
        tail=p.sizes[3] % tile.step(config) != 0,
        together=max(widths.values(), default=1),
        ahead=reads_ahead(p, widths),
        heavy=not p.is_of_matrices or (p.epilogue.heavy and chosen.splits == 1),
        band=BAND if p.is_of_matrices else 1,
        halves=count,
        sized=p.target.subgroup_sizes,
    )
    name, body = f"{p.name}_matrices_{tile.m}x{tile.n}", [*finish_text(widths), main.text()]
    return with_sum(p, chosen.splits, kernel.build(name, body, tile.threads(config), grid))


def temporaries(p: Problem, splits: int, count: int) -> range:
    """The arguments that are so many temporaries, after that of partial sums, if there are such."""
    first = p.partials + (splits > 1)
    return range(first, first + count)


def widths_of(p: Problem, splits: int, most: int) -> dict[int, int]:
    """By argument, how many neighbours of an output, or of the partial sums, are stored at once."""
    return p.widths(most) if splits == 1 else {p.partials: partials_together(p.sizes[2], most)}


def reads_ahead(p: Problem, widths: Mapping[int, int]) -> bool:
    """Whether what the epilogue reads is worth asking for ahead."""
    return p.reads_ahead and bool(p.epilogue.given(widths))


def add_sums(kernel: Draft, p: Problem, splits: int = 1, widths: Mapping[int, int] = NOT_TOGETHER) -> None:
    """Gives ``kernel`` the functions that store its sums, or the parts of these if it leaves several."""
    store_sums(kernel, p.epilogue if splits == 1 else None, p.kind, p.partials, p.places(), widths)


def finish_text(widths: Mapping[int, int]) -> list[str]:
    """What a blocked product calls, if sums are stored one by one; otherwise :func:`.store_sums.store_sums` has it."""
    return [] if max(widths.values(), default=1) > 1 else [FINISH]


def with_sum(p: Problem, splits: int, first: Launch) -> Lowered:
    """``first``, followed by the addition of partial sums if it leaves any."""
    if splits == 1:
        return Lowered((first,))
    last, size = p.split_sum(splits)
    return Lowered((first, last), (size,))
