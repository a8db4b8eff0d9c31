"""Storage layouts, atomics, packed types and 64-bit integers of linked kernels, against NumPy and PyTorch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.device.wgsl.wgsl_runner import (
    EMULATED,
    NATIVE,
    as_numpy,
    as_torch,
    call,
    device,
    kernel_over,
    length,
    run_kernel,
    supported,
)

from torch_webgpu.dtypes import BY_NAME, DType
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.link import link


@pytest.fixture(params=["native", "emulated"])
def target(request: pytest.FixtureRequest) -> Target:
    chosen = NATIVE if request.param == "native" else EMULATED
    if not supported(chosen):
        pytest.skip("the adapter lacks shader-f16, shader-int64 or shader-f64")
    return chosen


# storage

SPECIAL_F32 = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, 65519.9, 65520.0, -65520.0, 1e30, 3.3895314e38, 3.4e38,
     5.96e-8, 2.98e-8, 2.9802322e-8, 2.9802326e-8, 8.9e-8, 6.0975552e-05, 6.1e-5, 1e-45, 1.1754942e-38, 1e-40],
    np.float32,
)  # fmt: skip


def many_f32(count: int = 1 << 14) -> np.ndarray:
    """Random bit patterns: all magnitudes, denormals, NaN."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([SPECIAL_F32, bits.view(np.float32)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_between_operations_round_as_pytorch_does(dtype: torch.dtype, target: Target) -> None:
    halves = torch.arange(1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).float().numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        middles = (halves[:-1] + halves[1:]) / 2
        near = [np.nextafter(middles, halves[:-1]), np.nextafter(middles, halves[1:])]
        values = np.concatenate([halves, middles, -middles, *near, many_f32(1 << 18)]).astype(np.float32)
    values = values[~((values != 0) & (np.abs(values) < np.finfo(np.float32).tiny))]  # GPUs may take them for zero
    rounded = call("round_f16" if dtype is torch.float16 else "round_bf16", values, target=target)
    expected = torch.from_numpy(values).to(dtype).float()
    torch.testing.assert_close(torch.from_numpy(rounded), expected, rtol=0, atol=0, equal_nan=True)
    assert np.array_equal(np.signbit(rounded[~np.isnan(rounded)]), np.signbit(values[~np.isnan(values)]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half_loads_exactly(dtype: torch.dtype, target: Target) -> None:
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    name = "f16" if dtype is torch.float16 else "bf16"
    kernel = kernel_over("y_store(i, x_load(i));", Binding("x", name), Binding("y", "f32", "read_write"))
    output = np.zeros(1 << 16, np.float32)
    (got,) = run_kernel(kernel, [as_numpy(halves), output], 1 << 16, target, params=length(1 << 16))
    np.testing.assert_array_equal(got, halves.float().numpy())


@pytest.mark.parametrize("mode", ["plain", "atomic", "word"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_round_to_nearest_even(dtype: torch.dtype, mode: str, target: Target) -> None:
    values = torch.from_numpy(many_f32())
    scaled = torch.from_numpy(np.random.default_rng(1).standard_normal(1 << 14).astype(np.float32)) * 1e-5
    values = torch.cat([values, scaled, scaled * 1e9])
    values = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))]
    expected = values.to(dtype)
    name = "f16" if dtype is torch.float16 else "bf16"
    store = "y_store(i, x_load(i));"
    if mode == "word":
        pack = f"{name}_pack({name}_pack(0u, 0u, x_load(2u * i)), 1u, x_load(2u * i + 1u))"
        store = f"if (2u * i + 1u < P.n) {{ y_store_word(i, {pack}); }}"
    kernel = kernel_over(store, Binding("x", "f32"), Binding("y", name, "read_write", mode))
    n = len(values)
    (got,) = run_kernel(kernel, [values.numpy(), as_numpy(torch.empty_like(expected))], n, target, params=length(n))
    actual = as_torch(got, dtype)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(actual)[expected == 0], torch.signbit(expected)[expected == 0])


@pytest.mark.parametrize(
    "name", ["bool", "u8", "i8", "i16", "u16", "i32", "u32", "i64", "f16", "bf16", "f32", "f64", "c64"]
)
@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize("mode", ["plain", "atomic"])
def test_copies_reversed(name: str, windows: int, mode: str, target: Target) -> None:
    """Loads, stores and windows of every dtype: element i of the output is element n - 1 - i of the input."""
    if name == "f64" and (mode == "atomic" or not target.float64):
        with pytest.raises(ValueError, match="float64"):
            link(kernel_over("", Binding("y", name, "read_write", mode)), target)
        return
    dtype = BY_NAME[name]
    count = 3 * 256 // dtype.itemsize - 5
    source = as_torch(np.random.default_rng(2).integers(0, 256, count * dtype.itemsize).astype(np.uint8), dtype.torch)
    if dtype.kind in "bfdc":  # not every bit pattern comes back: NaN payloads, bools other than 0 and 1
        source = (torch.arange(count) % 2 if name == "bool" else torch.arange(count)).to(dtype.torch)
    small = replace(target, max_binding_bytes=300) if windows > 1 else target
    kernel = kernel_over(
        "y_store(i, x_load(P.n - 1u - i));", Binding("x", name), Binding("y", name, "read_write", mode)
    )
    arrays = [as_numpy(source), as_numpy(torch.zeros_like(source))]
    (got,) = run_kernel(kernel, arrays, count, small, (windows, windows), length(count))
    expected = as_numpy(source).reshape(count, dtype.itemsize)[::-1].ravel()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["u8", "i8", "i16", "u16", "f16", "bf16", "bool"])
def test_words(name: str, target: Target) -> None:
    """A thread that owns a word: unpack, change and pack each of its elements."""
    dtype = BY_NAME[name]
    per_word = 4 // dtype.itemsize
    source = torch.arange(-60 if name[0] != "u" else 0, 68 if name[0] != "u" else 128).to(dtype.torch)
    change = "!{}" if name == "bool" else "{} + 1" if dtype.kind == "i" else "{} + 1.0"
    element = change.format(f"{name}_unpack(word, k)")
    statements = f"""let word = x_load_word(i);
      var result = 0u;
      for (var k = 0u; k < {per_word}u; k += 1u) {{ result = {name}_pack(result, k, {element}); }}
      x_store_word(i, result);"""
    kernel = kernel_over(statements, Binding("x", name, "read_write", "word"))
    (got,) = run_kernel(kernel, [as_numpy(source)], 128 // per_word, target, params=length(128 // per_word))
    expected = ~source if name == "bool" else (source.double() + 1).to(dtype.torch)
    np.testing.assert_array_equal(got, as_numpy(expected))


def in_windows(name: str, windows: int, target: Target) -> tuple[DType, torch.Tensor, Target]:
    """A dtype, 480 bytes of it, and a target that binds them in so many windows, of two at most."""
    dtype = BY_NAME[name]
    count = 480 // dtype.itemsize
    source = (torch.arange(count) % 2 if name == "bool" else torch.arange(count) % 120).to(dtype.torch)
    return dtype, source, replace(target, max_binding_bytes=300) if windows > 1 else target


@pytest.mark.parametrize("windows", [1, 2])
@pytest.mark.parametrize("name", ["bool", "u8", "i8", "i16", "u16", "i32", "u32", "f16", "bf16", "f32"])
def test_groups_of_four(name: str, windows: int, target: Target) -> None:
    """Four elements at a time, reversed, beside single loads from the same buffer."""
    dtype, source, small = in_windows(name, windows, target)
    count = len(source)
    store = "var v = x_load4(i); v.z = x_load(4u * i + 2u); y_store4(P.n - 1u - i, v.wzyx);"
    kernel = kernel_over(store, Binding("x", name), Binding("y", name, "read_write"))
    arrays = [as_numpy(source), as_numpy(torch.zeros_like(source))]
    (got,) = run_kernel(kernel, arrays, count // 4, small, (windows, windows), length(count // 4))
    np.testing.assert_array_equal(got, as_numpy(source).reshape(count, dtype.itemsize)[::-1].ravel())


@pytest.mark.parametrize("windows", [1, 2])
@pytest.mark.parametrize("name", ["f16", "bf16", "i16", "i8", "u8", "bool"])
def test_groups_of_four_beside_whole_words(name: str, windows: int, target: Target) -> None:
    """As where one dispatch does the work of two kernels that read a buffer in different ways."""
    dtype, source, small = in_windows(name, windows, target)
    count = len(source)
    never = "x_load_words4(0u).x == 0xdeadbeefu && y_load_words4(0u).x == 7u"
    body = f"let v = x_load4(i); y_store4(i, select(v.wzyx, v, {never}));"
    kernel = kernel_over(body, Binding("x", name), Binding("y", name, "read_write"))
    start = as_numpy(torch.full_like(source, 1))
    arrays = [as_numpy(source), start]
    (got,) = run_kernel(kernel, arrays, count // 4, small, (windows, windows), length(count // 4))
    np.testing.assert_array_equal(got, as_numpy(source).reshape(-1, 4, dtype.itemsize)[:, ::-1].ravel())


ATOMIC = ["bool", "u8", "i8", "i16", "i32", "u32", "f16", "bf16", "f32", "i64", "c64"]


# 64-bit types have no atomic minimum and maximum: two words cannot be compared in one operation on every adapter.
@pytest.mark.parametrize(
    ("op", "name"),
    [("add", name) for name in ATOMIC] + [(op, name) for op in ("min", "max") for name in ATOMIC[:-2]],
)
def test_atomics(name: str, op: str, target: Target) -> None:
    """2048 threads combine into 8 elements; values are small enough for exact sums in every dtype."""
    dtype = BY_NAME[name]
    integers = torch.from_numpy(np.random.default_rng(3).integers(-3, 4, 2048))
    values = integers.clamp(min=0) if name in ("bool", "u8", "u32") else integers
    values = (values * 0x40000001 if name == "i64" else values % 2 if name in ("f16", "bf16") else values).to(
        dtype.torch
    )
    start = torch.zeros(8, dtype=dtype.torch)
    kernel = kernel_over(
        f"y_atomic_{op}((i * 7u) % 8u, x_load(i));", Binding("x", name), Binding("y", name, "read_write", "atomic")
    )
    (got,) = run_kernel(kernel, [as_numpy(values), as_numpy(start)], 2048, target, params=length(2048))
    rows = values.view(256, 8)[:, (torch.arange(8) * 7) % 8]
    if op == "add":
        expected = rows.any(0) if name == "bool" else rows.to(torch.complex64 if name == "c64" else torch.int64).sum(0)
    else:
        wide = torch.cat([rows, start[None]]).to(torch.int64)
        expected = wide.amin(0) if op == "min" else wide.amax(0)
    torch.testing.assert_close(as_torch(got, dtype.torch), expected.to(dtype.torch), rtol=0, atol=0)


def test_native_float_atomics() -> None:
    if "shader-float32-atomic" not in device().features:
        pytest.skip("the adapter lacks shader-float32-atomic")
    target = replace(NATIVE, float32_atomics=True)
    kernel = kernel_over(
        "y_atomic_add(i % 2u, x_load(i));", Binding("x", "f32"), Binding("y", "f32", "read_write", "atomic")
    )
    assert "atomic<f32>" in link(kernel, target).source
    values = np.ones(1000, np.float32)
    (got,) = run_kernel(kernel, [values, np.zeros(2, np.float32)], 1000, target, params=length(1000))
    np.testing.assert_array_equal(got, [500.0, 500.0])


# 64-bit integers

EDGES = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    -7,
    63,
    64,
    65,
    -64,
    2**31,
    -(2**31),
    2**32,
    2**32 - 1,
    -(2**32),
    2**53 + 1,
    2**63 - 1,
    -(2**63),
]


def int64_pairs() -> tuple[np.ndarray, np.ndarray]:
    """All pairs of edge cases and random pairs of every magnitude."""
    edges = np.array(EDGES, np.int64)
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-(2**63), 2**63 - 1, 4000, dtype=np.int64) >> rng.integers(0, 64, 4000) for _ in range(2))
    return np.concatenate([np.repeat(edges, len(edges)), a]), np.concatenate([np.tile(edges, len(edges)), b])


def torch_int64(operation, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return operation(torch.from_numpy(a), torch.from_numpy(b)).numpy()


INT64_BINARY = {
    "i64_add": torch.add, "i64_sub": torch.sub, "i64_mul": torch.mul, "i64_and": torch.bitwise_and,
    "i64_or": torch.bitwise_or, "i64_xor": torch.bitwise_xor, "i64_min": torch.minimum, "i64_max": torch.maximum,
    "i64_gcd": torch.gcd, "i64_lcm": torch.lcm, "i64_shl": torch.bitwise_left_shift,
    "i64_shr": torch.bitwise_right_shift,
}  # fmt: skip


@pytest.mark.parametrize("function", INT64_BINARY)
def test_int64_binary(function: str, target: Target) -> None:
    a, b = int64_pairs()
    if function in ("i64_gcd", "i64_lcm"):  # the magnitude of the smallest value overflows in CPU PyTorch too
        keep = (a != -(2**63)) & (b != -(2**63))
        a, b = a[keep], b[keep]
    np.testing.assert_array_equal(
        call(function, a, b, result="i64", target=target), torch_int64(INT64_BINARY[function], a, b)
    )


@pytest.mark.parametrize("function", ["i64_div", "i64_rem", "i64_floordiv", "i64_mod"])
def test_int64_division(function: str, target: Target) -> None:
    a, b = int64_pairs()

    def exact(x: int, y: int) -> int:
        if y == 0:
            return 0
        truncated = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        results = {"i64_div": truncated, "i64_rem": x - truncated * y, "i64_floordiv": x // y, "i64_mod": x % y}
        return (results[function] + 2**63) % 2**64 - 2**63

    expected = [exact(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(call(function, a, b, result="i64", target=target), expected)


@pytest.mark.parametrize("function", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_int64_comparison(function: str, target: Target) -> None:
    a, b = int64_pairs()
    expected = getattr(torch, function)(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_array_equal(call(f"i64_{function}", a, b, result="bool", target=target), expected)


@pytest.mark.parametrize("function", ["neg", "abs", "sign", "not"])
def test_int64_unary(function: str, target: Target) -> None:
    a, _ = int64_pairs()
    operation = torch.bitwise_not if function == "not" else getattr(torch, function)
    expected = operation(torch.from_numpy(a)).numpy()
    np.testing.assert_array_equal(call(f"i64_{function}", a, result="i64", target=target), expected)


def test_int64_power(target: Target) -> None:
    a, b = int64_pairs()
    b = b % 70 - 3
    expected = torch.from_numpy(a).pow(torch.from_numpy(b)).numpy() if (b >= 0).all() else None
    expected = np.array([_power(int(x), int(n)) for x, n in zip(a, b, strict=True)]) if expected is None else expected
    np.testing.assert_array_equal(call("i64_pow", a, b, result="i64", target=target), expected)


def _power(x: int, n: int) -> int:
    if n < 0:
        return {1: 1, -1: 1 if n % 2 == 0 else -1}.get(x, 0)
    return (pow(x, n) + 2**63) % 2**64 - 2**63


def test_int64_conversions(target: Target) -> None:
    a, b = int64_pairs()
    a = np.concatenate([a, b, (1 << 24) + np.arange(-300, 300), (1 << 60) + (np.arange(-300, 300) << 34)])
    np.testing.assert_array_equal(call("i64_to_f32", a, target=target), torch.from_numpy(a).float().numpy())
    np.testing.assert_array_equal(call("i64_to_i32", a, result="i32", target=target), torch.from_numpy(a).int().numpy())
    np.testing.assert_array_equal(call("i64_to_u32", a, result="u32", target=target), a.astype(np.uint32))
    low = a.astype(np.int32)
    np.testing.assert_array_equal(call("i64_from_i32", low, result="i64", target=target), low.astype(np.int64))
    unsigned = a.astype(np.uint32)
    np.testing.assert_array_equal(
        call("i64_from_u32", unsigned, result="i64", target=target), unsigned.astype(np.int64)
    )
    floats = np.concatenate([many_f32(), a.astype(np.float32), np.linspace(-5, 5, 101, dtype=np.float32)])
    inside = np.abs(floats) < 2.0**63  # false for NaN
    expected = np.where(inside, np.trunc(np.where(inside, floats, 0)).astype(np.int64), -(2**63))
    np.testing.assert_array_equal(call("i64_from_f32", floats, result="i64", target=target), expected)


@pytest.mark.parametrize("function", ["div", "rem", "floordiv", "mod", "pow", "shl", "shr", "gcd"])
def test_int32_operators(function: str) -> None:
    edges = np.array([0, 1, -1, 2, -3, 7, 31, 32, 33, 2**31 - 1, -(2**31), 46341], np.int32)
    a, b = np.repeat(edges, len(edges)), np.tile(edges, len(edges))
    if function == "gcd":
        a, b = a[(a != -(2**31)) & (b != -(2**31))], b[(a != -(2**31)) & (b != -(2**31))]

    def exact(x: int, y: int) -> int:
        truncated = 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        results = {
            "div": lambda: truncated,
            "rem": lambda: 0 if y == 0 else x - truncated * y,
            "floordiv": lambda: 0 if y == 0 else x // y,
            "mod": lambda: 0 if y == 0 else x % y,
            "pow": lambda: pow(x, y, 2**32) if y >= 0 else _power(x, y),
            "shl": lambda: x << y if 0 <= y < 32 else 0,
            "shr": lambda: x >> (y if 0 <= y < 32 else 31),
            "gcd": lambda: int(np.gcd(x, y)),
        }
        return (results[function]() + 2**31) % 2**32 - 2**31

    expected = [exact(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(call(f"i32_{function}", a, b, result="i32"), expected)
