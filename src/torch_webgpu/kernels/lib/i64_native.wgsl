// 64-bit integers where the host has them; the same names as i64_emulated.wgsl. Arithmetic wraps.

alias I64 = i64;

fn i64_make(lo: u32, hi: u32) -> I64 { return i64_from_u32(lo) | (i64(hi) << 32u); }

fn i64_lo(a: I64) -> u32 { return u32(a); }

fn i64_hi(a: I64) -> u32 { return u32(a >> 32u); }

fn i64_from_i32(v: i32) -> I64 { return i64(v); }

// naga 29's own conversion from u32 extends the sign bit, hence the mask.
fn i64_from_u32(v: u32) -> I64 { return i64(v) & 0xffffffffli; }

fn i64_add(a: I64, b: I64) -> I64 { return a + b; }

fn i64_sub(a: I64, b: I64) -> I64 { return a - b; }

// The 64-bit product of two words: (low, high).
fn u32_mul_wide(a: u32, b: u32) -> vec2<u32> {
  let product = u64(a) * u64(b);
  return vec2<u32>(u32(product), u32(product >> 32u));
}

fn i64_mul(a: I64, b: I64) -> I64 { return a * b; }

fn i64_neg(a: I64) -> I64 { return i64_from_i32(0) - a; }

// Truncates towards zero. Division by zero gives 0, and the smallest value by -1 wraps to itself.
fn i64_div(a: I64, b: I64) -> I64 {
  if (b == 0li) { return 0li; }
  if (b == -1li) { return i64_neg(a); }
  return a / b;
}

// The sign of the dividend. The remainder of a division by zero is 0.
fn i64_rem(a: I64, b: I64) -> I64 {
  if (b == 0li || b == -1li) { return 0li; }
  return a - (a / b) * b;
}

fn i64_and(a: I64, b: I64) -> I64 { return a & b; }

fn i64_or(a: I64, b: I64) -> I64 { return a | b; }

fn i64_xor(a: I64, b: I64) -> I64 { return a ^ b; }

fn i64_not(a: I64) -> I64 { return ~a; }

// Shifts by less than 64; see i64_shl and i64_shr for any other.
fn i64_shl_u32(a: I64, n: u32) -> I64 { return a << n; }

fn i64_shr_u32(a: I64, n: u32) -> I64 { return a >> n; }

fn i64_eq(a: I64, b: I64) -> bool { return a == b; }

fn i64_lt(a: I64, b: I64) -> bool { return a < b; }
