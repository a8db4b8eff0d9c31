// Remainders, neighbours and parts of doubles.

// Without round and trunc, for which lavapipe takes doubles from 2^24 on for whole (seen where there is no AVX-512).
fn trunc_d(x: f64) -> f64 { return copysign_d(floor(abs(x)), x); }

// Halves to the even one.
fn round_d(x: f64) -> f64 {
  let magnitude = abs(x);
  if (!(magnitude < 4503599627370496.0lf)) { return x; }
  var rounded = floor(magnitude);
  let rest = magnitude - rounded;
  if (rest > 0.5lf || (rest == 0.5lf && 2.0lf * floor(0.5lf * rounded) != rounded)) { rounded += 1.0lf; }
  return copysign_d(rounded, x);
}

// C's fmod, exact: the divisor, doubled until it is as large as the dividend and halved again, is taken off where it can
// be. Each difference is one of numbers whose ratio is below two, which has no error.
fn fmod_d(a: f64, b: f64) -> f64 {
  let size = abs(b);
  if (!isfinite_d(a) || isnan_d(b) || size == 0.0lf) { return nan_d(); }
  var rest = abs(a);
  if (rest < size) { return a; }
  let steps = i32(split_d(rest).e - split_d(size).e) + 1;
  // Where that is beyond the range it is never taken off.
  var part = scale_far_d(size, steps);
  if (!isfinite_d(part)) { part = scale_far_d(size, steps - 1); }
  if (!isfinite_d(part)) { part = scale_far_d(size, steps - 2); }
  for (var step = 0; step <= steps; step += 1) {
    if (rest >= part) { rest -= part; }
    part *= 0.5lf;
    if (part < size) { break; }
  }
  return copysign_d(rest, a);
}

// x * 2^n of any n, half of the way each.
fn scale_far_d(x: f64, n: i32) -> f64 { return scale_d(scale_d(x, n / 2), n - n / 2); }

// Python's %: the sign of the divisor.
fn remainder_d(a: f64, b: f64) -> f64 {
  let rest = fmod_d(a, b);
  if (rest != 0.0lf && (rest < 0.0lf) != (b < 0.0lf)) { return rest + b; }
  return rest;
}

// Python's //, as c10::div_floor_floating rounds it.
fn floor_divide_d(a: f64, b: f64) -> f64 {
  if (b == 0.0lf) { return a / b; }
  if (!isfinite_d(a) || isnan_d(b)) { return nan_d(); }
  let rest = fmod_d(a, b);
  var quotient = (a - rest) / b;
  if (rest != 0.0lf && (rest < 0.0lf) != (b < 0.0lf)) { quotient -= 1.0lf; }
  if (quotient == 0.0lf) { return copysign_d(0.0lf, select(1.0lf, -1.0lf, signbit_d(a) != signbit_d(b))); }
  let lower = floor(quotient);
  return select(lower, lower + 1.0lf, quotient - lower > 0.5lf);
}

// torch.fmin and torch.fmax: the other operand where one is NaN.
fn fmin_d(a: f64, b: f64) -> f64 {
  if (isnan_d(a)) { return b; }
  return select(select(b, a, a < b), a, isnan_d(b));
}

fn fmax_d(a: f64, b: f64) -> f64 {
  if (isnan_d(a)) { return b; }
  return select(select(b, a, a > b), a, isnan_d(b));
}

fn sign_d(x: f64) -> f64 { return f64(select(0.0, 1.0, x > 0.0lf) - select(0.0, 1.0, x < 0.0lf)); }

// torch.frexp: mantissa in [0.5, 1) with the sign of x, and exponent.
fn frexp_d(x: f64) -> Split_d {
  let split = split_d(abs(x));
  let large = split.m >= 1.0lf;
  return Split_d(copysign_d(select(split.m, 0.5lf * split.m, large), x), split.e + select(0.0lf, 1.0lf, large));
}

fn frexp_mantissa_d(x: f64) -> f64 {
  if (x == 0.0lf || !isfinite_d(x)) { return x; }
  return frexp_d(x).m;
}

fn frexp_exponent_d(x: f64) -> i32 {
  if (x == 0.0lf || !isfinite_d(x)) { return 0; }
  return i32(frexp_d(x).e);
}

fn hypot_d(a: f64, b: f64) -> f64 {
  let large = max(abs(a), abs(b));
  let small = min(abs(a), abs(b));
  if (abs(a) == inf_d() || abs(b) == inf_d()) { return inf_d(); }
  if (isnan_d(a) || isnan_d(b)) { return nan_d(); }
  if (large == 0.0lf) { return 0.0lf; }
  let n = i32(split_d(large).e);
  let x = scale_d(large, -n);
  let y = scale_d(small, -n);
  return scale_d(sqrt(x * x + y * y), n);
}

fn nextafter_d(x: f64, towards: f64) -> f64 {
  if (isnan_d(x) || isnan_d(towards)) { return nan_d(); }
  if (x == towards) { return towards; }
  let least = scale_d(1.0lf, -1074);
  if (x == 0.0lf) { return copysign_d(least, towards); }
  let a = abs(x);
  let grows = (towards > x) == (x > 0.0lf);
  if (!isfinite_d(x)) { return copysign_d(1.7976931348623157e308lf, x); }
  let parts = frexp_d(a);
  // Below a power of two neighbours are half as far apart.
  let exponent = i32(parts.e) - select(0, 1, !grows & (parts.m == 0.5lf));
  let distance = max(scale_d(1.0lf, exponent - 53), least);
  return copysign_d(select(a - distance, a + distance, grows), x);
}
