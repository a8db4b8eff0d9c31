// 8-bit floats as their codes in u8 (an i32) from and to f32, rounded to nearest even as c10's. Named by exponent and
// mantissa bits; "fn" has no infinities, "uz" no negative zero either and its one NaN in that place.

fn float8_number(code: i32, mantissa_bits: u32, bias: u32) -> f32 {
  let magnitude = u32(code) & 0x7fu;
  let sign = (u32(code) & 0x80u) << 24u;
  if (magnitude < (1u << mantissa_bits)) {
    return bitcast<f32>(sign | bitcast<u32>(f32(magnitude) * bitcast<f32>((128u - bias - mantissa_bits) << 23u)));
  }
  return bitcast<f32>(sign | ((magnitude << (23u - mantissa_bits)) + ((127u - bias) << 23u)));
}

// The code of a number's magnitude, which may come out one too large for the type.
fn float8_code(magnitude: u32, mantissa_bits: u32, bias: u32) -> u32 {
  if (magnitude < ((128u - bias) << 23u)) {
    // A power of two with the unit in the last place of the type's denormals, so that the addition does the rounding.
    let unit = (151u - bias - mantissa_bits) << 23u;
    return bitcast<u32>(bitcast<f32>(magnitude) + bitcast<f32>(unit)) - unit;
  }
  let shift = 23u - mantissa_bits;
  let rebased = magnitude - ((127u - bias) << 23u);
  return (rebased + (1u << (shift - 1u)) - 1u + ((rebased >> shift) & 1u)) >> shift;
}

fn f32_from_float8_e4m3fn(code: i32) -> f32 {
  if ((code & 0x7f) == 0x7f) { return bitcast<f32>(((u32(code) & 0x80u) << 24u) | 0x7fc00000u); }
  return float8_number(code, 3u, 7u);
}

fn float8_e4m3fn_from_f32(v: f32) -> i32 {
  let bits = bitcast<u32>(v);
  return i32(((bits >> 24u) & 0x80u) | min(float8_code(min(bits & 0x7fffffffu, 0x43f00000u), 3u, 7u), 0x7fu));
}

fn f32_from_float8_e5m2(code: i32) -> f32 {
  return f16_to_f32(u32(code) << 8u);
}

fn float8_e5m2_from_f32(v: f32) -> i32 {
  let bits = bitcast<u32>(v);
  let magnitude = bits & 0x7fffffffu;
  let code = min(float8_code(min(magnitude, 0x47800000u), 2u, 15u), 0x7cu);
  return i32(((bits >> 24u) & 0x80u) | select(code, 0x7fu, magnitude > 0x7f800000u));
}

fn f32_from_float8_e4m3fnuz(code: i32) -> f32 {
  if (code == 0x80) { return nan_f(); }
  return float8_number(code, 3u, 8u);
}

fn float8_e4m3fnuz_from_f32(v: f32) -> i32 {
  let bits = bitcast<u32>(v);
  let code = float8_code(min(bits & 0x7fffffffu, 0x43800000u), 3u, 8u);
  return i32(select(((bits >> 24u) & 0x80u) | code, 0u, code == 0u));
}

fn f32_from_float8_e5m2fnuz(code: i32) -> f32 {
  if (code == 0x80) { return nan_f(); }
  return float8_number(code, 2u, 16u);
}

fn float8_e5m2fnuz_from_f32(v: f32) -> i32 {
  let bits = bitcast<u32>(v);
  let code = float8_code(min(bits & 0x7fffffffu, 0x47800000u), 2u, 16u);
  return i32(select(((bits >> 24u) & 0x80u) | code, 0u, code == 0u));
}

// An exponent alone: powers of two, and NaN.
fn f32_from_float8_e8m0fnu(code: i32) -> f32 {
  if (code == 0xff) { return nan_f(); }
  return bitcast<f32>(select(u32(code) << 23u, 0x400000u, code == 0));
}

fn float8_e8m0fnu_from_f32(v: f32) -> i32 {
  let bits = bitcast<u32>(v);
  let exponent = (bits >> 23u) & 0xffu;
  let up = (bits & 0x400000u) != 0u && ((bits & 0x3fffffu) != 0u || exponent != 0u);
  return i32(select(exponent, exponent + 1u, up & (exponent != 0xffu)));
}
