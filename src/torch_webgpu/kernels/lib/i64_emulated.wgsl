// 64-bit integers as (low, high) words where the host has none; the same names as i64_native.wgsl. Arithmetic wraps.

alias I64 = vec2<u32>;

fn i64_make(lo: u32, hi: u32) -> I64 { return vec2<u32>(lo, hi); }

fn i64_lo(a: I64) -> u32 { return a.x; }

fn i64_hi(a: I64) -> u32 { return a.y; }

fn i64_from_i32(v: i32) -> I64 { return vec2<u32>(bitcast<u32>(v), bitcast<u32>(v >> 31u)); }

fn i64_from_u32(v: u32) -> I64 { return vec2<u32>(v, 0u); }

fn i64_add(a: I64, b: I64) -> I64 {
  let lo = a.x + b.x;
  return vec2<u32>(lo, a.y + b.y + select(0u, 1u, lo < a.x));
}

fn i64_sub(a: I64, b: I64) -> I64 { return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x)); }

// The 64-bit product of two words: (low, high).
fn u32_mul_wide(a: u32, b: u32) -> vec2<u32> {
  let a0 = a & 0xffffu;
  let a1 = a >> 16u;
  let b0 = b & 0xffffu;
  let b1 = b >> 16u;
  let low = a0 * b0;
  let middle = a1 * b0 + (low >> 16u);
  let carry = a0 * b1 + (middle & 0xffffu);
  return vec2<u32>(a * b, a1 * b1 + (middle >> 16u) + (carry >> 16u));
}

fn i64_mul(a: I64, b: I64) -> I64 {
  let product = u32_mul_wide(a.x, b.x);
  return vec2<u32>(product.x, product.y + a.x * b.y + a.y * b.x);
}

fn i64_neg(a: I64) -> I64 { return i64_sub(vec2<u32>(0u, 0u), a); }

// Quotient (xy) and remainder (zw) of magnitudes up to 2^63; b is not zero. By words first and then by bits.
fn i64_divmod_magnitudes(a: I64, b: I64) -> vec4<u32> {
  if ((a.y | b.y) == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var high = 0u;
  var rest = vec2<u32>(a.y, 0u);
  if (b.y == 0u) {
    high = a.y / b.x;
    rest.x = a.y % b.x;
  }
  var low = 0u;
  for (var step = 0u; step < 32u; step += 1u) {
    rest = vec2<u32>((rest.x << 1u) | ((a.x >> (31u - step)) & 1u), (rest.y << 1u) | (rest.x >> 31u));
    low = low << 1u;
    if (rest.y > b.y || (rest.y == b.y && rest.x >= b.x)) {
      rest = i64_sub(rest, b);
      low |= 1u;
    }
  }
  return vec4<u32>(low, high, rest.x, rest.y);
}

// Truncates towards zero. Division by zero gives 0, and the smallest value by -1 wraps to itself.
fn i64_div(a: I64, b: I64) -> I64 {
  if ((b.x | b.y) == 0u) { return vec2<u32>(0u, 0u); }
  let quotient = i64_divmod_magnitudes(i64_abs(a), i64_abs(b)).xy;
  return select(quotient, i64_neg(quotient), ((a.y ^ b.y) >> 31u) != 0u);
}

// The sign of the dividend. The remainder of a division by zero is 0.
fn i64_rem(a: I64, b: I64) -> I64 {
  if ((b.x | b.y) == 0u) { return vec2<u32>(0u, 0u); }
  let rest = i64_divmod_magnitudes(i64_abs(a), i64_abs(b)).zw;
  return select(rest, i64_neg(rest), (a.y >> 31u) != 0u);
}

fn i64_and(a: I64, b: I64) -> I64 { return a & b; }

fn i64_or(a: I64, b: I64) -> I64 { return a | b; }

fn i64_xor(a: I64, b: I64) -> I64 { return a ^ b; }

fn i64_not(a: I64) -> I64 { return ~a; }

// Shifts by less than 64; see i64_shl and i64_shr for any other.
fn i64_shl_u32(a: I64, n: u32) -> I64 {
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

fn i64_shr_u32(a: I64, n: u32) -> I64 {
  if (n == 0u) { return a; }
  let high = bitcast<i32>(a.y);
  if (n >= 32u) { return vec2<u32>(bitcast<u32>(high >> (n - 32u)), bitcast<u32>(high >> 31u)); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}

fn i64_eq(a: I64, b: I64) -> bool { return a.x == b.x && a.y == b.y; }

fn i64_lt(a: I64, b: I64) -> bool {
  return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}
