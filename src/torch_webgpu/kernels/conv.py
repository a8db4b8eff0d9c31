"""Convolutions in one to three dimensions: forward, adjoint and weight gradient, as blocked products or one by one.

With x (N, C, *size), y (N, O, *size) and w (O, C / groups, *kernel), all of any strides:

* ``forward``: y = conv(x, w) + bias
* ``adjoint``: x = convᵀ(y, w) + bias, which is a transposed convolution, and the gradient of the other's input
* ``weight``: the gradient of w from x and the gradient at y
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Extern, Operation, Spec
from torch_webgpu.wgsl.builder import MAX_GROUPS, ParamList, Source
from torch_webgpu.wgsl.kernel import Binding, Kernel
from torch_webgpu.wgsl.launch import Launch, Lowered
from torch_webgpu.wgsl.link import HostCaps

from .points import SPATIAL, PointKernel, absent, arithmetic, constant, locator, source, spatial
from .store import STORE_PARTIAL, add_partials, finish, partials_binding, store_sum, writes_words
from .tile import LARGE, LIGHT, SMALL, block_params, block_text, plan

Triple = tuple[int, int, int]

# Rows and columns take more registers here than in a matrix product: what HUGE and MEDIUM leave does not hold them.
TILES = (LARGE, LIGHT, SMALL)
FEW_ROWS = 4
"""Up to so many channels in a group a blocked product is mostly padding, and slower unless sums are longer than …"""
SHORT_SUM = 128
WEIGHT_THREADS = 128
# Which argument is the output.
OUTPUT = {"forward": "y", "adjoint": "x", "weight": "w"}
READ_THROUGH = {"forward": ("conv_x",), "adjoint": ("conv_phases", "conv_y"), "weight": ("conv_x",)}
PLAIN = "fn result(slice: u32, m: u32, n: u32, v: T) -> T { return v; }"
BIASED = """fn result(slice: u32, m: u32, n: u32, v: T) -> T {
  return t_add(v, bias_load(P.bias_offset + (slice / (PD * PH * PW) * P.m + m) * P.bias_stride));
}"""


@dataclass(frozen=True)
class Geometry:
    """A convolution's static arguments over ``len(stride)`` dimensions."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def extern(mode: str, geometry: Geometry) -> Extern:
    """Arguments: (x, w, bias?) → y for "forward", (y, w, bias?) → x for "adjoint", (y, x) → w for "weight"."""
    return Extern(partial(lower_conv, mode=mode, geometry=geometry))


@dataclass(frozen=True)
class Conv:
    """One operation: its tensors as five-dimensional layouts, their places, and the sizes of the product it is."""

    mode: str
    geometry: Geometry
    specs: dict[str, Spec]
    args: dict[str, int]
    bias: Spec | None

    @property
    def dims(self) -> int:
        return len(self.geometry.stride)

    @property
    def out(self) -> str:
        return OUTPUT[self.mode]

    @property
    def kind(self) -> str:
        return BY_NAME[self.specs[self.out].dtype].kind

    @property
    def taps(self) -> int:
        return prod(self.specs["w"].shape[2:])

    @property
    def rows(self) -> int:
        """Channels of the output in a group."""
        channels = self.specs["w"].shape[0] // self.geometry.groups
        return self.specs["w"].shape[1] if self.mode == "adjoint" else channels

    @property
    def depth(self) -> int:
        """Channels in a group of what is summed over or, for the weight gradient, of x."""
        channels = self.specs["w"].shape[0] // self.geometry.groups
        return channels if self.mode == "adjoint" else self.specs["w"].shape[1]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Slices (groups, and phases of each), rows, columns and inner dimension of the product."""
        x, y, w = (self.specs[name].shape for name in "xyw")
        groups, positions = self.geometry.groups, y[0] * prod(y[2:])
        if self.mode == "forward":
            return groups, self.rows, positions, self.depth * self.taps
        if self.mode == "weight":
            return groups, self.rows, self.depth * self.taps, positions
        phases = (1,) * (3 - self.dims) + self.phases
        columns, taps = ([-(-size // p) for size, p in zip(s[2:], phases, strict=True)] for s in (x, w))
        return groups * prod(phases), self.rows, x[0] * prod(columns), self.depth * prod(taps)

    def channels_last(self, name: str) -> bool:
        spec = self.specs[name]
        return spec.strides[1] < spec.strides[4] and spec.shape[1] > 1

    @property
    def taps_outside(self) -> bool:
        return self.channels_last("y" if self.mode == "adjoint" else "x")

    @property
    def phases(self) -> tuple[int, ...]:
        """Into how many classes an adjoint's positions fall along each dimension: those that meet the same taps."""
        g = self.geometry
        return tuple(s if self.mode == "adjoint" and d == 1 else 1 for s, d in zip(g.stride, g.dilation, strict=True))

    def prelude(self, params: ParamList, phases: tuple[int, ...] | None = None) -> list[str]:
        """Constants of the kernel's geometry, and functions for its sizes and paddings."""
        g = self.geometry
        phases = (1,) * self.dims if phases is None else phases
        rest = tuple(s // p for s, p in zip(g.stride, phases, strict=True))
        missing = 3 - self.dims
        lines = [arithmetic(self.specs[self.out].dtype, "add", "mul"), constant("TAPS_OUTSIDE", self.taps_outside)]
        for i, d in enumerate("dhw"):
            given = i >= missing
            for name, values in (("S", g.stride), ("D", g.dilation), ("P", phases), ("R", rest)):
                lines.append(constant(f"{name}{d.upper()}", values[i - missing] if given else 1))
            lines.append(constant(f"K{d.upper()}", self.specs["w"].shape[2 + i]))
            pad = params.add(f"pad_{d}", g.padding[i - missing], "i32") if given else "0"
            lines.append(f"fn pad_{d}() -> i32 {{ return {pad}; }}")
            for x in "xy":
                size = params.add(f"{x}_{d}", self.specs[x].shape[2 + i]) if given else "1u"
                lines.append(f"fn {x}_{d}() -> u32 {{ return {size}; }}")
        params.add("depth", self.depth)
        return lines

    def result(self, params: ParamList) -> str:
        if self.bias is None:
            return PLAIN
        params.add("bias_offset", Source("offset", self.args["bias"]))
        params.add("bias_stride", self.bias.strides[0])
        return BIASED

    @property
    def operands(self) -> tuple[str, ...]:
        return tuple(name for name in ("x", "w", "y") if name != self.out)


def conv_of(op: Operation, mode: str, geometry: Geometry) -> Conv:
    names = {"forward": ("x", "w"), "adjoint": ("y", "w"), "weight": ("y", "x")}[mode]
    dims = len(geometry.stride)
    specs = {name: spatial(spec, dims) for name, spec in zip(names, op.inputs, strict=False)}
    specs[OUTPUT[mode]] = spatial(op.outputs[0], dims)
    args = {name: k for k, name in enumerate((*names, "bias"))} | {OUTPUT[mode]: op.n_inputs}
    return Conv(mode, geometry, specs, args, op.inputs[2] if op.n_inputs == 3 else None)


def lower_conv(op: Operation, alias: tuple[int, ...], caps: HostCaps, *, mode: str, geometry: Geometry) -> Lowered:
    c = conv_of(op, mode, geometry)
    few = c.rows <= FEW_ROWS and (c.depth * c.taps <= SHORT_SUM or c.mode == "weight")
    if c.kind == "f" and not few:
        return blocked(c, caps)
    return Lowered((weight_direct(c) if mode == "weight" else direct(c, caps),))


def direct(c: Conv, caps: HostCaps) -> Launch:
    kernel = PointKernel(f"conv_{c.mode}", caps, SPATIAL, absent(c.dims))
    kernel.add(*c.prelude(kernel.params), source("conv"), c.result(kernel.params))
    for name in c.operands:
        kernel.input(name, c.args[name], c.specs[name])
    if c.bias is not None:
        kernel.binding(Binding("bias", c.bias.dtype), c.args["bias"])
    kernel.param("m", c.rows)
    kernel.output(c.out, c.args[c.out], c.specs[c.out])
    kernel.add(*map(source, READ_THROUGH[c.mode]))
    return kernel.launch(source(f"conv_{c.mode}_direct"))


class _Writer:
    """Collects the bindings, parameters and text of a kernel that stores sums by their row and column."""

    def __init__(self, c: Conv, partials: bool) -> None:
        self.c = c
        self.params = ParamList()
        self.bindings: list[Binding] = []
        self.order: list[int] = []
        self.text = [*c.prelude(self.params, c.phases), source("conv")]
        for name in c.operands:
            self.bind(Binding(name, c.specs[name].dtype), c.args[name])
            self.locate(name)
        self.text += map(source, READ_THROUGH[c.mode])
        if partials:
            self.bind(partials_binding(c.kind, "read_write"), c.args[c.out] + 1)
            self.text.append(STORE_PARTIAL)

    def bind(self, binding: Binding, arg: int) -> None:
        self.bindings.append(binding)
        self.order.append(arg)

    def locate(self, name: str) -> None:
        c = self.c
        self.text.append(locator(self.params, name, c.args[name], SPATIAL, c.specs[name].strides, absent(c.dims)))

    def result(self, words: bool) -> None:
        c = self.c
        if c.bias is not None:
            self.bind(Binding("bias", c.bias.dtype), c.args["bias"])
        self.text.append(c.result(self.params))
        self.bind(Binding(c.out, c.specs[c.out].dtype, "read_write", "word" if words else "plain"), c.args[c.out])
        self.locate(c.out)
        self.text += [source(f"conv_{c.mode}_store"), store_sum(c.out)]

    def launch(self, name: str, body: list[str], threads: int, grid: Triple) -> Launch:
        text = "\n".join([*self.text, *body])
        kernel = Kernel(
            name, text, tuple(self.bindings), tuple(self.params.params), workgroup_size=(threads, 1, 1), trusted=True
        )
        return Launch(kernel, tuple(self.order), tuple(self.params.values), grid)


def blocked(c: Conv, caps: HostCaps) -> Lowered:
    slices, m, n, k = c.sizes
    chosen = plan(slices, m, n, k, TILES, caps.software)
    split = chosen.splits > 1
    words = not split and c.mode != "weight" and prod(c.phases) == 1 and writes_words(c.specs[c.out], 4, caps)
    w = _Writer(c, split)
    if not split:
        w.result(words)
    grid = block_params(w.params, chosen, slices, m, n, k)
    a_k_major = c.mode != "weight" or not c.channels_last("y")
    b_k_major = c.taps_outside if c.mode != "weight" else not c.taps_outside
    main = block_text(chosen.tile, a_k_major, b_k_major, True, words)
    body = [source(f"conv_{c.mode}"), finish(c.out, c.specs[c.out].dtype, words), main]
    name = f"conv_{c.mode}_{chosen.tile.m}x{chosen.tile.n}"
    first = w.launch(name, body, chosen.tile.threads, grid)
    return split_sum(c, caps, chosen.splits, first) if split else Lowered((first,))


def split_sum(c: Conv, caps: HostCaps, splits: int, first: Launch) -> Lowered:
    """``first``, followed by the addition of the partial sums it leaves."""
    slices, m, n, _ = c.sizes
    kernel = PointKernel(f"conv_{c.mode}_split_sum", caps, SPATIAL, absent(c.dims))
    kernel.add(*c.prelude(kernel.params, c.phases), source("conv"), c.result(kernel.params))
    if c.mode == "adjoint":
        kernel.add(source("conv_phases"))
    if c.bias is not None:
        kernel.binding(Binding("bias", c.bias.dtype), c.args["bias"])
    kernel.output(c.out, c.args[c.out], c.specs[c.out])
    size = add_partials(kernel, c.args[c.out] + 1, c.kind, slices, splits, m, n)
    return Lowered((first, kernel.launch(source(f"conv_{c.mode}_sum"))), (size,))


def weight_direct(c: Conv) -> Launch:
    slices, m, n, k = c.sizes
    w = _Writer(c, False)
    w.result(False)
    groups = slices * m * n
    for name, value in (("m", m), ("k", k), ("groups", groups)):
        w.params.add(name, value)
    rows = -(-groups // MAX_GROUPS)
    return w.launch("conv_weight", [source("conv_weight_direct")], WEIGHT_THREADS, (-(-groups // rows), rows, 1))
