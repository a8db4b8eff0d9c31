"""One vector times one or two matrices of one shape, which may be described, and the vector normalised on the way.

``y_j = norm(x) @ w_jᵀ`` with x, gain and offset (K,), each w (N, K) and y (1, N): what a language model does with one
token. A matrix is a tensor or, where its numbers are packed, components (:mod:`.component_loads`), which are read once.
``norm(x)`` is ``x * gain * rsqrt(mean(x²) + eps) + offset``, or the same of ``x - mean(x)``. It takes no dispatch of
its own: each workgroup reads all of x anyway, and adds up its squares on the way or, where it has to know the mean,
before. Of the two products of a gated linear unit, the epilogue sees both. Floating types, which may differ; sums are
float32, and so is the normalised vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.points import Draft, constant, wgsl_source
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered, grid_for

from .component_loads import LANES, Component, Elements, Loads, bind_components, load_of
from .epilogue import Epilogue
from .matmul import MATVEC_THREADS, STORED
from .operand import RUN_BYTES, in_groups
from .store_sums import store_sums

COORDINATES = ("n",)
PLACE = "fn place(slice: u32, m: u32, n: u32) -> Place { return Place(n); }"


@dataclass(frozen=True)
class Norm:
    """``centred``: of x less its mean, as layer norm has it. ``gain``, ``offset``: whether there are such."""

    eps: float
    centred: bool
    gain: bool
    offset: bool

    @property
    def names(self) -> list[str]:
        return ["gain"] * self.gain + ["offset"] * self.offset


class Share(NamedTuple):
    """How the sums of a workgroup are shared: ``lanes`` threads have one together, and each has ``rows`` of them; up to
    so many loads are ``underway`` at once, and workgroup memory has a ``chunk`` of the vector, of so many numbers.
    """

    lanes: int
    rows: int
    underway: int
    chunk: int


# Numbers of 4 bits gain by more rows: a lane has more to load of the vector than of a row. WebGPU promises 16 KiB of
# workgroup memory: 8 for the vector, 5 for sums, 3 for mean and deviation. H100, eight layers of 4096 and 11008, ms:
#   16 bits 1.34; with 64 lanes 1.34
#   8 bits  0.90; with two rows 0.97
#   4 bits  0.82; with one load underway 0.84, and 64 lanes 0.90, and four rows 1.20
SHARE, SHARE_4_BITS = Share(32, 1, 4, 2048), Share(32, 2, 2, 2048)
# A few lanes are what software adapters run side by side, and barriers cost them. lavapipe, two cores, two layers of
# 1024 and 2816, ms: 16 bits 28, as above 55; 8 bits 13, 44; 4 bits 12, 37.
SOFTWARE_SHARE, SOFTWARE_SHARE_4_BITS = Share(4, 4, 1, 1024), Share(8, 4, 1, 1024)
RUNS = (32, 16, 8, 4, 2, 1)
"""Neighbours along the sum that a lane loads at once: 16 bytes of a row, or less."""


@cache
def numbers(dtype: str) -> Elements:
    """A matrix that is a tensor."""
    return Elements(load_of(0, dtype), (Component("numbers", dtype, 1),), 1)


@cache
def extern(dtype: str, elements: Elements, matrices: int, norm: Norm | None, biases: int) -> Extern:
    """Arguments: x, what the norm has of gain and offset, the components of each matrix, then as many biases (N,) → a
    result (1, N) of ``dtype`` for each matrix. Either all matrices have biases or none has.
    """
    first = 1 + len(norm.names if norm else ()) + matrices * len(elements.arguments)
    results = [ops.acc(j, "f32") for j in range(matrices)]
    results = [r + ops.to_dtype(ops.load(first + j, dtype), "f32") if biases else r for j, r in enumerate(results)]
    epilogue = tuple([ops.to_dtype(r, dtype) for r in results])
    return Extern(lower_projections, (elements, matrices, norm), operands=first, epilogue=epilogue)


def lower_projections(
    op: Operation, alias: tuple[int, ...], target: Target, elements: Elements, matrices: int, norm: Norm | None
) -> Lowered:
    names = ["x", *(norm.names if norm else ())]
    k, n, each = op.args[0].shape[-1], op.outputs[0].shape[-1], len(elements.arguments)
    firsts = range(len(names), len(names) + matrices * each, each)
    sides = [op.args[first : first + each] for first in firsts]
    run = next(r for r in RUNS if k % r == 0 and all(Loads(elements, specs, r).is_whole() for specs in sides))
    share = share_of(run, k, target)
    outputs = MATVEC_THREADS // share.lanes
    kernel = Draft(COORDINATES)
    kernel.add(f"alias T = {'f32' if matrices == 1 else f'vec{matrices}<f32>'};")
    kernel.add(constant("RUN", run), constant("OUTPUTS", outputs), constant("LANES", share.lanes))
    kernel.add(constant("CHUNK", share.chunk))
    vector = Vector(names, [op.args[arg] for arg in range(len(names))], run, norm)
    vector.bind(kernel)
    for name, value in (("n", n), ("k", k)):
        kernel.param(name, value)
    for j, (first, specs) in enumerate(zip(firsts, sides, strict=True)):
        bind_components(kernel, elements, specs, k, first, f"w{j}")
    epilogue = Epilogue(op, alias, COORDINATES, last_dimension, sums=matrices)
    store_sums(kernel, epilogue, "f", len(op.args), (PLACE, STORED))
    groups = -(-n // (outputs * share.rows))
    kernel.param("groups", groups)
    texts = [Matrix(Loads(elements, specs, run, f"w{j}"), vector) for j, specs in enumerate(sides)]
    body = [*vector.prelude(), text_of(vector, texts, share, target)]
    launch = kernel.build("projections", body, MATVEC_THREADS, grid_for(groups * MATVEC_THREADS))
    return Lowered((launch,))


def share_of(run: int, k: int, target: Target) -> Share:
    """That of rows of ``k`` numbers, of which a lane loads ``run`` at once."""
    if run > RUN_BYTES:
        share = SOFTWARE_SHARE_4_BITS if target.software else SHARE_4_BITS
    else:
        share = SOFTWARE_SHARE if target.software else SHARE
    loads = -(-min(k, share.chunk) // (run * share.lanes))
    return share._replace(underway=min(share.underway, loads))


def text_of(vector: Vector, matrices: Sequence[Matrix], share: Share, target: Target) -> str:
    subgroup = share.lanes if target.subgroup_size == share.lanes else 0
    squared, rows, count = vector.squared, share.rows, len(matrices)
    products = [", ".join(f"s{j * rows + r} * factor{j}(row{r})" for j in range(count)) for r in range(rows)]
    sums = count * rows + squared
    return render(
        "matmul/projections",
        vector=vector,
        matrices=matrices,
        rows=rows,
        unrolled=share.underway,
        subgroup=subgroup,
        fills=-(-share.chunk // vector.width // MATVEC_THREADS),
        squared=squared,
        sums=sums,
        products=products,
    )


def last_dimension(spec: Spec) -> Spec:
    """A layout over (1, N) as one over (N,)."""
    return spec._replace(shape=spec.shape[-1:], strides=spec.strides[-1:])


class Vector:
    """The text that loads ``run`` numbers of the vector, as pieces of four, where all that it is made of lies in fours,
    or of one. ``specs``: of the arguments ``names``.
    """

    def __init__(self, names: Sequence[str], specs: Sequence[Spec], run: int, norm: Norm | None) -> None:
        self.arguments, self.run, self.norm = names, run, norm
        self.specs = [last_dimension(spec) for spec in specs]
        self.fours = run % 4 == 0 and all(in_groups(spec, 0) for spec in self.specs)
        self.width = 4 if self.fours else 1
        self.pieces = run // self.width
        self.names = [f"v{piece}" for piece in range(self.pieces)]
        self.with_total = False

    @property
    def squared(self) -> bool:
        return self.norm is not None and not self.norm.centred

    def bind(self, kernel: Draft) -> None:
        kernel.add(f"alias Piece = {'vec4<f32>' if self.fours else 'f32'};", "const ONE = Piece(1.0);")
        kernel.add(constant("PIECE", self.width), constant("PIECES", self.pieces))
        kernel.add(f"fn product(a: Piece, b: Piece) -> f32 {{ return {'dot(a, b)' if self.fours else 'a * b'}; }}")
        for arg, (name, spec) in enumerate(zip(self.arguments, self.specs, strict=True)):
            kernel.input(name, arg, spec, COORDINATES)
            load = f"{name}_load4({name}_at(i) / 4u)" if self.fours else f"{name}_load({name}_at(i))"
            kernel.add(f"fn {name}_piece(i: u32) -> Piece {{ return {load}; }}")
        if self.norm is not None:
            kernel.param("eps", self.norm.eps, "f32")

    def prelude(self) -> list[str]:
        if self.norm is not None and self.norm.centred:
            return [wgsl_source("matmul/projections_centred")]
        return ["fn prepare(lid: u32) {}"]

    @property
    def value(self) -> str:
        """The text of a piece as it is multiplied, of ``x`` at ``step``."""
        value = "(x - mean) * factor" if self.norm and self.norm.centred else "x"
        for name, sign in (("gain", "*"), ("offset", "+")):
            if name in self.arguments:
                value += f" {sign} {name}_piece(step)"
        return value

    @property
    def total(self) -> str:
        return " + ".join(f"product({name}, ONE)" for name in self.names) if self.with_total else "0.0"

    def number(self, at: int) -> str:
        return f"x.v{at // 4}.{LANES[at % 4]}" if self.fours else f"x.v{at}"


class Matrix:
    """The texts about one matrix in ``projections.wgsl.jinja``."""

    def __init__(self, loads: Loads, vector: Vector) -> None:
        elements = loads.elements
        # A scale of a whole row is for the finished sum; a zero needs the sum of what it was multiplied with.
        of_rows = elements.of_rows() and elements.zero is None
        affine, scale, zero = loads.affine()
        vector.with_total = bool(zero)
        early = elements.used(elements.number, *(() if of_rows else (elements.scale, elements.zero)))
        members = loads.members(early)
        codes, numbers = loads.numbers()
        products = " + ".join(f"{number} * {vector.number(e)}" for e, number in enumerate(numbers))
        value = f"({products}) * {scale}" if scale and not of_rows else products
        self.members = ", ".join(f"{name}: {type_}" for name, type_ in members)
        self.loads = loads.loads(early)
        self.loaded = ", ".join(name for name, _ in members)
        self.term = [*(f"let {name} = w.{name};" for name, _ in members), *codes, *([] if of_rows else affine)]
        self.value = f"{value} + x.total * {zero}" if zero else value
        self.finished = [*loads.loads(elements.used(elements.scale)), *affine] if of_rows and scale else []
        self.factor = scale if of_rows and scale else "1.0"
