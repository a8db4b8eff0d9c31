"""What kernels that Python writes have in common: their bindings, and how threads store what they computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Spec

from .expr import compute_type
from .indexing import MAIN
from .kernel import Access, Binding, Mode


def store_mode(spec: Spec, layout: str, native_f16: bool) -> Mode:
    """How an output is written: plainly, a packed word at a time, or element-wise with atomics on the word."""
    dtype = BY_NAME[spec.dtype]
    if not dtype.is_subword or (spec.dtype == "f16" and native_f16):
        return "plain"
    return "word" if layout == "linear" and spec.aligned else "atomic"


def bind(
    args: Sequence[Spec], alias: tuple[int, ...], n_inputs: int, modes: dict[int, Mode] | None = None
) -> tuple[tuple[Binding, ...], dict[int, str], tuple[int, ...]]:
    """Bindings for ``args``, one per storage that is written, with the name each argument goes by; plain ones without
    ``modes``.

    WebGPU forbids binding one buffer twice in a dispatch when either use writes, so arguments that share a storage
    with an output go through that output's binding.
    """
    modes = modes or dict.fromkeys(range(n_inputs, len(args)), "plain")
    written = {alias[k]: k for k in modes}
    names: dict[int, str] = {}
    bindings: list[Binding] = []
    order: list[int] = []
    for k, spec in enumerate(args):
        owner = written.get(alias[k], k)
        if owner not in names:
            names[owner] = f"{'y' if owner in modes else 'x'}{owner}"
            access: Access = "read_write" if owner in modes else "read"
            bindings.append(Binding(names[owner], args[owner].dtype, access, modes.get(owner, "plain")))
            order.append(owner)
        if args[owner].dtype != spec.dtype:
            raise ValueError(f"arguments {owner} and {k} share a storage but not a dtype")
        names[k] = names[owner]
    return tuple(bindings), names, tuple(order)


@dataclass(frozen=True)
class Packed:
    """An output written in whole words: its binding, dtype, field of the point's result, and offset parameter."""

    binding: str
    dtype: str
    field: str
    offset: str

    @property
    def per_word(self) -> int:
        return BY_NAME[self.dtype].per_word


def per_point(lines: Sequence[str], numel: str, run: int = 1) -> str:
    """A kernel in which a thread does ``lines`` for one point ``i``, of ``run`` that belong to it."""
    point = "t" if run == 1 else f"t * {run}u"
    call = f"  if ({point} < {numel}) {{ point({point}); }}"
    return "\n".join(["fn point(i: u32) {", *lines, "}", *MAIN, call, "}", ""])


def packed_text(outputs: Sequence[Packed], point: Sequence[str], numel: str, run: int, one_by_one: bool = False) -> str:
    """A kernel in which a thread computes ``run`` points and stores their packed outputs a word at a time.

    The tensor's last word may be partly somebody else's: what lies beyond the tensor is kept. ``one_by_one``: the
    points are computed in a loop.
    """
    fields = ", ".join(f"{o.field}: {compute_type(o.dtype)}" for o in outputs)
    text = [f"struct Packed {{ {fields} }}", "fn point(i: u32) -> Packed {", "  var packed: Packed;", *point]
    text += ["  return packed;", "}", *MAIN, f"  let base = t * {run}u;", f"  if (base >= {numel}) {{ return; }}"]
    words = [(o, first, f"{o.field}_w{first}") for o in outputs for first in range(0, run, o.per_word)]
    stores = []
    for o, first, word in words:
        at, end = f"({o.offset} + base + {first}u) / {o.per_word}u", f"base + {first + o.per_word}u"
        text.append(f"  var {word} = 0u;")
        partly = f"base + {first}u < {numel} && {end} > {numel}"
        text.append(f"  if ({partly}) {{ {word} = {o.binding}_load_word({at}); }}")
        stores.append(f"  if (base + {first}u < {numel}) {{ {o.binding}_store_word({at}, {word}); }}")
    if one_by_one:
        text += [f"  for (var e = 0u; e < {run}u; e += 1u) {{", f"    if (base + e >= {numel}) {{ break; }}"]
        text.append("    let q = point(base + e);")
        for o, first, word in words:
            pack = f"{word} = {o.dtype}_pack({word}, e % {o.per_word}u, q.{o.field});"
            text.append(f"    if (e / {o.per_word}u == {first // o.per_word}u) {{ {pack} }}")
        return "\n".join([*text, "  }", *stores, "}", ""])
    for e in range(run):
        text.append(f"  if (base + {e}u < {numel}) {{")
        text.append(f"    let q = point(base + {e}u);")
        for o in outputs:
            word = f"{o.field}_w{e - e % o.per_word}"
            text.append(f"    {word} = {o.dtype}_pack({word}, {e % o.per_word}u, q.{o.field});")
        text.append("  }")
    return "\n".join([*text, *stores, "}", ""])
