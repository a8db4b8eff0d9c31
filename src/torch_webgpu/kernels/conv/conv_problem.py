"""What one convolution is: its tensors, its direction, and the sizes of the product that computes it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.points import arithmetic, constant, spatial
from torch_webgpu.wgsl.launch import ParamList

# Which argument is the output.
OUTPUT = {"forward": "y", "adjoint": "x", "weight": "w"}


@dataclass(frozen=True)
class Geometry:
    """A convolution's static arguments over ``len(stride)`` dimensions."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def is_pointwise(self, taps: int) -> bool:
        """Whether with so many taps x and y have the same positions, each of which meets one of the other's."""
        return taps == 1 and set(self.stride) == {1} and not any(self.padding)


@dataclass(frozen=True)
class Conv:
    """One operation: its tensors as (N, C, D, H, W), the operands' places, and the sizes of the product it is."""

    mode: str
    geometry: Geometry
    specs: dict[str, Spec]
    args: dict[str, int]

    @property
    def dims(self) -> int:
        return len(self.geometry.stride)

    @property
    def out(self) -> str:
        return OUTPUT[self.mode]

    @property
    def dtype(self) -> str:
        """The operands'; the output is what the epilogue makes it."""
        return self.specs[self.operands[0]].dtype

    @property
    def kind(self) -> str:
        return BY_NAME[self.dtype].kind

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
    def flipped(self) -> bool:
        """Whether the product's rows are positions and its columns channels, and not the other way round: neighbouring
        columns are stored together, so that they had better be neighbours in memory.
        """
        return self.mode != "weight" and self.channels_last(self.out)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Slices (groups, and phases of each), rows, columns and inner dimension of the product."""
        slices, channels, columns, depth = self.unflipped
        return (slices, columns, channels, depth) if self.flipped else (slices, channels, columns, depth)

    @property
    def unflipped(self) -> tuple[int, int, int, int]:
        """:attr:`sizes` of a product whose rows are channels."""
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
        return self.channels_last(self.window)

    @property
    def pointwise(self) -> bool:
        return self.geometry.is_pointwise(self.taps)

    @property
    def window(self) -> str:
        """The operand that is read through windows; the other's elements are linear in rows and positions."""
        return "y" if self.mode == "adjoint" else "x"

    @property
    def linear(self) -> str:
        return "y" if self.mode == "weight" else "w"

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
        lines = [arithmetic(self.dtype, "add", "mul"), constant("TAPS_OUTSIDE", self.taps_outside)]
        for i, d in enumerate("dhw"):
            is_given = i >= missing
            for name, values in (("S", g.stride), ("D", g.dilation), ("P", phases), ("R", rest)):
                lines.append(constant(f"{name}{d.upper()}", values[i - missing] if is_given else 1))
            lines.append(constant(f"K{d.upper()}", self.specs["w"].shape[2 + i]))
            pad = params.add(f"pad_{d}", g.padding[i - missing], "i32") if is_given else "0"
            lines.append(f"fn pad_{d}() -> i32 {{ return {pad}; }}")
            for x in "xy":
                size = params.add(f"{x}_{d}", self.specs[x].shape[2 + i]) if is_given else "1u"
                lines.append(f"fn {x}_{d}() -> u32 {{ return {size}; }}")
        params.add("depth", self.depth)
        lines.append(f"fn channels() -> u32 {{ return P.{'n' if self.flipped else 'm'}; }}")
        return lines

    @property
    def operands(self) -> tuple[str, ...]:
        return tuple(name for name in ("x", "w", "y") if name != self.out)


def conv_of(op: Operation, mode: str, geometry: Geometry) -> Conv:
    names = {"forward": ("x", "w"), "adjoint": ("y", "w"), "weight": ("y", "x")}[mode]
    specs = {name: spatial(spec, len(geometry.stride)) for name, spec in zip(names, op.inputs, strict=False)}
    specs[OUTPUT[mode]] = spatial(op.outputs[0], len(geometry.stride))
    return Conv(mode, geometry, specs, {name: k for k, name in enumerate(names)})
