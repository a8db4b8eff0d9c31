// 32-bit integers where WGSL's own operators differ from PyTorch's. The smaller integer types compute here too.

// Truncates towards zero. Division by zero gives 0 (CPU PyTorch raises), the smallest value by -1 wraps.
fn i32_div(a: i32, b: i32) -> i32 {
  if (b == 0) { return 0; }
  if (b == -1) { return 0 - a; }
  return a / b;
}

fn i32_rem(a: i32, b: i32) -> i32 {
  if (b == 0 || b == -1) { return 0; }
  return a - (a / b) * b;
}

// Rounds towards minus infinity.
fn i32_floordiv(a: i32, b: i32) -> i32 {
  let quotient = i32_div(a, b);
  let rest = a - quotient * b;
  return quotient - select(0, 1, (rest != 0) & (b != 0) & ((rest ^ b) < 0));
}

// The sign of the divisor, as Python's %.
fn i32_mod(a: i32, b: i32) -> i32 {
  let rest = i32_rem(a, b);
  return rest + select(0, b, (rest != 0) & ((rest ^ b) < 0));
}

// PyTorch's shifts: outside [0, 31] nothing of the value is left but, to the right, its sign. For the smaller types,
// whose values are sign- or zero-extended here and wrapped when they are stored, that comes out as their own limits.
fn i32_shl(a: i32, n: i32) -> i32 { return select(0, a << (bitcast<u32>(n) & 31u), (n >= 0) & (n < 32)); }

fn i32_shr(a: i32, n: i32) -> i32 { return a >> select(31u, bitcast<u32>(n) & 31u, (n >= 0) & (n < 32)); }

// Wraps. A negative exponent gives 0, or +-1 for a = +-1.
fn i32_pow(a: i32, n: i32) -> i32 {
  let odd = (n & 1) != 0;
  if (n < 0) {
    if (a == 1) { return 1; }
    if (a == -1) { return select(1, -1, odd); }
    return 0;
  }
  var result = 1;
  var base = a;
  for (var rest = n; rest != 0; rest = rest >> 1u) {
    if ((rest & 1) != 0) { result *= base; }
    base *= base;
  }
  return result;
}

fn i32_gcd(a: i32, b: i32) -> i32 {
  var x = abs(a);
  var y = abs(b);
  for (var step = 0u; step < 64u && y != 0; step += 1u) {
    let rest = i32_rem(x, y);
    x = y;
    y = rest;
  }
  return x;
}

fn i32_lcm(a: i32, b: i32) -> i32 { return abs(i32_div(a, i32_gcd(a, b)) * b); }

// Truncates; out of range and NaN give the smallest value, as C's conversion does on x86.
fn i32_from_f32(v: f32) -> i32 {
  if ((bitcast<u32>(v) & 0x7fffffffu) >= 0x4f000000u) { return bitcast<i32>(0x80000000u); }
  return i32(v);
}
