"""``torchao``: weight-only quantization of a language model, whose weights stay packed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.conformance.target import DEVICE
from transformers import LlamaConfig, LlamaForCausalLM

from .compare import assert_on, without_fallbacks

pytest.importorskip("torchao")
LIBRARY = "torchao"
TOKENS = torch.tensor([[3, 17, 5, 40, 8]])


def llama(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 96}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).to(dtype).eval()


def logits(model: Any, device: torch.device | str, run: Any = None, length: int = 5) -> torch.Tensor:
    with torch.no_grad():
        return (model if run is None else run)(input_ids=TOKENS[:, :length].to(device), use_cache=False).logits


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual.cpu().float() - expected.float()).abs().max() / expected.float().abs().max()).item()


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("on_device", [False, True], ids=["moved", "quantized there"])
def test_int8(on_device: bool, length: int) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    reference, model = llama(torch.float32), llama(torch.float32)
    quantize_(reference, Int8WeightOnlyConfig())
    expected = logits(reference, "cpu", length=length)
    assert relative(logits(llama(torch.float32), "cpu", length=length), expected) > 1e-4
    if on_device:
        model = model.to(DEVICE)
    quantize_(model, Int8WeightOnlyConfig())
    model = model.to(DEVICE)
    with without_fallbacks():
        assert_on(DEVICE, model.parameters(), "torchao")
        assert relative(logits(model, DEVICE, length=length), expected) < 1e-5
        compiled = torch.compile(model)
        assert relative(logits(model, DEVICE, compiled, length), expected) < 1e-5
    torch.compiler.reset()


def test_int4() -> None:
    """Against the same numbers, unpacked on the CPU."""
    from torchao.quantization import Int4WeightOnlyConfig, quantize_
    from torchao.quantization.quant_primitives import (
        MappingType,
        _choose_qparams_affine_tinygemm,
        _dequantize_affine_tinygemm,
        _quantize_affine_tinygemm,
    )

    def unpacked(weight: torch.Tensor) -> torch.Tensor:
        block, limits = (1, 32), (torch.int32, 0, 15)
        dtypes = {"scale_dtype": weight.dtype, "zero_point_dtype": weight.dtype}
        scale, zero = _choose_qparams_affine_tinygemm(weight, MappingType.ASYMMETRIC, block, *limits, **dtypes)
        codes = _quantize_affine_tinygemm(weight, block, scale, zero, *limits)
        return _dequantize_affine_tinygemm(codes, block, scale, zero, torch.int32, 0, 15, output_dtype=torch.float32)

    model, reference = llama(torch.bfloat16).to(DEVICE), llama(torch.bfloat16)
    quantize_(model, Int4WeightOnlyConfig(group_size=32, int4_packing_format="tile_packed_to_4d"))
    plain = copy.deepcopy(reference)
    with torch.no_grad():
        for layer in reference.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight.copy_(unpacked(layer.weight))
    expected = logits(reference, "cpu")
    assert relative(logits(plain, "cpu"), expected) > 0.05
    with without_fallbacks():
        assert_on(DEVICE, model.parameters(), "torchao")
        assert relative(logits(model, DEVICE), expected) < 0.02
        assert relative(logits(model, DEVICE, torch.compile(model)), expected) < 0.02
    torch.compiler.reset()
