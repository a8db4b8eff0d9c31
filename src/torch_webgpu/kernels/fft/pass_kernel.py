"""One pass of a Fourier transform as a dispatch: where it reads and writes, and its stages as the template has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from torch_webgpu.kernels.points import Draft
from torch_webgpu.kernels.template import render
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, Source, grid_for

from .numbers import Numbers, cosines, sines
from .planner import Pass, has_roots, parts, place
from .stage_text import Split, Tile, anchor, stage_texts
from .transform import FILTER, OUT, Form, Geometry, X


@dataclass(frozen=True)
class End:
    """Where a pass reads or writes: a tensor's lines, a temporary's, or the chirp that the filter is made of.

    ``kind`` "product": the temporary, times the filter. ``chirped``: the tensor's elements are multiplied by a chirp.
    ``halved``: two real numbers are one complex number.
    """

    function: Literal["source", "sink"]
    kind: Literal["tensor", "temporary", "product", "chirp"]
    binding: int
    form: Form = "complex"
    chirped: bool = False
    pairs: bool = False
    halved: bool = False
    base: str = "0u"
    step: str = ""

    @property
    def name(self) -> str:
        return "x" if self.function == "source" else "out"

    def at(self, i: str) -> str:
        return f"base + ({i}){f' * {self.step}' if self.step else ''}"

    def loaded(self, i: str) -> str:
        """WGSL of element ``i`` of the line that starts at ``base``."""
        at = self.at(i)
        if self.kind == "tensor" and self.form == "real":
            if self.halved:
                return f"C(x_load({self.at(f'2u * ({i})')}), x_load({self.at(f'2u * ({i}) + 1u')}))"
            return f"C(x_load({at}), 0)"
        return f"C(x_load({at}), x_load({at} + 1u))" if self.pairs else f"x_load({at})"

    def filtered(self, i: str) -> str:
        """WGSL of element ``i`` of the filter."""
        return f"C(filter_load(2u * {i}), filter_load(2u * {i} + 1u))" if self.pairs else f"filter_load({i})"

    def stored(self, i: str, value: str) -> str:
        """A statement that stores the ``value`` of element ``i`` of the line that starts at ``c.base``."""
        at = f"c.{self.at(i)}"
        if self.kind == "tensor" and self.form == "real":
            return f"out_store({at}, {value}.x);"
        if self.pairs:
            return f"let z = {value}; out_store({at}, z.x); out_store({at} + 1u, z.y);"
        return f"out_store({at}, {value});"


class PassKernel:
    """One pass as a dispatch."""

    def __init__(self, whole: Geometry, fft: Pass, source: End, sink: End, lines: int) -> None:
        self.whole, self.fft, self.lines = whole, fft, lines
        self.transform = whole.transform
        self.draft = Draft()
        self.numbers = Numbers(self.transform.real, self.draft)
        self.step = whole.length // fft.radix
        first = whole.room.wide and source.kind == "tensor" and whole.lines.adjacent(X)
        self.apart = (whole.apart or first) and self.step > 1 and lines > 1
        """Whether neighbouring columns are of neighbouring lines."""
        self.source, self.sink = self.bound(source, 0), self.bound(sink, 1)

    def bound(self, end: End, tensor: int) -> End:
        """``end`` with the WGSL of its addresses; binds its buffer."""
        name, draft, length = end.name, self.draft, self.whole.length
        if end.kind == "chirp":
            return end
        dtype = "c64" if self.transform.real == "f32" and end.form != "real" else self.transform.real
        draft.binding(Binding(name, dtype, "read" if tensor == 0 else "read_write"), end.binding)
        if end.kind == "product":
            draft.binding(Binding("filter", "f64" if end.pairs else "c64"), FILTER)
        if end.kind == "tensor":
            return replace(end, base=self.tensor_base(name, tensor), step=self.tensor_step(name, tensor))
        width = 2 if end.pairs else 1
        if self.whole.apart and self.lines > 1:
            draft.param("lines", self.lines)
            draft.param(f"{name}_step", self.lines * width)
            return replace(end, base=f"line * {width}u", step=f"P.{name}_step")
        draft.param(f"{name}_line", length * width)
        return replace(end, base=f"line * P.{name}_line", step="2u" if end.pairs else "")

    def tensor_base(self, name: str, tensor: int) -> str:
        """WGSL of the number of a line's first element; declares the function that it calls."""
        lines, draft = self.whole.lines, self.draft
        draft.param(f"{name}_offset", Source("offset", tensor))
        text, rest = [], "line"
        for d in reversed(range(len(lines.sizes))):
            stride = lines.strides[tensor][d]
            place = rest
            if d:
                draft.param(f"size_{d}", lines.sizes[d])
                place = f"({rest} % P.size_{d})"
                rest = f"({rest} / P.size_{d})"
            if stride:
                draft.param(f"{name}_stride_{d}", stride)
                text.append(f"{place} * P.{name}_stride_{d}")
        return " + ".join([f"P.{name}_offset", *text])

    def tensor_step(self, name: str, tensor: int) -> str:
        step = self.whole.lines.steps[tensor]
        if step == 1:
            return ""
        self.draft.param(f"{name}_step", step)
        return f"P.{name}_step"

    def along(self) -> tuple[bool, bool]:
        """Whether neighbouring threads read, and write, neighbouring elements of one column."""
        lines, whole = self.whole.lines, self.whole
        if self.step == 1:
            ends = (self.source.kind == "tensor", X), (self.sink.kind == "tensor", OUT)
            read, written = [not (lines.adjacent(tensor) if is_tensor else whole.apart) for is_tensor, tensor in ends]
            return read, written
        return False, self.fft.before == 1 and not (whole.apart and self.apart)

    def launch(self) -> Launch:
        fft, draft, whole, t = self.fft, self.draft, self.whole, self.transform
        count = self.lines * self.step
        columns = fft.columns(count, whole.room, not all(self.along()))
        threads = fft.threads(columns, whole.room)
        tile = Tile.of(fft, columns, whole.room, self.along())
        split = Split(fft, tile, threads, self.along()[1], self.numbers) if whole.halved else None
        stages = stage_texts(fft, tile, threads, self.along(), whole.room.wide, self.numbers, whole.halved)
        draft.param("columns", count)
        if self.step > 1:
            draft.param("step", self.step)
        if self.apart:
            draft.param("lines", self.lines)
        if fft.before > 1:
            draft.param("before", fft.before)
        ends = (self.source, self.sink)
        if any(e.chirped or e.form == "half" or e.kind == "chirp" for e in ends):
            draft.param("n", t.n)
        if self.source.kind == "chirp":
            draft.param("length", whole.length)
        text = render(
            "fft/pass",
            real=t.real,
            fft=fft,
            source=self.source,
            sink=self.sink,
            apart=self.apart,
            steps=self.step > 1,
            stages=stages,
            anchor=anchor,
            wide=whole.room.wide,
            tile=tile,
            split=split,
            threads=threads,
            **self.values(),
        )
        groups = -(-count // columns)
        return draft.build(f"fft_{fft.radix}", [text], threads, grid_for(groups * WORKGROUP))

    def values(self) -> dict[str, object]:
        """What the template calls its numbers."""
        t, numbers = self.transform, self.numbers
        sign = -1.0 if t.inverse else 1.0
        scale = t.scale / self.whole.length if self.sink.chirped else t.scale
        is_tensor = {end.function: end.kind == "tensor" for end in (self.source, self.sink)}
        return {
            "constant": numbers.constant,
            "weighted": numbers.weighted,
            "turned": numbers.turned,
            "parts": parts,
            "has_roots": has_roots,
            "placed": placed,
            "cosines": cosines,
            "sines": sines,
            "root": self.root,
            "root_less_one": self.root_less_one,
            "sign": numbers.param("sign", sign) if is_tensor["source"] else "",
            "scale": numbers.param("scale", scale) if is_tensor["sink"] else "",
            "signed_scale": numbers.param("signed_scale", sign * scale) if is_tensor["sink"] else "",
        }

    def root(self, name: Literal["chirp", "turn"], k: str, twice: bool = False) -> str:
        """WGSL of a root of unity: of the chirp, or of this pass; ``twice``: and of what rounding lost of it."""
        n = 2 * self.transform.n if name == "chirp" else self.fft.before * self.fft.radix
        return self.numbers.root_param(name, n, k, twice)

    def root_less_one(self, k: str) -> str:
        """The same of this pass, less 1, at most an eighth of a turn from 1."""
        return self.numbers.root_less_one_param("turn", self.fft.before * self.fft.radix, k)


def placed(v: list[str], radix: int, parts: Iterable[int], elements: Iterable[int]) -> list[str]:
    """The variables of some elements of some parts of a large butterfly."""
    return [v[place(radix, i, j)] for i in parts for j in elements]
