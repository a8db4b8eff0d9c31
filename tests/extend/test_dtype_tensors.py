"""Tensors of registered dtypes keep PyTorch's conventions: views, copies, files, gradients, torch.compile, print."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torch_webgpu.extend.dtypes import (
    DTypeComponent,
    DTypeConfig,
    DTypeDisplayConfig,
    DTypeSerializationConfig,
    DTypeTensor,
    MethodDTypeNotSupportedError,
    register_dtype,
    registered,
    unregister_dtype,
)

MOVES = {
    "t": lambda x: x.transpose(0, -1),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(*range(1, x.dim()), 0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.squeeze(),
    "select": lambda x: x[1],
    "last": lambda x: x.select(-1, 0),
    "slice": lambda x: x[1:3],
    "step": lambda x: x[::2],
    "end": lambda x: x[..., 32:],
    "columns": lambda x: x[:, 1:],
    "expand": lambda x: x.unsqueeze(0).expand(3, *x.shape),
    "view": lambda x: x.reshape(-1, x.shape[-1]),
    "heads": lambda x: x.reshape(*x.shape[:-1], -1, 32),
    "flatten": lambda x: x.flatten(),
    "index": lambda x: x[torch.tensor([2, 0, 0], device=x.device)],
    "pairs": lambda x: x[torch.tensor([[1, 0]], device=x.device), torch.tensor([0, 1], device=x.device)],
    "index_select": lambda x: x.index_select(0, torch.tensor([1, 1], device=x.device)),
    "cat": lambda x: torch.cat((x, x), -1),
    "stack": lambda x: torch.stack((x, x), 1),
    "chunk": lambda x: x.chunk(2, -1)[1],
    "split": lambda x: x.split(2)[-1],
    "unbind": lambda x: x.unbind(1)[-1],
    "flip": lambda x: x.flip(0),
    "opposite": lambda x: x.flip(-1),
    "roll": lambda x: x.roll((1, 32), (0, -1)),
    "roll one": lambda x: x.roll(-1, -1),
    "roll all": lambda x: x.roll(32),
    "repeat": lambda x: x.repeat(2, *[1] * (x.dim() - 1), 2),
    "diagonal": lambda x: x.diagonal(1, 0, 1),
    "diagonal of the last": lambda x: x.diagonal(0, -1, 0),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "unfold the last": lambda x: x.unfold(-1, 32, 32),
    "unfold it by 16": lambda x: x.unfold(-1, 32, 16),
    "take": lambda x: x.take(torch.tensor([1, 0], device=x.device)),
    "gather": lambda x: x.gather(0, torch.zeros(x.shape, dtype=torch.int64, device=x.device)),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
}


@settings(max_examples=60, deadline=None)
@given(moves=st.lists(st.sampled_from(sorted(MOVES)), min_size=1, max_size=5))
@pytest.mark.parametrize("name", ["int4x2", "dual"])
def test_moving_elements_is_moving_numbers(examples, name, moves):
    """What a dtype refuses changes nothing; what it does is what plain tensors do."""
    example = examples[name]
    numbers = torch.arange(4 * 3 * 64.0).reshape(4, 3, 64).sin()
    x = getattr(example, name)(numbers)
    numbers = plain(x)
    for move in moves:
        try:
            expected = MOVES[move](numbers)
        except (IndexError, RuntimeError, ValueError) as error:
            with pytest.raises((type(error), MethodDTypeNotSupportedError)):
                MOVES[move](x)
            continue
        try:
            x = MOVES[move](x)
        except MethodDTypeNotSupportedError as refusal:
            if name == "dual" or "block" not in str(refusal):
                raise
            continue
        numbers = expected
        assert x.shape == numbers.shape
        assert torch.equal(plain(x), numbers), moves


def plain(x: DTypeTensor) -> torch.Tensor:
    return x.dequantize() if x.config.has_numbers else x.value


def test_views_share_memory_and_writes_are_seen(examples, place):
    int4x2 = examples["int4x2"].int4x2
    x = int4x2(torch.randn(4, 64, device=place))
    rows, before = x.t()[:, 1:3], x.dequantize()
    rows.mul_(-2)
    assert torch.equal(x[1:3].dequantize(), before[1:3] * -2)
    assert torch.equal(x[0].dequantize(), before[0])
    x[:, 32:].zero_()
    assert not x.dequantize()[:, 32:].any()
    assert x.dequantize()[:, :32].any()
    x.copy_(torch.ones(64, device=place))
    assert torch.equal(x.dequantize(), torch.ones(4, 64, device=place))
    number = torch.zeros(4, 64, device=place)
    number.copy_(x).add_(x)
    assert torch.equal(number, torch.full((4, 64), 2.0, device=place))


@pytest.mark.parametrize("name", ["int4x2", "mxfp8", "dual"])
def test_files_copies_and_devices(examples, device, place, name):
    x = getattr(examples[name], name)(torch.randn(3, 64, device=place)).t()
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["x"]
    file.seek(0)
    moved = torch.load(file, weights_only=True, map_location=device)["x"]
    assert moved.device.type == device.type
    copies = [loaded, moved, copy.deepcopy(x), x.to(device), x.cpu()]
    if name != "mxfp8":
        copies += [copy.copy(x), pickle.loads(pickle.dumps(x))]
    for other in copies:
        assert type(other) is DTypeTensor
        assert other.config is x.config
        assert other.shape == x.shape
        for component, expected in x.components.items():
            assert torch.equal(getattr(other, component).cpu().float(), expected.cpu().float())
    deep = copy.deepcopy(x)
    deep.zero_()
    assert not torch.equal(deep, x)


def test_plain_floats_of_8_bits_cannot_be_pickled():
    """A canary: why the test above leaves out mxfp8."""
    with pytest.raises(AttributeError, match="has no attribute 'dtype'"):
        pickle.loads(pickle.dumps(torch.zeros(2).to(torch.float8_e8m0fnu)))


def test_a_file_of_an_older_format_is_upgraded(place):
    def config(version: int, **rule: object) -> DTypeConfig:
        return DTypeConfig(
            "tenths", {"codes": torch.int32}, load=lambda codes: codes / 10, store=lambda x: {"codes": (x * 10).int()},
            serialization=DTypeSerializationConfig(version, **rule),
        )  # fmt: skip

    numbers = torch.tensor([0.5, 2.0], device=place)
    file = io.BytesIO()
    torch.save(register_dtype(config(1))(numbers), file)
    register_dtype(config(2), override=True)
    file.seek(0)
    with pytest.raises(ValueError, match="was saved in version 1"):
        torch.load(file, weights_only=True)
    upgraded = config(2, upgrade=lambda version, components: {"codes": components["codes"] * 10 * version})
    register_dtype(upgraded, override=True)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True).dequantize(), numbers * 10)
    unregister_dtype("tenths")
    file.seek(0)
    with pytest.raises(LookupError, match="no dtype 'tenths' is registered"):
        torch.load(file, weights_only=True)


def test_modules_with_quantized_weights(examples, device):
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    examples["int4x2"].quantize_linear_layers(module)
    x, other = torch.randn(5, 64), copy.deepcopy(module)
    with torch.no_grad():
        expected = module(x)
    module.to(device)
    assert module[0].weight.packed.device.type == device.type
    torch.testing.assert_close(module(x.to(device)).cpu(), expected, rtol=1e-5, atol=1e-5)
    other[0].weight.zero_()
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), expected)


def test_gradients_pass_through_quantized_weights(examples, place):
    """As those of a layer with the numbers that are stored."""
    int4x2 = examples["int4x2"].int4x2
    weight, x = (
        torch.randn(8, 64, device=place, requires_grad=True),
        torch.randn(5, 64, device=place, requires_grad=True),
    )
    F.linear(x, int4x2(weight)).sin().sum().backward()
    numbers, y = int4x2(weight.detach()).dequantize().requires_grad_(), x.detach().clone().requires_grad_()
    F.linear(y, numbers).sin().sum().backward()
    torch.testing.assert_close(weight.grad, numbers.grad)
    torch.testing.assert_close(x.grad, y.grad)
    weight.grad = None
    (int4x2(weight) * 2).dequantize().sum().backward()
    assert torch.equal(weight.grad, torch.full_like(weight, 2))
    with pytest.raises(RuntimeError, match=r"packed\.detach\(\)|scale\.detach\(\)"):
        int4x2.from_components(
            packed=torch.zeros(1, 16, dtype=torch.uint8), scale=torch.zeros(1, 1, requires_grad=True)
        )


def test_training_a_parameter_of_a_registered_dtype(examples, place):
    start = torch.randn(4, 64, device=place)
    weight = nn.Parameter(examples["mxfp8"].mxfp8(start))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    losses = []
    for _ in range(3):
        loss = (weight * weight).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
    assert isinstance(weight, DTypeTensor)


@pytest.mark.parametrize("name", ["int4x2", "mxfp8", "dual"])
def test_compiled_functions(examples, place, name):
    dtype = getattr(examples[name], name)
    weight, other = dtype(torch.randn(32, 64, device=place)), dtype(torch.randn(32, 64, device=place))

    def function(weight: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return weight * other + weight, weight[:4] @ other.t()

    torch.compiler.reset()  # one function of all cases, whose compilations count against Dynamo's limit
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager" if place.type == "cpu" else "webgpu")
    for _ in range(2):
        for result, expected in zip(compiled(weight, other), function(weight, other), strict=True):
            assert type(result) is type(expected)
            torch.testing.assert_close(parts_of(result), parts_of(expected), rtol=1e-5, atol=1e-5)
        weight = weight.clone()


def parts_of(x: torch.Tensor) -> list[torch.Tensor]:
    return [part.float() for part in x.components.values()] if isinstance(x, DTypeTensor) else [x]


def test_compiled_training_of_a_layer(examples, place):
    weight = examples["int4x2"].int4x2(torch.randn(8, 64, device=place))
    x = torch.randn(5, 64, device=place, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.linear(x, weight)).square().sum()

    loss(x).backward()
    expected, x.grad = x.grad, None
    torch.compile(loss, backend="aot_eager" if place.type == "cpu" else "webgpu")(x).backward()
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-4)


def test_what_is_printed(examples, place):
    where = "" if place.type == "cpu" else f", device='{place}:0'"
    dual = examples["dual"].dual
    x = dual.from_components(
        value=torch.tensor([1.0, -2.0], device=place), derivative=torch.tensor([0.5, -0.25], device=place)
    )
    assert repr(x) == f"tensor([1.0000+0.5000e, -2.0000-0.2500e], dtype=dual{where})"
    assert repr(x[0]) == f"tensor(1.0000+0.5000e, dtype=dual{where})"
    y = dual(torch.zeros(2, device=place)).requires_grad_()
    assert repr(y).endswith(f"dtype=dual{where}, requires_grad=True)")
    weight = examples["int4x2"].int4x2(torch.ones(1, 32, device=place))
    assert repr(weight) == repr(torch.ones(1, 32)).replace("\n       ", "\n       ")[:-1] + f", dtype=int4x2{where})"
    shown = DTypeConfig(
        "shown", {"codes": DTypeComponent(torch.uint8, 2)}, load=lambda codes, i: ((codes >> i * 4) & 15).float(),
        display=DTypeDisplayConfig(components=True),
    )  # fmt: skip
    z = register_dtype(shown).from_components(codes=torch.tensor([0x21, 0x43], dtype=torch.uint8, device=place))
    assert repr(z) == f"tensor([1., 2., 3., 4.], dtype=shown{where}, codes=torch.uint8[2])"
    assert "shown" in registered()
    large = dual(torch.zeros(2000, device=place))
    assert len(repr(large)) < 400


def test_torch_equal(examples, place):
    int4x2, dual = examples["int4x2"].int4x2, examples["dual"].dual
    x = int4x2(torch.ones(2, 32, device=place))
    assert torch.equal(x, x.clone())
    assert torch.equal(x, x.dequantize())
    assert torch.allclose(x, x.dequantize() + 1e-6)
    assert not torch.equal(x, x * 2)
    assert not torch.equal(x, x[:1])
    one = torch.ones(3, device=place)
    assert not torch.equal(dual(one), dual.from_components(value=one, derivative=one))
