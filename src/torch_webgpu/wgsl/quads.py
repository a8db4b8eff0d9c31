"""Pointwise kernels in which a thread owns four consecutive points and moves them in one access.

Memory moves at full speed only in 16-byte pieces: on an H200 an addition reaches 2.9 TB/s element by element and 4.1
in fours. This is the layout for outputs that lie in iteration order and start at a multiple of four elements; an input
that does too is loaded in fours, one that is the same everywhere once, any other element by element.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_webgpu.dtypes import BY_NAME, COMPUTE_TYPE
from torch_webgpu.ir.graph import Expr, Operation, Pointwise

from .expr import convert, emit

QUAD = 4
LANES = "xyzw"


def by_four(dtype: str, layout: str, aligned: bool) -> bool:
    """Whether an argument can be moved four elements at a time. ``aligned``: it starts at a multiple of four."""
    return layout == "linear" and aligned and BY_NAME[dtype].itemsize <= 4


def quads_text(
    op: Operation,
    roots: Sequence[Expr],
    names: dict[int, str],
    layouts: Sequence[str],
    offsets: dict[int, str],
    scalars: dict[int, str],
    numel: str,
    main: Sequence[str],
) -> str:
    """The kernel's text. ``layouts[k]`` and ``offsets[k]`` are argument ``k``'s; ``main`` opens the entry point."""
    assert isinstance(op.body, Pointwise)
    loaded: dict[int, str] = {}

    def leaf(e: Expr) -> str:
        if e.op == "load":
            k = e.args[0]
            loaded[k] = f"a{k}"
            return convert(f"a{k}", op.args[k].dtype, e.dtype, fits=True)
        return scalars[e.args[0]] if e.op == "param" else "i"

    lines, results = emit(roots, leaf)
    outputs = range(op.n_inputs, len(op.args))
    values = [
        convert(text, root.dtype, op.args[k].dtype, fits=True)
        for text, root, k in zip(results, roots, outputs, strict=True)
    ]
    fields = ", ".join(f"f{k}: {compute_type(op, k)}" for k in outputs)
    arguments = ", ".join(["i: u32", *(f"a{k}: {compute_type(op, k)}" for k in loaded)])
    text = [f"struct Point {{ {fields} }}", f"fn point({arguments}) -> Point {{", *lines]
    text += [f"  return Point({', '.join(values)});", "}", *main]
    text += [f"  let base = t * {QUAD}u;", f"  if (base >= {numel}) {{ return; }}"]
    loads = {k: load(op, k, names[k], layouts[k], offsets[k], numel) for k in loaded}
    text += [line for declared, _ in loads.values() for line in declared]
    for e in range(QUAD):
        passed = ", ".join([f"base + {e}u", *(lane[e] for _, lane in loads.values())])
        text.append(f"  let q{e} = point({passed});")
    text.append(f"  let whole = base + {QUAD}u <= {numel};")
    for k in outputs:
        text += store(op, k, names[k], layouts[k], offsets[k], numel)
    return "\n".join([*text, "}", ""])


def compute_type(op: Operation, k: int) -> str:
    return COMPUTE_TYPE[BY_NAME[op.args[k].dtype].kind]


def load(op: Operation, k: int, name: str, layout: str, offset: str, numel: str) -> tuple[list[str], list[str]]:
    """Statements that load argument ``k`` for four points, and the WGSL of each one's value."""
    spec = op.args[k]
    if layout == "scalar":
        return [f"  let s{k} = {name}_load({offset});"], [f"s{k}"] * QUAD
    if by_four(spec.dtype, layout, spec.aligned):
        return [f"  let v{k} = {name}_load4({offset} / {QUAD}u + t);"], [f"v{k}.{lane}" for lane in LANES]
    # Not beyond the tensor's end, which may be the buffer's.
    places = [f"min(base + {e}u, {numel} - 1u)" for e in range(QUAD)]
    return [f"  let v{k}_{e} = {name}_load({offset} + {at});" for e, at in enumerate(places)], [
        f"v{k}_{e}" for e in range(QUAD)
    ]


def store(op: Operation, k: int, name: str, layout: str, offset: str, numel: str) -> list[str]:
    """Statements that store output ``k`` of four points; what lies beyond the tensor is kept."""
    spec = op.args[k]
    if not by_four(spec.dtype, layout, spec.aligned):
        return [
            f"  if (base + {e}u < {numel}) {{ {name}_store({offset} + base + {e}u, q{e}.f{k}); }}" for e in range(QUAD)
        ]
    inside = ", ".join(f"base + {e}u < {numel}" for e in range(QUAD))
    values = ", ".join(f"q{e}.f{k}" for e in range(QUAD))
    return [
        f"  var r{k} = vec4<{compute_type(op, k)}>({values});",
        f"  let at{k} = {offset} / {QUAD}u + t;",
        f"  if (!whole) {{ r{k} = select({name}_load4(at{k}), r{k}, vec4<bool>({inside})); }}",
        f"  {name}_store4(at{k}, r{k});",
    ]
