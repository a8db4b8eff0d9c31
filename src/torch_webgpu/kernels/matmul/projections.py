"""One vector times one or two matrices of one shape, which may be normalised on the way.

``y_j = norm(x) @ w_jᵀ`` with x, gain and offset (K,), each w (N, K) and y (1, N): what a language model does with one
token. ``norm(x)`` is ``x * gain * rsqrt(mean(x²) + eps) + offset``, or the same of ``x - mean(x)``. It takes no
dispatch of its own: each workgroup reads all of x anyway, and adds up its squares on the way or, where it has to know
the mean, before. Of the two products of a gated linear unit, the epilogue sees both. Floating types, which may differ;
sums are float32, and so is the normalised vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.points import Draft, constant, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered, grid_for

from .epilogue import Epilogue
from .matmul import MATVEC_THREADS, ROW_LANES, STORED
from .operand import in_groups
from .store_sums import store_sums

COORDINATES = ("m",)
OUTPUTS = MATVEC_THREADS // ROW_LANES
PLACE = "fn place(slice: u32, m: u32, n: u32) -> Place { return Place(m); }"


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


@cache
def extern(dtype: str, matrices: int, norm: Norm | None, biases: int) -> Extern:
    """Arguments: x, what the norm has of gain and offset, the matrices, then as many biases (N,) → a result (1, N) of
    ``dtype`` for each matrix. Either all matrices have biases or none has.
    """
    first = 1 + len(norm.names if norm else ()) + matrices
    results = [ops.acc(j, "f32") for j in range(matrices)]
    results = [r + ops.to_dtype(ops.load(first + j, dtype), "f32") if biases else r for j, r in enumerate(results)]
    epilogue = tuple([ops.to_dtype(r, dtype) for r in results])
    return Extern(lower_projections, (matrices, norm), operands=first, epilogue=epilogue)


def lower_projections(
    op: Operation, alias: tuple[int, ...], target: Target, matrices: int, norm: Norm | None
) -> Lowered:
    names = ["x", *(norm.names if norm else ()), *(f"w{j}" for j in range(matrices))]
    specs = op.args[: len(names)]
    n, k = specs[-1].shape
    run = 4 if all(in_groups(spec, len(spec.shape) - 1) for spec in specs) else 1
    kernel = Draft(COORDINATES)
    with_squares = norm is not None and not norm.centred
    kernel.add(f"alias Sums = {vector(matrices + with_squares)};", f"alias T = {vector(matrices)};")
    kernel.add(constant("RUN", run), constant("OUTPUTS", OUTPUTS), constant("LANES", ROW_LANES))
    for arg, name in enumerate(names):
        kernel.input(name, arg, rows(specs[arg]))
    kernel.add(*terms(names, run, norm))
    body = [wgsl_source("matmul/projections")]
    finished = "s"
    if norm is not None:
        kernel.param("eps", norm.eps, "f32")
    if norm is not None and norm.centred:
        body.insert(0, wgsl_source("matmul/projections_centred"))
    else:
        kernel.add("fn prepare(lid: u32) {}")
    if with_squares:
        products = ", ".join(f"s[{j}]" for j in range(matrices))
        finished = f"T({products}) * inverseSqrt(s[{matrices}] / f32(P.k) + P.eps)"
    kernel.add(f"fn finished(s: Sums) -> T {{ return {finished}; }}")
    e = Epilogue(op, alias, COORDINATES, last_dimension, sums=matrices)
    store_sums(kernel, e, "f", len(op.args), (PLACE, STORED))
    groups = -(-n // OUTPUTS)
    for name, value in (("m", n), ("k", k), ("groups", groups)):
        kernel.param(name, value)
    launch = kernel.build("projections", body, MATVEC_THREADS, grid_for(groups * MATVEC_THREADS))
    return Lowered((launch,))


def vector(size: int) -> str:
    return "f32" if size == 1 else f"vec{size}<f32>"


def rows(spec: Spec) -> Spec:
    """A matrix by its rows; a vector is its only one."""
    if len(spec.shape) == 1:
        return spec._replace(shape=(1,), strides=(0,))
    return spec._replace(shape=spec.shape[:1], strides=spec.strides[:1])


def last_dimension(spec: Spec) -> Spec:
    """A layout over (1, N) as one over (N,)."""
    return spec._replace(shape=spec.shape[-1:], strides=spec.strides[-1:])


def terms(names: list[str], run: int, norm: Norm | None) -> list[str]:
    """``starts``, where what a row needs begins, ``terms``, what a lane adds to its sums from there, and what these are
    written with: runs of four numbers or of one.
    """
    members = ", ".join(f"{name}: u32" for name in names)
    begin = ", ".join(f"{name}_at(m){' / 4u' if run == 4 else ''}" for name in names)
    load, type_, product = ("load4", "vec4<f32>", "dot(a, b)") if run == 4 else ("load", "f32", "a * b")
    value = "(x - mean) * factor" if norm and norm.centred else "x"
    if norm and norm.gain:
        value += " * gain_run(row.gain + at)"
    if norm and norm.offset:
        value += " + offset_run(row.offset + at)"
    products = [f"product({name}_run(row.{name} + at), v)" for name in names if name.startswith("w")]
    products += ["product(x, x)"] if norm and not norm.centred else []
    return [
        f"alias Run = {type_};",
        "const ONE = Run(1.0);",
        f"fn product(a: Run, b: Run) -> f32 {{ return {product}; }}",
        *(f"fn {name}_run(i: u32) -> Run {{ return {name}_{load}(i); }}" for name in names),
        f"struct Starts {{ {members} }}",
        f"fn starts(m: u32) -> Starts {{ return Starts({begin}); }}",
        "fn terms(row: Starts, at: u32) -> Sums {",
        "  let x = x_run(row.x + at);",
        f"  let v = {value};",
        f"  return Sums({', '.join(products)});",
        "}",
    ]
