"""Operations' names as people write them."""

from __future__ import annotations

import pytest

from torch_webgpu.ir.names import operator_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("aten.add.Tensor", "add"),
        ("aten::sum.dim_IntList", "sum"),
        ("aten.add_.Scalar", "add_"),
        ("copy", "copy"),
        ("gelu+aten::native_layer_norm_backward.input", "gelu+native_layer_norm_backward"),
        ("mul_+lerp_+13 more+addcdiv_", "mul_+lerp_+13 more+addcdiv_"),
    ],
)
def test_names_lose_their_namespace_and_overload(name: str, shown: str) -> None:
    assert operator_name(name) == shown
