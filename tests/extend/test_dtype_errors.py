"""What is wrong with a dtype, or a call, is said where it happens, with what to do."""

from __future__ import annotations

import pytest
import torch

from torch_webgpu.extend.dtypes import (
    DTypeAlreadyRegisteredError,
    DTypeComponent,
    DTypeComponentsMismatchError,
    DTypeConfig,
    DTypeDisplayConfig,
    DTypeNotFoundError,
    DTypePromotionError,
    MethodDTypeNotSupportedError,
    get_dtype,
    register_dtype,
    registered,
    unregister_dtype,
)

CODES = {"codes": torch.int32}


def test_the_life_of_a_registration():
    config = DTypeConfig("tenths", CODES, load=lambda codes: codes / 10)
    tenths = register_dtype(config)
    assert registered()["tenths"] is config
    assert get_dtype("tenths").config is tenths.config
    assert repr(tenths) == "<dtype tenths>"
    with pytest.raises(DTypeAlreadyRegisteredError, match=r"a dtype 'tenths' is registered: .*override=True"):
        register_dtype(DTypeConfig("tenths", CODES))
    other = DTypeConfig("tenths", CODES)
    assert register_dtype(other, override=True).config is registered()["tenths"] is other
    x = tenths.from_components(codes=torch.tensor([5], dtype=torch.int32))
    assert unregister_dtype("tenths") is other
    assert x.dequantize().item() == 0.5
    with pytest.raises(TypeError):
        registered()["tenths"] = config
    with pytest.raises(TypeError, match="takes a DTypeConfig, and not dict"):
        register_dtype({"name": "tenths"})


@pytest.mark.parametrize("ask", [get_dtype, unregister_dtype])
def test_a_name_that_is_not_registered(ask):
    with pytest.raises(
        DTypeNotFoundError, match=r"no dtype 'int4x3' is registered \(did you mean 'int4x2'\?\); registered:"
    ):
        ask("int4x3")
    with pytest.raises(LookupError, match="'float32x'"):
        ask("float32x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "4bits", "components": CODES}, "has to be an identifier"),
        ({"name": "a", "components": {}}, "has no components"),
        ({"name": "a", "components": {"data": torch.int8}}, "that torch.Tensor does not have yet"),
        ({"name": "a", "components": {"x y": torch.int8}}, "has to be an identifier"),
        ({"name": "a", "components": {"i": torch.int8}}, "component 'i'"),
        ({"name": "a", "components": {"codes": "int8"}}, "has to have a torch.dtype, and not 'int8'"),
        (
            {
                "name": "a",
                "components": {"codes": DTypeComponent(torch.int8, 3), "scale": DTypeComponent(torch.int8, 32)},
            },
            r"component 'codes' of a serves 3 elements, which has to divide the larger such numbers, \[32\]",
        ),
        ({"name": "a", "components": {"codes": DTypeComponent(torch.int8, 0)}}, "serves 0 elements"),
        (
            {"name": "a", "components": CODES, "operators": {"sinn": torch.sin}},
            r"no operator 'sinn' \(did you mean 'sin'\?\)",
        ),
        (
            {"name": "a", "components": CODES, "operators": {"mul.Tenser": torch.mul}},
            r"'mul' has no overload 'Tenser' \(did you mean 'Tensor'\?\)",
        ),
        (
            {
                "name": "a",
                "components": {"codes": DTypeComponent(torch.uint8, 2)},
                "display": DTypeDisplayConfig(element="{codes}"),
            },
            "display.element of a needs",
        ),
    ],
)
def test_what_cannot_be_a_dtype(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        DTypeConfig(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"packed": torch.zeros(2, 16, dtype=torch.int8)},
            "'packed' of int4x2 has to be torch.uint8, and not torch.int8",
        ),
        (
            {"scale": torch.zeros(2, 3)},
            r"component 'scale' of a int4x2 tensor of shape \(2, 32\) has to have shape \(2, 1\), and not \(2, 3\)",
        ),
        (
            {"packed": torch.zeros(2, 8, dtype=torch.uint8)},
            r"blocks of 32 elements, and dimension 1 of shape \(2, 16\)",
        ),
        ({"scales": torch.zeros(2, 1)}, r"no component 'scales' \(did you mean 'scale'\?\); it has packed, scale"),
        ({"scale": None}, "is without its component 'scale'"),
        ({"scale": torch.zeros(2, 1, device="meta")}, "Expected all tensors to be on the same device"),
        (
            {"packed": torch.zeros((), dtype=torch.uint8), "scale": torch.zeros(())},
            "has blocks of 32 along a dimension",
        ),
    ],
)
def test_components_that_do_not_fit(examples, change, message):
    components = {"packed": torch.zeros(2, 16, dtype=torch.uint8), "scale": torch.zeros(2, 1)} | change
    components = {name: one for name, one in components.items() if one is not None}
    with pytest.raises((DTypeComponentsMismatchError, RuntimeError), match=message):
        examples["int4x2"].int4x2.from_components(**components)


def test_numbers_that_do_not_fit(examples, place):
    int4x2 = examples["int4x2"].int4x2
    with pytest.raises(
        DTypeComponentsMismatchError, match=r"dimension 1 of shape \(2, 30\) is not a multiple of that: pad"
    ):
        int4x2(torch.zeros(2, 30, device=place))
    with pytest.raises(DTypeComponentsMismatchError, match="a number alone is none"):
        int4x2(torch.tensor(1.0, device=place))


def test_functions_of_a_dtype_that_return_something_else(place):
    wrong = register_dtype(
        DTypeConfig("wrong", CODES, load=lambda codes: codes, store=lambda x: {"codes": x[:1].int()})
    )
    x = wrong.from_components(codes=torch.zeros(3, dtype=torch.int32, device=place))
    with pytest.raises(
        ValueError, match=r"load of wrong returned torch.int32 of shape \(3,\), and has to return torch.float32"
    ):
        x.dequantize()
    missing = register_dtype(DTypeConfig("missing", CODES, operators={"neg": lambda x: {"code": x.codes}}))
    with pytest.raises(ValueError, match=r"missing has no component 'code' \(did you mean 'codes'\?\)"):
        -missing.from_components(codes=torch.zeros(3, dtype=torch.int32, device=place))


def test_dtypes_that_do_not_meet(examples, place):
    a = examples["int4x2"].int4x2(torch.ones(2, 32, device=place))
    b = examples["mxfp8"].mxfp8(torch.ones(2, 32, device=place))
    with pytest.raises(
        DTypePromotionError, match=r"aten::add: int4x2 and mxfp8 have no common dtype: .*x\.dequantize\(\)"
    ):
        a + b
    message = r"aten::mul: int4x2 and torch.float64 .* no rule for .* \(it has rules for torch.float32, torch.float16\)"
    with pytest.raises(DTypePromotionError, match=message):
        a.cpu() * torch.ones(2, 32, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="aten::mm"):
        a @ torch.ones(32, 2, dtype=torch.bfloat16, device=place)


def test_dtypes_that_meet_by_a_rule(examples, place):
    """The rule of either operand, also for numbers."""
    whole = DTypeConfig(
        "whole", {"codes": torch.int32}, load=lambda codes: codes.float(), store=lambda x: {"codes": x.round().int()},
        promote={"mxfp8": torch.float32, torch.int32: "whole", float: torch.float32, "whole": "whole"},
    )  # fmt: skip
    x = register_dtype(whole)(torch.full((2, 32), 3.0, device=place))
    y = examples["mxfp8"].mxfp8(torch.ones(2, 32, device=place))
    for result in (x + y, y + x, x * 1.5):
        assert type(result) is torch.Tensor
    assert torch.equal((x * 1.5).cpu(), torch.full((2, 32), 4.5))
    assert (x * 2).config is whole
    assert (x * torch.full((2, 32), 2, dtype=torch.int32, device=place)).config is whole
    assert torch.equal((x / x).dequantize().cpu(), torch.ones(2, 32))


def test_operators_that_a_dtype_does_not_define(examples, place):
    """By their names, also in ``x + y``, where Python takes a TypeError for something else."""
    weight = examples["int4x2"].int4x2(torch.ones(32, 32, device=place))
    with pytest.raises(
        MethodDTypeNotSupportedError, match=r"aten::linalg_inv_ex is not defined for int4x2.*dequantize"
    ):
        torch.linalg.inv(weight)
    x = examples["dual"].dual(torch.ones(2, 2, device=place))
    with pytest.raises(
        MethodDTypeNotSupportedError, match=r"aten::div is not defined for dual.*its operators are add, sub"
    ):
        x / x
    with pytest.raises(NotImplementedError, match=r"aten::sinh is not defined for dual \(did you mean 'sin'\?\)"):
        x.sinh()
    with pytest.raises(
        MethodDTypeNotSupportedError, match=r"does not say which numbers its elements are \(DTypeConfig\(wgsl=…\)\)"
    ):
        x.dequantize()
    with pytest.raises(MethodDTypeNotSupportedError, match=r"aten::add is not defined for int4x2.*no out= tensors"):
        torch.add(weight, weight, out=weight)
    stored_only = register_dtype(DTypeConfig("opaque", {"codes": torch.uint8}))
    with pytest.raises(MethodDTypeNotSupportedError, match=r"opaque\.from_components\(codes=…\)"):
        stored_only(torch.zeros(2))


def test_views_that_would_split_blocks(examples, place):
    x = examples["int4x2"].int4x2(torch.ones(4, 64, device=place))
    for view in (lambda: x[:, 3], lambda: x[:, 8:40], lambda: x[:, ::2], lambda: x.view(4, 4, 16), lambda: x[x > 0]):
        with pytest.raises(MethodDTypeNotSupportedError, match=r"blocks of 32 of dimension 1|in blocks of 32"):
            view()
    with pytest.raises(RuntimeError, match=r"shape '\[3, 5\]' is invalid for input of size 256"):
        x.view(3, 5)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x[:1].mul_(x)


@pytest.mark.parametrize(
    ("wgsl", "message"),
    [
        ("f32(codez)", r"codez.*did you mean 'codes'"),
        ("codes +", "line 1, column 8"),
        ("f33(codes)", r"there is no function 'f33' \(did you mean 'f32'\?\)"),
        ("select(codes, 1)", "select takes 3 operands, not 2"),
    ],
)
def test_an_expression_that_is_none(wgsl, message):
    """Seen where the dtype is described, with a caret."""
    with pytest.raises(torch.webgpu.ShaderCompileError, match=message) as caught:
        DTypeConfig("broken", CODES, wgsl=wgsl)
    assert "^" in str(caught.value)
