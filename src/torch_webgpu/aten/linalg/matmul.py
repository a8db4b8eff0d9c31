"""Matrix products: ``mm``, ``bmm``, ``mv``, ``dot`` and their ``add`` forms, each one launch over strided operands."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.aten.dispatch.precision import float32_matmul_precision
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import opmath
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.strict import CPP_NAMES
from torch_webgpu.aten.dispatch.torch_abi import Meta, aten, impl, infer
from torch_webgpu.aten.dispatch.torch_compositions import record_composition
from torch_webgpu.aten.tensors.copy import plain
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.matmul.halves import is_worth
from torch_webgpu.kernels.matmul.matmul import extern

Scalar = int | float | complex


def dtypes_differ(name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> RuntimeError:
    """The CPU's error for ``a @ b``, or ``c + a @ b``, of several dtypes; each operator has words of its own."""
    name = name.removeprefix("aten::")
    of_c, of_a, of_b = (name_of(t.dtype) for t in (b if c is None else c, a, b))
    if name in ("mv", "addmv"):
        return RuntimeError(f"addmv input tensors must have the same dtype, but got {of_c}, {of_a}, and {of_b}")
    if name == "dot":
        return RuntimeError(f"dot : expected both vectors to have same dtype, but found {of_a} and {of_b}")
    if name == "addmm":
        operand, of_operand = ("self", of_c) if of_c != of_b else ("mat1", of_a)
        return RuntimeError(f"{operand} and mat2 must have the same dtype, but got {of_operand} and {of_b}")
    in_cpp, cpp_a, cpp_b = (CPP_NAMES.get(t.dtype, str(t.dtype)) for t in (b if c is None else c, a, b))
    if name == "baddbmm" and of_c != of_a:
        return RuntimeError(f"Input dtypes must be the same, got: input {in_cpp}, batch1: {cpp_a}, batch2: {cpp_b}")
    if name in ("bmm", "baddbmm"):
        return RuntimeError(f"expected scalar type {of_a} but found {of_b}")
    return RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {cpp_a} != {cpp_b}")


def check_operands(name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> None:
    if a.dtype != b.dtype or (c is not None and c.dtype != a.dtype):
        raise dtypes_differ(name, a, b, c)
    if a.device != b.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {a.device} and {b.device}!"
        )
    if a.dim() == 2 and b.dim() == 2 and a.shape[1] != b.shape[0]:
        shapes = f"{a.shape[0]}x{a.shape[1]} and {b.shape[0]}x{b.shape[1]}"
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({shapes})")
    if a.dtype == torch.bool:
        raise NotImplementedError(f"\"addmm_impl_webgpu_\" not implemented for '{name_of(a.dtype)}'")


def product(a: torch.Tensor, outputs: Sequence[Meta], scalars: int = 0) -> Extern:
    """The product whose left operand is ``a``, as precise as the program wants it: see ``kernels/matmul/halves.py``."""
    dtype, shape = dtypes.of(a.dtype).name, outputs[0][0]
    chosen = dtype == "f32" and len(shape) > 1 and is_worth(prod(shape[:-2]), shape[-2], shape[-1], a.shape[-1])
    return extern(dtype, scalars, precision=float32_matmul_precision() if chosen else None)


def multiply(overload: OpOverload) -> Any:
    """``a @ b`` for one overload."""
    name = overload._schema.name

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype.is_complex:
            a, b = plain(a), plain(b)
        check_operands(name, a, b)
        outputs = infer(overload, a, b)
        (out,) = kernel_outputs(name, (a, b), outputs, product(a, outputs))
        return out

    return kernel


def multiply_add(overload: OpOverload) -> Any:
    """``beta * c + alpha * (a @ b)`` for one overload; ``c`` broadcasts, and is not read where beta is 0."""
    name = overload._schema.name

    def kernel(
        c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
    ) -> torch.Tensor:
        if a.dtype.is_complex:
            a, b, c = plain(a), plain(b), plain(c)
        check_operands(name, a, b, c)
        outputs, kind = infer(overload, c, a, b), dtypes.BY_NAME[opmath(a.dtype)].kind
        if name == "aten::addmm" and c.dim() > 2:  # PyTorch's meta kernel takes it
            check_as_cpu(overload, c, a, b, beta=beta, alpha=alpha)
        if beta == 0:
            (out,) = kernel_outputs(name, (a, b), outputs, product(a, outputs, 1), scalars=[(kind, alpha)])
            return out
        (out,) = kernel_outputs(name, (a, b, c), outputs, product(a, outputs, 2), scalars=[(kind, alpha), (kind, beta)])
        return out if a.shape[-1] else out.copy_(c * beta)

    return kernel


def multiply_into(overload: OpOverload) -> Any:
    """``a @ b`` of 16-bit floats as ``out_dtype`` float32, to which the products are summed in any case."""
    name, same = overload._schema.name, overload.overloadpacket.default

    def kernel(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
        if out_dtype == a.dtype:
            return same(a, b)
        check_operands(name, a, b)
        outputs = infer(overload, a, b, out_dtype)
        own, result = dtypes.of(a.dtype).name, dtypes.of(out_dtype).name
        (out,) = kernel_outputs(name, (a, b), outputs, extern(own, result_dtype=result))
        return out

    return kernel


def multiply_add_into(product: OpOverload) -> Any:
    """``beta * c + alpha * (a @ b)`` in ``out_dtype``."""

    def kernel(
        c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype, *, beta: Scalar = 1,
        alpha: Scalar = 1,
    ) -> torch.Tensor:  # fmt: skip
        result = product(a, b, out_dtype) * alpha
        if c.dtype not in (a.dtype, out_dtype):
            raise RuntimeError(f"self has to be of {a.dtype} or {out_dtype}, not of {c.dtype}")
        return (result + c.expand(result.shape) * beta).to(out_dtype) if beta else result

    return kernel


def int_mm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """The product of two matrices of int8 in int32."""
    outputs = infer(aten._int_mm.default, self, mat2)
    (out,) = kernel_outputs("aten::_int_mm", (self, mat2), outputs, extern("i8", result_dtype="i32"))
    return out


def vdot(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return aten.dot.default(self.conj(), other)


def addbmm(
    self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> torch.Tensor:
    """The sum over the batch is part of the inner dimension: one product of (M, B*K) and (B*K, N)."""
    infer(aten.addbmm.default, self, batch1, batch2)
    (b, m, k), n = batch1.shape, batch2.shape[2]
    a = batch1.transpose(0, 1).reshape(m, b * k)
    return torch.addmm(self, a, batch2.reshape(b * k, n), beta=beta, alpha=alpha)


def addbmm_in_place(
    self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> torch.Tensor:
    """``self`` takes the shape it is broadcast to, as nothing else in place does: PyTorch's resizes it, too."""
    result = torch.addbmm(self, batch1, batch2, beta=beta, alpha=alpha)
    return self.resize_(result.shape).copy_(result)


def addr_in_place(
    self: torch.Tensor, vec1: torch.Tensor, vec2: torch.Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> torch.Tensor:
    """``self`` is neither broadcast nor resized, which PyTorch's decomposition of the operator would do."""
    is_plain = self.is_floating_point() and self.dtype == vec1.dtype == vec2.dtype
    if not is_plain or (vec1.dim(), vec2.dim()) != (1, 1) or self.shape != (vec1.numel(), vec2.numel()):
        check_as_cpu(aten.addr_.default, self, vec1, vec2, beta=beta, alpha=alpha)
    return self.copy_(torch.addr(self, vec1, vec2, beta=beta, alpha=alpha))


def addmm_activation(
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
    use_gelu: bool = False,
) -> torch.Tensor:
    result = torch.addmm(self, mat1, mat2, beta=beta, alpha=alpha)
    return torch.nn.functional.gelu(result) if use_gelu else result.relu()


def register() -> None:
    for overload in (aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default):
        register_operator(overload, multiply(overload))
    for overload in (aten.addmm.default, aten.baddbmm.default, aten.addmv.default):
        register_operator(overload, multiply_add(overload))
    for overload in (aten.mm.dtype, aten.bmm.dtype):
        register_operator(overload, multiply_into(overload))
    for overload, product_of in ((aten.addmm.dtype, aten.mm.dtype), (aten.baddbmm.dtype, aten.bmm.dtype)):
        register_operator(overload, multiply_add_into(product_of))
    register_operator(aten._int_mm.default, int_mm)
    register_operator(aten.vdot.default, vdot)
    register_operator(aten.addbmm.default, addbmm, in_place=addbmm_in_place)
    impl(aten.addr_.default, addr_in_place)
    register_operator(aten._addmm_activation.default, addmm_activation)
    for overload in (aten.linear.default, aten.matmul.default):
        record_composition(overload)
