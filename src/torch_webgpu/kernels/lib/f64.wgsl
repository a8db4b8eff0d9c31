// Doubles, on the adapters that have them. Only naga knows the type.

// (a + b + c) * 2^n, the sum in [1, 2): a scalar argument, whose 53 bits travel in three f32.
// 2^n in factors that all grow or all shrink: in whichever order a compiler multiplies, nothing leaves the range.
// Without loops: kernels call this for each of their scalars, and LLVM 15 never ends with dozens of them.
fn f64_join(a: f32, b: f32, c: f32, n: i32) -> f64 {
  let size = u32(abs(n)); // SPIR-V leaves % open for negative numbers
  let sixteenth = i32(size >> 4u);
  let rest = i32(size & 15u);
  let root = f64(power_of_two(select(sixteenth, -sixteenth, n < 0)));
  let square = root * root;
  let eighth = (square * square) * (square * square);
  return (f64(a) + f64(b) + f64(c)) * f64(power_of_two(select(rest, -rest, n < 0))) * eighth * eighth;
}

// Truncates; out of range and NaN give the smallest value, as C's conversion does on x86.
fn i64_from_f64(v: f64) -> I64 {
  let magnitude = floor(abs(v));
  if (!(magnitude < 9223372036854775808.0lf)) { return i64_make(0u, 0x80000000u); }
  let high = floor(magnitude / 4294967296.0lf);
  let result = i64_make(u32(magnitude - high * 4294967296.0lf), u32(high));
  return i64_select(result, i64_neg(result), v < 0.0lf);
}

fn i64_to_f64(a: I64) -> f64 {
  return f64(bitcast<i32>(i64_hi(a))) * 4294967296.0lf + f64(i64_lo(a));
}

fn isinf_d(v: f64) -> bool { return abs(v) > 1.7976931348623157e308lf; }

fn min_d(a: f64, b: f64) -> f64 { return select(select(b, a, a < b), a, !(a == a)); }

fn max_d(a: f64, b: f64) -> f64 { return select(select(b, a, a > b), a, !(a == a)); }
