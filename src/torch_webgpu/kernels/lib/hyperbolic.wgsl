// Hyperbolic functions and their inverses, from expm1 and log1p where differences would cancel.

fn sinh_f(x: f32) -> f32 {
  let a = abs(x);
  if (isnan_f(x) || a < 1e-4) { return x; }
  if (a > 80.0) {
    let root = exp_f(0.5 * a);
    return copysign_f((0.5 * root) * root, x);
  }
  let t = expm1_f(a);
  return copysign_f(0.5 * (t + t / (t + 1.0)), x);
}

fn cosh_f(x: f32) -> f32 {
  let a = abs(x);
  if (a > 80.0) {
    let root = exp_f(0.5 * a);
    return (0.5 * root) * root;
  }
  let e = exp_f(a);
  return 0.5 * e + 0.5 / e;
}

// Both forms are evaluated: a branch would cost neighbouring threads both anyway. The error of exp2, which WGSL allows 3 to
// 50 units in the last place and GPUs make of 2, shrinks by a third or more on the way. NaN takes the polynomial.
// Twice a reciprocal takes less time than a quotient and rounds to the same: 4 % of a chain with four of these on an H200.
fn tanh_f(x: f32) -> f32 {
  let a = abs(x);
  let z = x * x;
  var p = -5.70498872745e-3;
  p = p * z + 2.06390887954e-2;
  p = p * z - 5.37397155531e-2;
  p = p * z + 1.33314422036e-1;
  p = p * z - 3.33332819422e-1;
  let large = 1.0 - 2.0 * (1.0 / (exp2(min(a, 20.0) * 2.8853900817779268) + 1.0));
  return copysign_f(select(p * z * a + a, large, a >= 0.625), x);
}

fn asinh_f(x: f32) -> f32 {
  let a = abs(x);
  if (isnan_f(x)) { return x; }
  if (a > 4096.0) { return copysign_f(log_f(a) + 0.69314718055994531, x); }
  let z = a * a;
  return copysign_f(log1p_f(a + z / (1.0 + sqrt(z + 1.0))), x);
}

fn acosh_f(x: f32) -> f32 {
  if (!(x >= 1.0)) { return nan_f(); }
  if (x > 4096.0) { return log_f(x) + 0.69314718055994531; }
  let t = x - 1.0;
  return log1p_f(t + sqrt(2.0 * t + t * t));
}

fn atanh_f(x: f32) -> f32 {
  let a = abs(x);
  if (!(a <= 1.0)) { return nan_f(); }
  if (a == 1.0) { return copysign_f(inf_f(), x); }
  return copysign_f(0.5 * log1p_f(2.0 * a / (1.0 - a)), x);
}
