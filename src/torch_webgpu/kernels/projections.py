"""One vector times one or two matrices of one shape, which may be normalised by its root mean square on the way.

``y_j = (x * gain * rsqrt(mean(x²) + eps)) @ w_jᵀ`` with x and gain (K,), each w (N, K) and y (1, N): what a language
model does with one token. The norm takes no dispatch of its own, since each workgroup reads all of x anyway and adds up
its squares; of the two products of a gated linear unit, the epilogue sees both. Floating types, which may differ; sums
are float32, and so is the normalised vector.
"""

from __future__ import annotations

from functools import cache

from torch_webgpu.ir.graph import Extern, Operation, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.wgsl.launch import Lowered, grid_for
from torch_webgpu.wgsl.link import HostCaps

from .epilogue import Epilogue
from .matmul import MATVEC_THREADS, ROW_LANES
from .operand import in_groups
from .points import Draft, constant, source
from .store import store_sums

COORDINATES = ("m",)
OUTPUTS = MATVEC_THREADS // ROW_LANES
PLACE = "fn place(slice: u32, m: u32, n: u32) -> Place { return Place(m); }"
STORED = "fn is_stored(slice: u32, n: u32) -> bool { return true; }"


@cache
def extern(dtype: str, matrices: int, eps: float | None, biases: int) -> Extern:
    """Arguments: x, with ``eps`` gain, the matrices, then as many biases (N,) → a result (1, N) of ``dtype`` for each
    matrix. Either all matrices have biases or none has.
    """
    first = 1 + (eps is not None) + matrices
    results = [ops.acc(j, "f32") for j in range(matrices)]
    results = [r + ops.to_dtype(ops.load(first + j, dtype), "f32") if biases else r for j, r in enumerate(results)]
    epilogue = tuple([ops.to_dtype(r, dtype) for r in results])
    return Extern(lower_projections, (matrices, eps), operands=first, epilogue=epilogue)


def lower_projections(
    op: Operation, alias: tuple[int, ...], caps: HostCaps, matrices: int, eps: float | None
) -> Lowered:
    normed = eps is not None
    x, gain = op.args[0], op.args[1] if normed else None
    weights = op.args[1 + normed : 1 + normed + matrices]
    n, k = weights[0].shape
    fours = all(in_groups(spec, len(spec.shape) - 1) for spec in (x, *weights, *((gain,) if gain else ())))
    kernel = Draft(COORDINATES)
    sums = matrices + normed
    kernel.add(f"alias Sums = {vector(sums)};", f"alias T = {vector(matrices)};", constant("RUN", 4 if fours else 1))
    kernel.add(constant("OUTPUTS", OUTPUTS), constant("LANES", ROW_LANES))
    names = ["x", *(["gain"] if normed else []), *(f"w{j}" for j in range(matrices))]
    for arg, name in enumerate(names):
        kernel.input(name, arg, rows(op.args[arg]))
    kernel.add(*terms(names, fours, normed))
    finished = "s"
    if eps is not None:
        kernel.param("eps", eps, "f32")
        products = ", ".join(f"s[{j}]" for j in range(matrices))
        finished = f"T({products}) * inverseSqrt(s[{matrices}] / f32(P.k) + P.eps)"
    kernel.add(f"fn finished(s: Sums) -> T {{ return {finished}; }}")
    e = Epilogue(op, alias, COORDINATES, last_dimension, sums=matrices)
    store_sums(kernel, e, "f", len(op.args), (PLACE, STORED))
    groups = -(-n // OUTPUTS)
    for name, value in (("m", n), ("k", k), ("groups", groups)):
        kernel.param(name, value)
    launch = kernel.build("projections", [source("projections")], MATVEC_THREADS, grid_for(groups * MATVEC_THREADS))
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


def terms(names: list[str], fours: bool, normed: bool) -> list[str]:
    """``starts``, where what a row needs begins, and ``terms``, what a lane adds to its sums from there."""
    load, dot = ("load4", "dot({}, {})") if fours else ("load", "{} * {}")
    members = ", ".join(f"{name}: u32" for name in names)
    begin = ", ".join(f"{name}_at(m){' / 4u' if fours else ''}" for name in names)
    first = ["fn terms(row: Starts, at: u32) -> Sums {", f"  let x = x_{load}(row.x + at);"]
    first.append(f"  let v = x * gain_{load}(row.gain + at);" if normed else "  let v = x;")
    found = [dot.format(f"{name}_{load}(row.{name} + at)", "v") for name in names if name.startswith("w")]
    found += [dot.format("x", "x")] if normed else []
    head = [f"struct Starts {{ {members} }}", f"fn starts(m: u32) -> Starts {{ return Starts({begin}); }}"]
    return [*head, *first, f"  return Sums({', '.join(found)});", "}"]
