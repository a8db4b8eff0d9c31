// The error function, the gamma function and their relatives in doubles. Polynomials fitted to mpmath's values in the
// least maximum of the relative error.

fn erf_d(x: f64) -> f64 {
  let a = abs(x);
  if (isnan_d(x)) { return x; }
  if (a <= 1.0lf) { return x + x * erf_tail_d(x * x); }
  return copysign_d(1.0lf - erfc_positive_d(min(a, 7.0lf)), x);
}

// erf(a) / a - 1 as a function of z = a^2 <= 1.
fn erf_tail_d(z: f64) -> f64 {
  var p = -7.792387776980085e-10lf;
  p = p * z + 1.3718218762051456e-08lf;
  p = p * z - 1.6208065704722215e-07lf;
  p = p * z + 1.6447371314258486e-06lf;
  p = p * z - 1.4924732685547572e-05lf;
  p = p * z + 0.00012055294691019695lf;
  p = p * z - 0.0008548325968458515lf;
  p = p * z + 0.005223977606976882lf;
  p = p * z - 0.026866170643221454lf;
  p = p * z + 0.1128379167094491lf;
  p = p * z - 0.3761263890318354lf;
  p = p * z + 0.12837916709551256lf;
  return p;
}

fn erfc_d(x: f64) -> f64 {
  if (isnan_d(x)) { return x; }
  let a = abs(x);
  if (a < 0.7lf) { return 1.0lf - erf_d(x); }
  let tail = erfc_positive_d(min(a, 28.0lf));
  return select(tail, 2.0lf - tail, x < 0.0lf);
}

fn erfc_positive_d(a: f64) -> f64 { return exp_of_square_d(a, -1.0lf) * erfcx_positive_d(a); }

// exp(sign * a^2): the square as a sum, because its rounding error would be an exponent's.
fn exp_of_square_d(a: f64, sign: f64) -> f64 {
  let high = high_d(a);
  return exp_sum_d(sign * high * high, sign * (a - high) * (a + high));
}

// exp(x^2) * erfc(x)
fn erfcx_d(x: f64) -> f64 {
  if (isnan_d(x)) { return x; }
  if (x >= 0.0lf) { return erfcx_positive_d(x); }
  if (x < -26.7lf) { return inf_d(); }
  return 2.0lf * exp_of_square_d(-x, 1.0lf) - erfcx_positive_d(-x);
}

fn erfcx_positive_d(a: f64) -> f64 {
  if (a < 0.6lf) { return exp_d(a * a) * (1.0lf - (a + a * erf_tail_d(a * a))); }
  if (a > 1e17lf) { return 0.5641895835477563lf / a; }
  return erfcx_polynomial_d((a - 2.0lf) / (a + 2.0lf)) / (1.0lf + 2.0lf * a);
}

// (1 + 2a) * erfcx(a) as a function of q = (a - 2) / (a + 2), a >= 0.6.
fn erfcx_polynomial_d(q: f64) -> f64 {
  var p = 3.738144367877808e-08lf;
  p = p * q - 1.104375238977713e-07lf;
  p = p * q - 1.0359865403164194e-07lf;
  p = p * q + 5.086177018994044e-07lf;
  p = p * q + 3.7822911753956125e-08lf;
  p = p * q - 5.67143687083166e-07lf;
  p = p * q - 6.013714946035765e-07lf;
  p = p * q - 5.960731941053486e-07lf;
  p = p * q + 1.3539641830620594e-06lf;
  p = p * q + 5.221011320901447e-06lf;
  p = p * q + 3.761931191088272e-06lf;
  p = p * q - 1.3500185535119226e-05lf;
  p = p * q - 3.643410889536178e-05lf;
  p = p * q - 1.5074921133785998e-06lf;
  p = p * q + 0.0001510406472102803lf;
  p = p * q + 0.00020636685179886073lf;
  p = p * q - 0.00045434096262294405lf;
  p = p * q - 0.0014568139164882342lf;
  p = p * q + 0.001271338973402843lf;
  p = p * q + 0.008722653874293157lf;
  p = p * q - 0.008034015082670275lf;
  p = p * q - 0.054220000992004955lf;
  p = p * q + 0.164051280033446lf;
  p = p * q - 0.16603039761528965lf;
  p = p * q - 0.09276382658574603lf;
  p = p * q + 1.2769783815525286lf;
  return p;
}

// Halley's method, from a float near zero, and from an asymptotic value of erfc's inverse elsewhere.
fn erfinv_d(x: f64) -> f64 {
  let a = abs(x);
  if (!(a <= 1.0lf)) { return nan_d(); }
  if (a == 1.0lf) { return copysign_d(inf_d(), x); }
  if (a > 0.5lf) { return copysign_d(erfc_inverse_d(1.0lf - a), x); }
  let y = a * f64(erfinv_center(f32(-log1p_d(-a * a)) - 2.5));
  let u = (erf_d(y) - a) * 0.886226925452758lf * exp_d(y * y);
  return copysign_d(y - u / (1.0lf + y * u), x);
}

// For 0 < c <= 1.
fn erfc_inverse_d(c: f64) -> f64 {
  let w = -log_d(c * (2.0lf - c));
  var y = sqrt(w) * 0.9lf;
  if (w < 5.0lf) { y = (1.0lf - c) * f64(erfinv_center(f32(w) - 2.5)); }
  else { y = sqrt(max(w - 0.5lf * log_d(3.141592653589793lf * w), 1.0lf)); }
  for (var step = 0; step < 4; step += 1) {
    let u = (c * exp_of_square_d(y, 1.0lf) - erfcx_positive_d(y)) * 0.886226925452758lf;
    y -= u / (1.0lf + y * u);
  }
  return y;
}

fn ndtr_d(x: f64) -> f64 { return 0.5lf * erfc_d(-x * 0.7071067811865476lf); }

fn log_ndtr_d(x: f64) -> f64 {
  let t = x * 0.7071067811865476lf;
  if (x < -1.0lf) { return log_d(0.5lf * erfcx_d(-t)) - t * t; }
  return log1p_d(-0.5lf * erfc_d(t));
}

fn ndtri_d(y: f64) -> f64 {
  if (!(y >= 0.0lf && y <= 1.0lf)) { return nan_d(); }
  if (y == 0.0lf) { return -inf_d(); }
  if (y == 1.0lf) { return inf_d(); }
  if (y > 0.25lf && y < 0.75lf) { return 1.4142135623730951lf * erfinv_d(2.0lf * (y - 0.5lf)); }
  let value = 1.4142135623730951lf * erfc_inverse_d(2.0lf * min(y, 1.0lf - y));
  return select(value, -value, y < 0.5lf);
}

fn lgamma_d(x: f64) -> f64 {
  if (!isfinite_d(x)) { return abs(x); }
  let a = abs(x);
  let positive = lgamma_positive_d(a);
  if (x >= 0.0lf || a < 1e-17lf) { return positive; }
  if (floor(a) == a) { return inf_d(); }
  // The reflection formula; sin(pi * x) from the exact distance to the nearest integer.
  let distance = abs(a - round_d(a));
  let near_half = distance > 0.25lf;
  let angle = 3.141592653589793lf * select(distance, 0.5lf - distance, near_half);
  let sine = select(sin_polynomial_d(angle), cos_polynomial_d(angle), near_half);
  return 1.1447298858494002lf - log_d(sine * a) - positive;
}

fn lgamma_positive_d(x: f64) -> f64 {
  var product = 1.0lf;
  var rest = x;
  while (rest >= 3.0lf && x < 10.0lf) {
    rest -= 1.0lf;
    product *= rest;
  }
  let logarithm = log_d(select(product, x, (x < 0.75lf) | (x >= 10.0lf)));
  if (x > 1e17lf) { return x * (logarithm - 1.0lf); }
  if (x >= 10.0lf) {
    let z = 1.0lf / (x * x);
    var p = -0.029550653594771242lf;
    p = p * z + 0.00641025641025641lf;
    p = p * z - 0.0019175269175269176lf;
    p = p * z + 0.0008417508417508417lf;
    p = p * z - 0.0005952380952380953lf;
    p = p * z + 0.0007936507936507937lf;
    p = p * z - 0.002777777777777778lf;
    p = p * z + 0.08333333333333333lf;
    return (x - 0.5lf) * (logarithm - 1.0lf) + (0.4189385332046727lf + p / x);
  }
  if (x < 0.5lf) { return x * lgamma_near_one_d(x) - logarithm; }
  let t = select(rest - 2.0lf, x - 1.0lf, x < 1.5lf);
  if (x >= 0.75lf && x < 1.5lf) { return t * lgamma_near_one_d(t); }
  return t * lgamma_near_two_d(t) + select(logarithm, -logarithm, x < 0.75lf);
}

// lgamma(1 + t) / t for -1/4 <= t <= 1/2.
fn lgamma_near_one_d(t: f64) -> f64 {
  var p = -0.007827903758187479lf;
  p = p * t + 0.028792237448304066lf;
  p = p * t - 0.05025335130400477lf;
  p = p * t + 0.05965262141057934lf;
  p = p * t - 0.06094838710696912lf;
  p = p * t + 0.0625423359398394lf;
  p = p * t - 0.06642631231818852lf;
  p = p * t + 0.07138307009222658lf;
  p = p * t - 0.07694329201052834lf;
  p = p * t + 0.08335811853975911lf;
  p = p * t - 0.0909539021382746lf;
  p = p * t + 0.10009928704113542lf;
  p = p * t - 0.11133425955691714lf;
  p = p * t + 0.12550967314237613lf;
  p = p * t - 0.14404989699480447lf;
  p = p * t + 0.16955717695720057lf;
  p = p * t - 0.2073855510260384lf;
  p = p * t + 0.27058080842798954lf;
  p = p * t - 0.4006856343865417lf;
  p = p * t + 0.8224670334241129lf;
  p = p * t - 0.5772156649015329lf;
  return p;
}

// lgamma(2 + t) / t for -1/2 <= t <= 1.
fn lgamma_near_two_d(t: f64) -> f64 {
  var p = -3.733822460565909e-09lf;
  p = p * t + 2.7468398510358837e-08lf;
  p = p * t - 9.58942908411917e-08lf;
  p = p * t + 2.277028950586526e-07lf;
  p = p * t - 4.6545837491558075e-07lf;
  p = p * t + 9.557730442952402e-07lf;
  p = p * t - 2.0318170052559263e-06lf;
  p = p * t + 4.371821887177551e-06lf;
  p = p * t - 9.440803901004e-06lf;
  p = p * t + 2.0508257432949348e-05lf;
  p = p * t - 4.492618057588352e-05lf;
  p = p * t + 9.945734627054003e-05lf;
  p = p * t - 0.00022315474612108152lf;
  p = p * t + 0.0005096695388773664lf;
  p = p * t - 0.0011927539134689571lf;
  p = p * t + 0.0028905103301131484lf;
  p = p * t - 0.007385551028591605lf;
  p = p * t + 0.020580808427797363lf;
  p = p * t - 0.06735230105319938lf;
  p = p * t + 0.32246703342411315lf;
  p = p * t + 0.42278433509846713lf;
  return p;
}

// Recurrence up to 10 and an asymptotic series, as in Cephes and CPU PyTorch.
fn digamma_d(x: f64) -> f64 {
  if (x == 0.0lf) { return copysign_d(inf_d(), -x); }
  if (isnan_d(x) || x == -inf_d()) { return nan_d(); }
  var result = 0.0lf;
  var y = x;
  if (x < 0.0lf) {
    let fraction = x - round_d(x);
    if (fraction == 0.0lf) { return nan_d(); }
    result = -3.141592653589793lf / tan_d(3.141592653589793lf * fraction);
    y = 1.0lf - x;
  }
  while (y < 10.0lf) {
    result -= 1.0lf / y;
    y += 1.0lf;
  }
  let z = 1.0lf / (y * y);
  var p = 0.08333333333333333lf;
  p = p * z - 0.021092796092796094lf;
  p = p * z + 0.007575757575757576lf;
  p = p * z - 0.004166666666666667lf;
  p = p * z + 0.003968253968253968lf;
  p = p * z - 0.008333333333333333lf;
  p = p * z + 0.08333333333333333lf;
  return result + (log_d(y) - 0.5lf / y - p * z);
}

fn trigamma_d(x: f64) -> f64 {
  if (isnan_d(x) || x == -inf_d()) { return nan_d(); }
  var result = 0.0lf;
  var sign = 1.0lf;
  var y = x;
  if (x < 0.5lf) {
    let sine = sin_d(3.141592653589793lf * abs(x - round_d(x)));
    if (sine == 0.0lf) { return inf_d(); }
    let ratio = 3.141592653589793lf / sine;
    result = -ratio * ratio;
    sign = -1.0lf;
    y = 1.0lf - x;
  }
  while (y < 10.0lf) {
    result += 1.0lf / (y * y);
    y += 1.0lf;
  }
  let z = 1.0lf / (y * y);
  var p = 1.1666666666666667lf;
  p = p * z - 0.2531135531135531lf;
  p = p * z + 0.07575757575757576lf;
  p = p * z - 0.03333333333333333lf;
  p = p * z + 0.023809523809523808lf;
  p = p * z - 0.03333333333333333lf;
  p = p * z + 0.16666666666666666lf;
  result += (1.0lf + 0.5lf / y + z * p) / y;
  return sign * result;
}

// The n-th derivative of digamma for a whole n >= 0.
fn polygamma_d(n: f64, x: f64) -> f64 {
  if (n == 0.0lf) { return digamma_d(x); }
  if (n == 1.0lf) { return trigamma_d(x); }
  let sign = select(1.0lf, -1.0lf, 2.0lf * floor(0.5lf * n) == n);
  return sign * exp_d(lgamma_d(n + 1.0lf)) * zeta_d(n + 1.0lf, x);
}

// Hurwitz' zeta: Euler-Maclaurin summation as in Cephes. The product of the rising factorial and the power is kept as
// one number, which neither over- nor underflows before the series has converged.
fn zeta_d(x: f64, q: f64) -> f64 {
  if (x == 1.0lf) { return inf_d(); }
  if (x < 1.0lf) { return nan_d(); }
  if (q <= 0.0lf) {
    if (q == floor(q)) { return inf_d(); }
    if (x != floor(x)) { return nan_d(); }
  }
  if (isnan_d(x) || isnan_d(q)) { return nan_d(); }
  var sum = pow_d(q, -x);
  var a = q;
  var b = 0.0lf;
  var count = 0;
  while (count < 9 || a <= 9.0lf) {
    count += 1;
    a += 1.0lf;
    b = pow_d(a, -x);
    sum += b;
    if (abs(b) < 1e-17lf * abs(sum) || count > 4000) { return sum; }
  }
  sum += b * a / (x - 1.0lf) - 0.5lf * b;
  var factor = b * x / a;
  for (var k = 0u; k < 12u; k += 1u) {
    let term = factor * zeta_coefficient(k);
    sum += term;
    if (abs(term) < 1e-17lf * abs(sum)) { return sum; }
    let next = f64(2u * k);
    factor *= (x + next + 1.0lf) / a * ((x + next + 2.0lf) / a);
  }
  return sum;
}

// Bernoulli's number 2k + 2 over the factorial of 2k + 2.
fn zeta_coefficient(k: u32) -> f64 {
  switch k {
    case 0u: { return 0.08333333333333333lf; }
    case 1u: { return -0.001388888888888889lf; }
    case 2u: { return 3.306878306878307e-05lf; }
    case 3u: { return -8.267195767195768e-07lf; }
    case 4u: { return 2.08767569878681e-08lf; }
    case 5u: { return -5.284190138687493e-10lf; }
    case 6u: { return 1.3382536530684679e-11lf; }
    case 7u: { return -3.3896802963225827e-13lf; }
    case 8u: { return 8.586062056277845e-15lf; }
    case 9u: { return -2.174868698558062e-16lf; }
    case 10u: { return 5.5090028283602295e-18lf; }
    case 11u: { return -1.3954464685812522e-19lf; }
    default: { return 0.0lf; }
  }
}
