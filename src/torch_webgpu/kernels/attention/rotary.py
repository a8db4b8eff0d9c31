"""Rotary position embeddings as language models write them: ``x * cos + cat((-x2, x1)) * sin`` over halves of heads."""

from __future__ import annotations

from collections.abc import Sequence

from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.kernels.indexing.indexed import write_mode
from torch_webgpu.kernels.points import PointKernel
from torch_webgpu.kernels.template import render
from torch_webgpu.layout import broadcast_strides
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Binding
from torch_webgpu.wgsl.launch import ERRORS, Lowered

COORDINATES = ("b", "h", "s", "d")
VALUES = "fn values(b: u32, h: u32, s: u32, d: u32) -> Values { return Values(rotated(b, h, s, d)); }"
WRITE = """fn visit(b: u32, h: u32, s: u32, d: u32) {{
  let row = checked_index_l(P.op, index_load(index_at(b, h, s, d)), P.rows);
  if (row < P.rows) {{ {store}(y_at(b, h, row, d), rotated(b, h, s, d)); }}
}}"""


def extern(is_gradient: bool = False) -> Extern:
    """Arguments: x (B, H, S, D), cos and sin, which broadcast to it → of x's shape. D is even; floating types, which
    may differ. ``is_gradient``: x is the gradient of the result, and the result that of x.
    """
    return Extern(lower_rotary, (True,) if is_gradient else ())


def write_extern() -> Extern:
    """Arguments: x (B, H, S, D), cos and sin, which broadcast to it, int64 rows (S,) → (B, H, R, D), these rows of it.
    An index out of range is flagged.
    """
    return Extern(lower_write)


def lower_rotary(op: Operation, alias: tuple[int, ...], target: Target, is_gradient: bool = False) -> Lowered:
    *inputs, y = op.args
    kernel = drafted("rotary", inputs, y.shape, target)
    kernel.output("y", 3, y)
    return Lowered((kernel.launch("\n".join([rotated(is_gradient), VALUES])),))


def lower_write(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    *inputs, index, y = op.args
    shape = inputs[0].shape
    kernel = drafted("rotary_write", inputs, shape, target)
    kernel.input("index", 3, index._replace(shape=shape, strides=(0, 0, index.strides[0], 0)))
    mode = write_mode(y.dtype, "set", target)
    kernel.binding(Binding("y", y.dtype, "read_write", mode), 4)
    kernel.locate("y", 4, y)
    kernel.binding(ERROR_FLAGS, ERRORS)
    kernel.param("op", op.id)
    kernel.param("rows", y.shape[2])
    write = WRITE.format(store="y_store" if mode == "plain" else "y_atomic_set")
    return Lowered((kernel.visit(inputs[0], "\n".join([rotated(), write])),))


def rotated(is_gradient: bool = False) -> str:
    """The function that computes one number: the transpose of the rotation takes the other half's sine."""
    return render("attention/rotary", is_gradient=is_gradient)


def drafted(name: str, inputs: Sequence[Spec], shape: tuple[int, ...], target: Target) -> PointKernel:
    """A kernel over elements of this shape, with x, cos and sin."""
    kernel = PointKernel(name, target, COORDINATES)
    for k, (x, spec) in enumerate(zip(("x", "cos", "sin"), inputs, strict=True)):
        strides = broadcast_strides(spec.shape, spec.strides, shape)
        kernel.input(x, k, spec._replace(shape=shape, strides=strides))
    kernel.param("half", shape[3] // 2)
    return kernel
