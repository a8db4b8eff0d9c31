"""Pooling, interpolation and padding: linear maps that treat each spatial dimension by itself, and maxima over windows.

An *axis* says which positions ``i`` of the input the output position ``o`` takes its values from, with which weights,
and, for the adjoint, which outputs an input may contribute to. ``axis_<mode>.wgsl`` declares, over ``struct Axis``:

* ``taps(axis, o)``, ``tap(axis, o, t)``, ``weight(axis, o, t)``: how many, which, how much
* ``norm(axis, o)``: the divisor of the sum (of the dimensions' product)
* ``candidates(axis, i)``, ``candidate(axis, i, t)``: outputs that input i may be part of
* ``share(axis, o, i)``: the weight of input i in output o, 0 if it has none
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.kernels.points import SPATIAL, PointKernel, absent, arithmetic, locator, spatial, wgsl_source
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding, ParamType
from torch_webgpu.wgsl.launch import Launch, Lowered

AXIS = """struct Axis {
  size: i32, extent: i32, scale: f32, window: i32, stride: i32, pad: i32, dilation: i32
}"""
MOST_OF_A_CELL = 16
"""Inputs of a window up to which a thread's stores are written out."""
WEIGHTED = frozenset({"interpolate", "antialias"})
# What of an axis is a parameter, besides its sizes; the rest is constant, so that loops over windows unroll.
FIELDS: dict[str, tuple[str, ...]] = {
    "pool": ("pad",),
    "adaptive": (),
    "fractional": ("window",),
    "nearest": ("scale",),
    "interpolate": ("scale",),
    "antialias": ("scale",),
    "replicate": ("pad",),
    "reflect": ("pad",),
}


@dataclass(frozen=True)
class Axis:
    """One dimension: ``scale`` in inputs per output; ``window``, ``stride``, ``pad``, ``dilation`` in inputs.

    A fractional axis has its random number's place among the samples for ``pad``.
    """

    scale: float = 1.0
    window: int = 1
    stride: int = 1
    pad: int = 0
    dilation: int = 1


@dataclass(frozen=True)
class Resampling:
    """A mode (the name of an axis file), its constants, an axis per spatial dimension, and what a mean divides by.

    ``divisor``: None for ``norm``, which is 1 for what is no mean.
    """

    mode: str
    axes: tuple[Axis, ...]
    constants: tuple[tuple[str, int | bool | float], ...] = ()
    mean: bool = False
    divisor: int | None = None

    @property
    def dims(self) -> int:
        return len(self.axes)


def forward(r: Resampling) -> Extern:
    """Arguments: x (N, C, *size) or (C, *size) → y with the same leading dimensions."""
    return Extern(lower_linear, (r, "resample"))


def adjoint(r: Resampling) -> Extern:
    """Arguments: the gradient at y → the gradient at x."""
    return Extern(lower_linear, (r, "resample_adjoint"))


def max_pool(r: Resampling) -> Extern:
    """Arguments: x → y, indices (int64); in mode "fractional" x, samples (N, C, dims) → y, indices."""
    return Extern(lower_max_pool, (r,))


def max_pool_backward(r: Resampling) -> Extern:
    """Arguments: the gradient at y, indices → the gradient at x."""
    return Extern(lower_max_pool_backward, (r,))


class _Builder:
    """A point kernel over the axes of a resampling from ``x`` (the small or large side alike) to ``y``."""

    def __init__(self, name: str, target: Target, r: Resampling, specs: tuple[Spec, ...], x: Spec, y: Spec) -> None:
        self.r = r
        self.batched = len(specs[0].shape) == r.dims + 2
        self.specs = [spatial(spec, r.dims, self.batched) for spec in specs]
        self.kernel = PointKernel(name, target, SPATIAL, absent(r.dims, self.batched))
        self.kernel.add(AXIS, *(self._axis(i, x, y) for i in range(3)))
        self.kernel.add(*(f"const {key} = {_literal(value)};" for key, value in r.constants))
        self.kernel.add(wgsl_source(f"spatial/axis_{r.mode}"))

    def _axis(self, i: int, x: Spec, y: Spec) -> str:
        """``fn axis_d() -> Axis`` and so on; a made-up dimension has one element."""
        d, k = "dhw"[i], i - (3 - self.r.dims)
        if k < 0:
            return f"fn axis_{d}(n: u32, c: u32) -> Axis {{ return Axis(1, 1, 1.0, 1, 1, 0, 1); }}"
        axis, lead = self.r.axes[k], len(x.shape) - self.r.dims
        add = self.kernel.params.add
        fields = [add(f"size_{d}", x.shape[lead + k], "i32"), add(f"extent_{d}", y.shape[lead + k], "i32")]
        for name in ("scale", "window", "stride", "pad", "dilation"):
            value = getattr(axis, name)
            type_: ParamType = "f32" if name == "scale" else "i32"
            fields.append(add(f"{name}_{d}", value, type_) if name in FIELDS[self.r.mode] else str(value))
        if self.r.mode == "fractional":
            fields[2] = f"sample(n, c, {axis.pad}u)"
        return f"fn axis_{d}(n: u32, c: u32) -> Axis {{ return Axis({', '.join(fields)}); }}"

    def samples(self, spec: Spec) -> None:
        """Argument 1 as the random numbers of a fractional pooling."""
        self.kernel.binding(Binding("samples", spec.dtype), 1)
        self.kernel.add(
            locator(self.kernel.params, "samples", 1, ("n", "c", "k"), spec.strides),
            "fn sample(n: u32, c: u32, k: u32) -> f32 { return f32(samples_load(samples_at(n, c, k))); }",
        )


def _literal(value: int | bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def lower_linear(op: Operation, alias: tuple[int, ...], target: Target, resampling: Resampling, body: str) -> Lowered:
    specs = (op.args[0], op.args[1])
    x, y = specs if body == "resample" else specs[::-1]
    b = _Builder(f"{body}_{resampling.mode}", target, resampling, specs, x, y)
    dtype = op.args[1].dtype
    b.kernel.add(_numbers(resampling, dtype))
    b.kernel.add(_averaged(b, dtype))
    b.kernel.input("x", 0, b.specs[0])
    b.kernel.output("y", 1, b.specs[1])
    return Lowered((b.kernel.launch(wgsl_source(f"spatial/{body}")),))


def _numbers(r: Resampling, dtype: str) -> str:
    product = "v * weight" if r.mode in WEIGHTED else "v"
    return f"""{arithmetic(dtype, "add")}
fn load_x(i: u32) -> T {{ return x_load(i); }}
fn weighted(v: T, weight: f32) -> T {{ return {product}; }}"""


def _averaged(b: _Builder, dtype: str) -> str:
    """``fn averaged(sum: T, norm: Norm) -> T``."""
    r = b.r
    divisor = "norm" if r.divisor is None else b.kernel.params.add("divisor", r.divisor, "i32")
    kind = BY_NAME[dtype].kind
    if r.mode == "antialias":
        text = "sum / norm"
    elif not r.mean:
        text = "sum"
    elif kind in "fd":
        text = f"sum / {'f64' if kind == 'd' else 'f32'}({divisor})"
    else:
        text = f"i64_div(sum, i64_from_i32({divisor}))" if kind == "l" else f"sum / {divisor}"
    return f"fn averaged(sum: T, norm: Norm) -> T {{ return {text}; }}"


def lower_max_pool(op: Operation, alias: tuple[int, ...], target: Target, resampling: Resampling) -> Lowered:
    y, indices = op.n_inputs, op.n_inputs + 1
    specs = (op.args[0], op.args[y], op.args[indices])
    b = _Builder(f"max_pool_{resampling.mode}", target, resampling, specs, specs[0], specs[1])
    b.kernel.add(arithmetic(specs[0].dtype, "gt", "isnan"))
    b.kernel.input("x", 0, b.specs[0])
    if resampling.mode == "fractional":
        b.samples(op.args[1])
    b.kernel.output("y", y, b.specs[1])
    b.kernel.output("indices", indices, b.specs[2])
    return Lowered((b.kernel.launch(wgsl_source("spatial/max_pool")),))


def lower_max_pool_backward(op: Operation, alias: tuple[int, ...], target: Target, resampling: Resampling) -> Lowered:
    cell = _cell(op, resampling) if target.software else None
    if cell is not None:
        return Lowered((_by_cells(op, target, resampling, cell),))
    b = _Builder(f"max_pool_backward_{resampling.mode}", target, resampling, op.args, op.args[2], op.args[0])
    # Which outputs may have chosen an input does not depend on the samples.
    b.kernel.add("fn sample(n: u32, c: u32, k: u32) -> f32 { return 0.0; }")
    b.kernel.add(arithmetic(op.args[2].dtype, "add"))
    b.kernel.input("x", 0, b.specs[0])
    b.kernel.input("indices", 1, b.specs[1])
    b.kernel.output("y", 2, b.specs[2])
    return Lowered((b.kernel.launch(wgsl_source("spatial/max_pool_backward")),))


def _cell(op: Operation, r: Resampling) -> tuple[int, ...] | None:
    """The sizes (D, H, W) of the cells of the input that belong to one window each, if it consists of such cells and
    they are small.
    """
    if r.mode != "pool" or BY_NAME[op.args[2].dtype].is_subword:
        return None
    outputs, inputs = (op.args[k].shape[-r.dims :] for k in (0, 2))
    for axis, extent, size in zip(r.axes, outputs, inputs, strict=True):
        if axis.pad or extent * axis.stride != size or (axis.window - 1) * axis.dilation >= axis.stride:
            return None
    cell = (1,) * (3 - r.dims) + tuple(axis.stride for axis in r.axes)
    return cell if prod(cell) <= MOST_OF_A_CELL else None


def _by_cells(op: Operation, target: Target, r: Resampling, cell: tuple[int, ...]) -> Launch:
    """A thread for each output. On a CPU loads and comparisons are what a gradient costs, and there are fewer."""
    grad, _, y = op.args
    b = _Builder("max_pool_backward_cells", target, r, op.args, y, grad)
    b.kernel.add(arithmetic(y.dtype))
    b.kernel.input("x", 0, b.specs[0])
    b.kernel.input("indices", 1, b.specs[1])
    b.kernel.binding(Binding("y", y.dtype, "read_write"), 2)
    b.kernel.locate("y", 2, b.specs[2])
    return b.kernel.visit(b.specs[0], render("spatial/max_pool_cells", cell=cell))
