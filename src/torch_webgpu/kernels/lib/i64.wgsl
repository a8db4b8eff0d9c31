// What follows from the primitives of i64_native.wgsl or i64_emulated.wgsl, whichever the host gets.

fn i64_from_bool(v: bool) -> I64 { return i64_from_u32(select(0u, 1u, v)); }

// Truncates; out of range and NaN give the smallest value, as C's conversion does on x86.
fn i64_from_f32(v: f32) -> I64 {
  let bits = bitcast<u32>(v);
  if ((bits & 0x7fffffffu) >= 0x5f000000u) { return i64_make(0u, 0x80000000u); }
  let magnitude = abs(v);
  let high = floor(magnitude * 2.3283064365386963e-10);
  let result = i64_make(u32(magnitude - high * 4294967296.0), u32(high));
  return i64_select(result, i64_neg(result), (bits >> 31u) != 0u);
}

fn i64_to_i32(a: I64) -> i32 { return bitcast<i32>(i64_lo(a)); }

fn i64_to_u32(a: I64) -> u32 { return i64_lo(a); }

// Rounds to nearest even, whatever the driver's own conversions do.
fn i64_to_f32(a: I64) -> f32 {
  let magnitude = i64_abs(a);
  if (i64_is_zero(a)) { return 0.0; }
  let high_bits = i64_hi(magnitude);
  let zeros = select(32u + countLeadingZeros(i64_lo(magnitude)), countLeadingZeros(high_bits), high_bits != 0u);
  let normal = i64_shl_u32(magnitude, zeros);
  let top = i64_hi(normal);
  let rest = top & 0xffu;
  let kept = top >> 8u;
  let round_up = rest > 0x80u || (rest == 0x80u && (i64_lo(normal) != 0u || (kept & 1u) != 0u));
  let exponent = (189u - zeros) << 23u;
  return bitcast<f32>((i64_hi(a) & 0x80000000u) | (exponent + kept + select(0u, 1u, round_up)));
}

fn i64_abs(a: I64) -> I64 { return i64_select(a, i64_neg(a), (i64_hi(a) >> 31u) != 0u); }

fn i64_sign(a: I64) -> I64 {
  let negative = bitcast<i32>(i64_hi(a)) >> 31u;
  return i64_select(i64_from_i32(negative | 1), i64_from_i32(0), i64_is_zero(a));
}

// Rounds towards minus infinity; division by zero gives 0 (CPU PyTorch raises).
fn i64_floordiv(a: I64, b: I64) -> I64 {
  let quotient = i64_div(a, b);
  let rest = i64_sub(a, i64_mul(quotient, b));
  let below = !i64_is_zero(rest) && !i64_is_zero(b) && ((i64_hi(rest) ^ i64_hi(b)) >> 31u) != 0u;
  return i64_select(quotient, i64_sub(quotient, i64_from_i32(1)), below);
}

// The sign of the divisor, as Python's %; by zero 0.
fn i64_mod(a: I64, b: I64) -> I64 {
  let rest = i64_rem(a, b);
  let opposite = !i64_is_zero(rest) && ((i64_hi(rest) ^ i64_hi(b)) >> 31u) != 0u;
  return i64_select(rest, i64_add(rest, b), opposite);
}

// PyTorch's shifts: outside [0, 63] nothing of the value is left but, to the right, its sign.
fn i64_shl(a: I64, n: I64) -> I64 {
  let small = i64_hi(n) == 0u && i64_lo(n) < 64u;
  return i64_select(i64_from_i32(0), i64_shl_u32(a, i64_lo(n) & 63u), small);
}

fn i64_shr(a: I64, n: I64) -> I64 {
  let small = i64_hi(n) == 0u && i64_lo(n) < 64u;
  return i64_shr_u32(a, select(63u, i64_lo(n) & 63u, small));
}

fn i64_ne(a: I64, b: I64) -> bool { return !i64_eq(a, b); }

fn i64_le(a: I64, b: I64) -> bool { return !i64_lt(b, a); }

fn i64_gt(a: I64, b: I64) -> bool { return i64_lt(b, a); }

fn i64_ge(a: I64, b: I64) -> bool { return !i64_lt(a, b); }

fn i64_min(a: I64, b: I64) -> I64 { return i64_select(b, a, i64_lt(a, b)); }

fn i64_max(a: I64, b: I64) -> I64 { return i64_select(b, a, i64_lt(b, a)); }

fn i64_select(if_false: I64, if_true: I64, condition: bool) -> I64 { return select(if_false, if_true, condition); }

fn i64_is_zero(a: I64) -> bool { return (i64_lo(a) | i64_hi(a)) == 0u; }

// Wraps. A negative exponent gives what rounding 1 / a^n towards zero gives: 0, or +-1 for a = +-1.
fn i64_pow(a: I64, n: I64) -> I64 {
  let one = i64_from_i32(1);
  let odd = (i64_lo(n) & 1u) != 0u;
  if ((i64_hi(n) >> 31u) != 0u) {
    if (i64_eq(a, one)) { return one; }
    if (i64_eq(a, i64_from_i32(-1))) { return i64_select(one, i64_from_i32(-1), odd); }
    return i64_from_i32(0);
  }
  var result = one;
  var base = a;
  var lo = i64_lo(n);
  var hi = i64_hi(n);
  for (var step = 0u; step < 64u && (lo | hi) != 0u; step += 1u) {
    if ((lo & 1u) != 0u) { result = i64_mul(result, base); }
    base = i64_mul(base, base);
    lo = (lo >> 1u) | (hi << 31u);
    hi = hi >> 1u;
  }
  return result;
}

fn i64_gcd(a: I64, b: I64) -> I64 {
  var x = i64_abs(a);
  var y = i64_abs(b);
  for (var step = 0u; step < 128u && !i64_is_zero(y); step += 1u) {
    let rest = i64_rem(x, y);
    x = y;
    y = rest;
  }
  return x;
}

fn i64_lcm(a: I64, b: I64) -> I64 {
  let divisor = i64_gcd(a, b);
  return i64_abs(i64_mul(i64_div(a, divisor), b));
}
