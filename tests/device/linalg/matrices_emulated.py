"""Subgroup matrices for adapters that have none: kernels of ``matrix_tile.py`` as ordinary WGSL.

An operand's fragment is where it lies in the workgroup array ``tiles``, and is read when it is multiplied; in pipelined
kernels, which store there while it waits for that, it is what the thread multiplies of it; a fragment that is kept is
copied to the end of that array. The sums of a fragment are shared by the threads of a subgroup, which is so many
consecutive threads, as vectors of four neighbours. Threads of a subgroup exchange values through workgroup memory.
An adapter that pretends to have matrices makes every decision that one with tensor cores does, and its sources differ
from that one's only here. What cannot show: whether the threads of a real subgroup are where they should be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch
from tests.device.choices import forget

from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.matmul import halves, matrix_tile
from torch_webgpu.kernels.matmul.matrix_tile import MatrixTile
from torch_webgpu.kernels.matmul.tile import Blocking
from torch_webgpu.plan import Requirements
from torch_webgpu.runtime import pipelines
from torch_webgpu.target import MatrixConfig, Target
from torch_webgpu.wgsl.kernel import Kernel
from torch_webgpu.wgsl.link import LinkedKernel, link

SWIFTSHADER_BYTES = 64 << 30
"""The memory of a machine on which SwiftShader can compile every emulated kernel."""
NVIDIA = MatrixConfig("f16", "f32", 16, 16, 16, 32)
SMALL = MatrixTile(32, 64, 2, 2)
"""A block with few fragments in it: the software adapter compiles a kernel in a second, larger ones in many."""
PIPELINED = replace(SMALL, slots=3)
"""It takes several times as long to compile, as its fragments are copied."""
DEEP = replace(SMALL, depth=2)

EMULATED_FEATURES = frozenset({"float16", "subgroups", "subgroup_sizes"})
"""What fragments are declared with, and :func:`without_matrices` takes away."""

# What 16 bytes of an operand hold, and number ``e`` of them.
_NUMBERS = {
    "f16": (8, "unpack2x16float(tiles[e / 8u][e % 8u / 2u])[e % 2u]"),
    "i8": (16, "extractBits(bitcast<i32>(tiles[e / 16u][e % 16u / 4u]), e % 4u * 8u, 8u)"),
    "u8": (16, "extractBits(tiles[e / 16u][e % 16u / 4u], e % 4u * 8u, 8u)"),
}

_FUNCTIONS = """
struct Fragment {{ at: u32, stride: u32, by_row: bool }}

fn number_of(f: Fragment, row: u32, column: u32) -> {result} {{
  let e = {run}u * f.at + select(column, row, f.by_row) * {run}u * f.stride + select(row, column, f.by_row);
  return {number};
}}

var<private> lane: u32;
var<private> depth: u32;

fn multiplied(a: Fragment, b: Fragment, before: Sums) -> Sums {{
  var sums = before;
  for (var i = 0u; i < {each}u; i += 1u) {{
    let quad = i * {lanes}u + lane;
    if (quad >= {quads}u) {{ continue; }}
    let row = quad / {width}u;
    let column = quad % {width}u * 4u;
    for (var k = 0u; k < depth; k += 1u) {{
      let four = vec4<{result}>(number_of(b, k, column), number_of(b, k, column + 1u), number_of(b, k, column + 2u),
        number_of(b, k, column + 3u));
      sums[i] += number_of(a, row, k) * four;
    }}
  }}
  return sums;
}}

fn loaded(at: u32, stride: u32) -> Sums {{
  var sums: Sums;
  for (var i = 0u; i < {each}u; i += 1u) {{
    let quad = i * {lanes}u + lane;
    let place = at + quad / {width}u * stride + quad % {width}u;
    if (quad < {quads}u) {{ sums[i] = bitcast<vec4<{result}>>(tiles[place]); }}
  }}
  return sums;
}}

fn stored(at: u32, given: Sums, stride: u32) {{
  var sums = given;
  for (var i = 0u; i < {each}u; i += 1u) {{
    let quad = i * {lanes}u + lane;
    if (quad < {quads}u) {{ tiles[at + quad / {width}u * stride + quad % {width}u] = bitcast<vec4<u32>>(sums[i]); }}
  }}
}}
"""

# Fragments that are read where they are loaded.
_COPIES = """
struct Left {{ numbers: array<{result}, {each} * {k}> }}
struct Right {{ numbers: array<vec4<{result}>, {each} * {k}> }}

fn left(f: Fragment) -> Left {{
  var copy: Left;
  for (var i = 0u; i < {each}u; i += 1u) {{
    for (var k = 0u; k < depth; k += 1u) {{
      copy.numbers[i * {k}u + k] = number_of(f, min((i * {lanes}u + lane) / {width}u, {rows}u - 1u), k);
    }}
  }}
  return copy;
}}

fn right(f: Fragment) -> Right {{
  var copy: Right;
  for (var i = 0u; i < {each}u; i += 1u) {{
    let column = (i * {lanes}u + lane) % {width}u * 4u;
    for (var k = 0u; k < depth; k += 1u) {{
      copy.numbers[i * {k}u + k] = vec4<{result}>(number_of(f, k, column), number_of(f, k, column + 1u),
        number_of(f, k, column + 2u), number_of(f, k, column + 3u));
    }}
  }}
  return copy;
}}

fn multiplied_copies(a: Left, b: Right, before: Sums) -> Sums {{
  var sums = before;
  for (var i = 0u; i < {each}u; i += 1u) {{
    for (var k = 0u; k < depth; k += 1u) {{ sums[i] += a.numbers[i * {k}u + k] * b.numbers[i * {k}u + k]; }}
  }}
  return sums;
}}
"""

_EXCHANGE = """
var<private> thread: u32;
var<workgroup> exchanged: array<f32, {threads}>;

fn subgroupShuffleXor(value: f32, distance: u32) -> f32 {{
  workgroupBarrier();
  exchanged[thread] = value;
  workgroupBarrier();
  return exchanged[thread ^ distance];
}}
"""

_KEPT = """
fn kept(f: Fragment, number: u32) -> Fragment {{
  let at = {end}u + (number * {parts}u + thread / {lanes}u) * {runs}u;
  for (var i = lane; i < {runs}u; i += {lanes}u) {{
    tiles[at + i] = tiles[f.at + i / {each}u * f.stride + i % {each}u];
  }}
  return Fragment(at, {each}u, true);
}}
"""

_OPERAND = re.compile(r"alias (Left|Right) = subgroup_matrix_\w+<(\w+), \d+, \d+>;\n")
_LEFT = re.compile(r"subgroup_matrix_left<(\w+), (\d+), (\d+)>")
_TILES = re.compile(r"(var<workgroup> tiles: array<vec4<u32>, )(\d+)>")
_KEEP = re.compile(r"let ([b-z]\w*?\d+_\d+) = subgroupMatrixLoad<Left, row_major>\(&tiles, (.*)\);")
_SIZE = re.compile(r"@workgroup_size\((\d+)\)")
_SUMS = re.compile(r"subgroup_matrix_result<(\w+), (\d+), (\d+)>")


def numbers(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Small whole numbers, whose sums of products are exact."""
    return torch.randint(-2, 3, shape).to(dtype)


def laid_out(order: str, *shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """A matrix that is contiguous along its rows, along its columns, or along neither."""
    rows, columns = shape
    if order == "strided":
        return numbers(rows, 2 * columns, dtype=dtype)[:, ::2]
    return numbers(*shape, dtype=dtype) if order == "rows" else numbers(columns, rows, dtype=dtype).t()


def without_matrices(source: str, lanes: int) -> str:
    """``source`` for any adapter; one that has no matrices in it as it is. ``lanes``: the subgroup's size."""
    left, sums = _LEFT.search(source), _SUMS.search(source)
    if left is None or sums is None:
        return source
    operand, k, m = left[1], int(left[2]), int(left[3])
    result, n = sums[1], int(sums[2])
    assert int(sums[3]) == m
    run, number = _NUMBERS[operand]
    quads = m * n // 4
    each = -(-quads // lanes)
    sizes = {"k": k, "rows": m, "lanes": lanes, "quads": quads, "each": each, "width": n // 4}
    functions = _FUNCTIONS.format(result=result, run=run, number=number, **sizes)
    source = re.sub(r"(enable|diagnostic)\b.*subgroup.*;\n", "", source)
    copied, threads = "slot2" in source, int(_SIZE.search(source)[1])
    if kept := [match[1] for match in _KEEP.finditer(source)]:
        runs, parts, end = m * k // run, threads // lanes, int(_TILES.search(source)[2])
        source = _KEEP.sub(lambda m: f"let {m[1]} = kept(Fragment({m[2]}, true), {kept.index(m[1])}u);", source)
        source = _TILES.sub(rf"\g<1>{end + len(kept) * parts * runs}>", source)
        functions += _KEPT.format(end=end, parts=parts, runs=runs, lanes=lanes, each=k // run)
    source = _OPERAND.sub("" if copied else r"alias \1 = Fragment;\n", source)
    source = _SUMS.sub(f"array<vec4<{result}>, {each}>", source)
    source = source.replace("subgroupMatrixLoad<Sums, row_major>(&tiles, ", "loaded(")
    source = re.sub(
        r"subgroupMatrixLoad<(Left|Right), (row|col)_major>\(&tiles, (.*)\);",
        lambda m: f"{m[1].lower() if copied else ''}(Fragment({m[3]}, {'true' if m[2] == 'row' else 'false'}));",
        source,
    )
    if copied:
        functions += _COPIES.format(result=result, **sizes)
    functions += _EXCHANGE.format(threads=threads)
    source = source.replace("subgroupMatrixMultiplyAccumulate(", "multiplied_copies(" if copied else "multiplied(")
    source = source.replace("subgroupMatrixStore<row_major>(&tiles, ", "stored(")
    source, found = re.subn(
        r",\s*@builtin\(subgroup_id\) part_id: u32(, @builtin\(subgroup_invocation_id\) lane_id: u32)?\) \{\n",
        f") {{\n  let part_id = lid / {lanes}u;\n  let lane_id = lid % {lanes}u;\n  thread = lid;\n  lane = lane_id;\n"
        # What a compiler does not see through: loops that it unrolls take it ten times as long.
        f"  depth = {k}u + lid / 65536u;\n",
        source,
    )
    assert found == 1
    assert not re.search(r"subgroup_|subgroupMatrix", source), source
    return source + functions


def pretend(
    monkeypatch: pytest.MonkeyPatch, config: MatrixConfig, tile: MatrixTile = SMALL
) -> list[Blocking[MatrixTile]]:
    """Until the test ends the current device multiplies matrices of ``config``, in blocks of ``tile``.

    Returns the blocks that were chosen since, by tile and parts of the sums.
    """
    device = engine().device(0)
    if "SwiftShader" in device.name and psutil.virtual_memory().total < SWIFTSHADER_BYTES:
        pytest.skip("SwiftShader's compiler takes up to 20 GiB for an emulated kernel: needs 64 GiB of memory")
    target = replace(device.target, matrices=(config,), workgroup_bytes=49152, subgroup_sizes=False)
    monkeypatch.setattr(matrix_tile, "TILES", (tile,))
    monkeypatch.setitem(matrix_tile.RATES, tile, matrix_tile.RATES.get(tile, (500, 1.0, 800, 1)))
    chosen: list[Blocking[MatrixTile]] = []
    blocking = matrix_tile.blocking

    def noted(*args: Any) -> Blocking[MatrixTile]:
        chosen.append(blocking(*args))
        return chosen[-1]

    def emulated(kernel: Kernel, target: Target, windows: tuple[int, ...] = ()) -> LinkedKernel:
        linked = link(kernel, replace(target, matrices=(), subgroup_sizes=False), windows)
        source = without_matrices(linked.source, config.subgroup_size)
        return replace(linked, source=source if target.float16 else source.replace("enable f16;\n", ""))

    missing = Requirements.missing

    def missing_of_the_emulation(requires: Requirements, target: Target) -> list[str]:
        emulated = EMULATED_FEATURES if requires.matrices else {"subgroups", "subgroup_sizes"}
        return missing(replace(requires, features=tuple([f for f in requires.features if f not in emulated])), target)

    monkeypatch.setattr(Requirements, "missing", missing_of_the_emulation)
    monkeypatch.setattr(device, "target", target)
    monkeypatch.setattr(matrix_tile, "blocking", noted)
    monkeypatch.setattr(pipelines, "link", emulated)
    forget(monkeypatch)
    return chosen


BITS = 1 + 2.0**-12 + 2.0**-23
"""Of a scaled number of these bits two halves keep all but the last one, one half neither of the two."""


def pretend_halves(monkeypatch: pytest.MonkeyPatch, tile: MatrixTile = SMALL) -> Iterator[list[Blocking[MatrixTile]]]:
    """A fixture: :func:`pretend` that the device has NVIDIA's matrices, and that they are worth it for small products
    of float32, too; after the test, the setting that allows them is PyTorch's default.
    """
    monkeypatch.setattr(halves, "LAUNCH_NS", 0)
    monkeypatch.setattr(halves, "MOVED_NS", 0)
    yield pretend(monkeypatch, NVIDIA, tile)
    torch.set_float32_matmul_precision("highest")


def used(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], device: torch.device) -> str:
    """The setting of ``torch.set_float32_matmul_precision`` under which ``product(a, b)`` was computed."""
    result = product(torch.full((64, 64), BITS).to(device), torch.eye(64).to(device)).cpu()
    value = result.flatten()[0].item()
    assert (result == value).all()
    return {BITS: "highest", 1 + 2.0**-12: "high", 1.0: "medium"}[value]
