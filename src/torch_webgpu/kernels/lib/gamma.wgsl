// The logarithm of the gamma function, its derivatives, and the Hurwitz zeta function.

// One logarithm whatever x is: compilers make a copy of a function for each call.
fn lgamma_f(x: f32) -> f32 {
  if (!isfinite_f(x)) { return abs(x); }
  let a = abs(x);
  let positive = lgamma_positive(a);
  if (x >= 0.0 || a < 1e-8) { return positive; }
  if (floor(a) == a) { return inf_f(); }
  // The reflection formula; sin(pi * x) from the exact distance to the nearest integer.
  let distance = abs(a - round(a));
  let near_half = distance > 0.25;
  let angle = 3.14159265358979324 * select(distance, 0.5 - distance, near_half);
  let sine = select(sin_polynomial(angle), cos_polynomial(angle), near_half);
  return 1.1447298858494002 - log_f(sine * a) - positive;
}

fn lgamma_positive(x: f32) -> f32 {
  var product = 1.0;
  var rest = x;
  while (rest >= 3.0 && x < 8.0) {
    rest -= 1.0;
    product *= rest;
  }
  let logarithm = log_f(select(product, x, (x < 0.75) | (x >= 8.0)));
  if (x > 1e8) { return x * (logarithm - 1.0); }
  if (x >= 8.0) {
    let z = 1.0 / (x * x);
    let series = ((z * 7.93650794e-4 - 2.77777778e-3) * z + 8.33333333e-2) / x;
    return (x - 0.5) * (logarithm - 1.0) + (0.41893853320467274 + series);
  }
  if (x < 0.5) { return x * lgamma_near_one(x) - logarithm; }
  let t = select(rest - 2.0, x - 1.0, x < 1.5);
  if (x >= 0.75 && x < 1.5) { return t * lgamma_near_one(t); }
  return t * lgamma_near_two(t) + select(logarithm, -logarithm, x < 0.75);
}

// lgamma(1 + t) / t for -1/4 <= t <= 1/2.
fn lgamma_near_one(t: f32) -> f32 {
  var p = -0.0347883343;
  p = p * t + 0.0882153575;
  p = p * t - 0.1169574;
  p = p * t + 0.128345058;
  p = p * t - 0.144062168;
  p = p * t + 0.169404251;
  p = p * t - 0.207374245;
  p = p * t + 0.270583756;
  p = p * t - 0.400685856;
  p = p * t + 0.822467017;
  p = p * t - 0.577215664;
  return p;
}

// lgamma(2 + t) / t for -1/2 <= t <= 1.
fn lgamma_near_two(t: f32) -> f32 {
  var p = -2.05098354e-5;
  p = p * t + 9.58082061e-5;
  p = p * t - 0.000238643989;
  p = p * t + 0.00051770814;
  p = p * t - 0.00118982565;
  p = p * t + 0.00288832629;
  p = p * t - 0.0073857638;
  p = p * t + 0.0205810114;
  p = p * t - 0.0673522941;
  p = p * t + 0.322467028;
  p = p * t + 0.422784335;
  return p;
}

// Recurrence up to 10 and an asymptotic series, as in Cephes and CPU PyTorch.
fn digamma_f(x: f32) -> f32 {
  if (x == 0.0) { return copysign_f(inf_f(), -x); }
  if (isnan_f(x) || bitcast<u32>(x) == 0xff800000u) { return nan_f(); }
  var result = 0.0;
  var y = x;
  if (x < 0.0) {
    let fraction = x - round(x);
    if (fraction == 0.0) { return nan_f(); }
    result = -3.14159265358979324 / tan_f(3.14159265358979324 * fraction);
    y = 1.0 - x;
  }
  while (y < 10.0) {
    result -= 1.0 / y;
    y += 1.0;
  }
  let z = 1.0 / (y * y);
  let series = ((z * 3.968253968e-3 - 8.333333333e-3) * z + 8.333333333e-2) * z;
  return result + (log_f(y) - 0.5 / y - series);
}

fn trigamma_f(x: f32) -> f32 {
  if (isnan_f(x) || bitcast<u32>(x) == 0xff800000u) { return nan_f(); }
  var result = 0.0;
  var sign = 1.0;
  var y = x;
  if (x < 0.5) {
    let sine = sin_f(3.14159265358979324 * abs(x - round(x)));
    if (sine == 0.0) { return inf_f(); }
    let ratio = 3.14159265358979324 / sine;
    result = -ratio * ratio;
    sign = -1.0;
    y = 1.0 - x;
  }
  for (var step = 0; step < 6; step += 1) {
    result += 1.0 / (y * y);
    y += 1.0;
  }
  let z = 1.0 / (y * y);
  result += (1.0 + 0.5 / y + z * (1.6666667e-1 - z * (3.3333333e-2 - z * 2.3809524e-2))) / y;
  return sign * result;
}

// The n-th derivative of digamma for a whole n >= 0.
fn polygamma_f(n: f32, x: f32) -> f32 {
  if (n == 0.0) { return digamma_f(x); }
  if (n == 1.0) { return trigamma_f(x); }
  let sign = select(1.0, -1.0, (u32(n) & 1u) == 0u);
  return sign * exp_f(lgamma_f(n + 1.0)) * zeta_f(n + 1.0, x);
}

// Hurwitz' zeta: Euler-Maclaurin summation as in Cephes. The product of the rising factorial and the power is kept as
// one number, which neither over- nor underflows before the series has converged.
fn zeta_f(x: f32, q: f32) -> f32 {
  if (x == 1.0) { return inf_f(); }
  if (x < 1.0) { return nan_f(); }
  if (q <= 0.0) {
    if (q == floor(q)) { return inf_f(); }
    if (x != floor(x)) { return nan_f(); }
  }
  if (isnan_f(x) || isnan_f(q)) { return nan_f(); }
  var sum = pow_f(q, -x);
  var a = q;
  var b = 0.0;
  var count = 0;
  while (count < 9 || a <= 9.0) {
    count += 1;
    a += 1.0;
    b = pow_f(a, -x);
    sum += b;
    if (abs(b) < 5e-8 * abs(sum) || count > 4000) { return sum; }
  }
  sum += b * a / (x - 1.0) - 0.5 * b;
  var factor = b * x / a;
  sum += factor * 8.333333333e-2;
  factor *= (x + 1.0) / a * ((x + 2.0) / a);
  sum -= factor * 1.388888889e-3;
  factor *= (x + 3.0) / a * ((x + 4.0) / a);
  sum += factor * 3.306878307e-5;
  factor *= (x + 5.0) / a * ((x + 6.0) / a);
  sum -= factor * 8.267195767e-7;
  factor *= (x + 7.0) / a * ((x + 8.0) / a);
  sum += factor * 2.087675699e-8;
  factor *= (x + 9.0) / a * ((x + 10.0) / a);
  sum -= factor * 5.284190139e-10;
  factor *= (x + 11.0) / a * ((x + 12.0) / a);
  return sum + factor * 1.338253653e-11;
}
