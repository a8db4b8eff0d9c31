"""Convolutions of which each position meets one other, as matrix products: positions by channels.

A matrix product finds its elements by a multiplication for each coordinate, where a convolution divides to find an
image, a row and a column; with few channels that is most of the work. With channels last all positions of all images
are rows of one matrix; with channels first each image is a matrix of a batch, which all meet the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from torch_webgpu.ir.expr import walk
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.kernels.matmul.matmul import lower_matmul
from torch_webgpu.kernels.points import spatial
from torch_webgpu.layout import broadcast_strides

from .conv_problem import Conv

POSITIONS = (0, 2, 3, 4)
"""The dimensions of images, as (N, C, D, H, W), that number their positions."""


def as_product(op: Operation, c: Conv) -> Operation | None:
    """The matrix product that computes a convolution; None where it is none, or its tensors lie otherwise."""
    body = op.body
    assert isinstance(body, Extern)
    if not c.pointwise or c.geometry.groups != 1 or any(e.op == "linear" for e in walk(body.epilogue)):
        return None
    matrices = weight_gradient(op, c) if c.mode == "weight" else of_images(op, c, False) or of_images(op, c, True)
    if matrices is None:
        return None
    product = Extern(lower_matmul, operands=2, epilogue=body.epilogue)
    return Operation(op.name, tuple(matrices), op.n_outputs, product, op.param_kinds)


def of_images(op: Operation, c: Conv, each: bool) -> list[Spec] | None:
    """(positions, channels) @ (channels, channels of the result), of all images at once or of each by itself."""
    images = c.specs[c.window]
    found = [of_positions(spec, each) for spec in (images, *like_outputs(op, c))]
    matrices = [spec for spec in found if spec is not None]
    if len(matrices) < len(found):
        return None
    first, *others = matrices
    weights = channels(c.specs["w"], turned=c.mode == "forward")
    if each:
        weights = weights._replace(shape=(images.shape[0], *weights.shape), strides=(0, *weights.strides))
    return [first, weights, *others]


def weight_gradient(op: Operation, c: Conv) -> list[Spec] | None:
    """(channels of y, positions) @ (positions, channels of x)."""
    y, x = (of_positions(c.specs[name]) for name in "yx")
    if y is None or x is None:
        return None
    turned = y._replace(shape=y.shape[::-1], strides=y.strides[::-1])
    return [turned, x, *(channels(spec) for spec in like_outputs(op, c))]


def like_outputs(op: Operation, c: Conv) -> Iterable[Spec]:
    """What the epilogue reads and writes, as (N, C, D, H, W), each expanded to the outputs' shape."""
    shape = op.outputs[0].shape
    expanded = [s._replace(shape=shape, strides=broadcast_strides(s.shape, s.strides, shape)) for s in op.args[2:]]
    return map(partial(spatial, dims=c.dims), expanded)


def channels(w: Spec, turned: bool = False) -> Spec:
    """The weights as a matrix, whose rows are channels of y or, ``turned``, of x."""
    shape, strides = w.shape[:2], w.strides[:2]
    return w._replace(shape=shape[::-1], strides=strides[::-1]) if turned else w._replace(shape=shape, strides=strides)


def of_positions(spec: Spec, of_one: bool = False) -> Spec | None:
    """Images as (positions, channels) or, each by itself, (images, positions, channels); None where there is no step
    from each position to the next.
    """
    dims = POSITIONS[1:] if of_one else POSITIONS
    line = folded([spec.shape[d] for d in dims], [spec.strides[d] for d in dims])
    if line is None:
        return None
    size, stride = line
    image = slice(0, 1 if of_one else 0)
    shape, strides = (*spec.shape[image], size, spec.shape[1]), (*spec.strides[image], stride, spec.strides[1])
    return spec._replace(shape=shape, strides=strides)


def folded(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """The size and the stride of one dimension that goes through all of these in row-major order."""
    size, step = 1, 0
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if size == 1:
            step = stride
        elif stride != step * size:
            return None
        size *= n
    return size, step
