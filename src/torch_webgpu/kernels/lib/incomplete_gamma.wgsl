// The regularised incomplete gamma functions, by the cases of SciPy's gammainc that CPU PyTorch uses too: series,
// continued fraction, and N. Temme's uniform expansion for large a (DLMF 8.12).

// P(a, x)
fn igamma_f(a: f32, x: f32) -> f32 {
  if (igamma_at_boundary(a, x)) { return igamma_boundary(a, x); }
  if (igamma_is_uniform(a, x)) { return igamma_uniform(a, x, -1.0); }
  if (x > 1.0 && x > a) { return 1.0 - igammac_f(a, x); }
  return igamma_series(a, x);
}

// Q(a, x) = 1 - P(a, x)
fn igammac_f(a: f32, x: f32) -> f32 {
  if (igamma_at_boundary(a, x)) { return 1.0 - igamma_boundary(a, x); }
  if (igamma_is_uniform(a, x)) { return igamma_uniform(a, x, 1.0); }
  if (x > 1.1) {
    if (x < a) { return 1.0 - igamma_series(a, x); }
    return igammac_fraction(a, x);
  }
  let limit = select(x * 1.1, -0.4 / log_f(x), x <= 0.5);
  if (limit < a) { return 1.0 - igamma_series(a, x); }
  return igammac_series(a, x);
}

fn igamma_at_boundary(a: f32, x: f32) -> bool {
  return !(a > 0.0 && x > 0.0) || !isfinite_f(a) || !isfinite_f(x);
}

fn igamma_boundary(a: f32, x: f32) -> f32 {
  if (a < 0.0 || x < 0.0) { return nan_f(); }
  if (a == 0.0) { return select(nan_f(), 1.0, x > 0.0); }
  if (x == 0.0) { return 0.0; }
  if (isinf_f(a)) { return select(0.0, nan_f(), isinf_f(x)); }
  return select(nan_f(), 1.0, isinf_f(x));
}

fn igamma_is_uniform(a: f32, x: f32) -> bool {
  let distance = abs(x - a) / a;
  return (a > 20.0 && a < 200.0 && distance < 0.3) || (a > 200.0 && distance < 4.5 / sqrt(a));
}

// x^a * exp(-x) / gamma(a)
fn igamma_factor(a: f32, x: f32) -> f32 {
  if (abs(a - x) > 0.4 * a) { return exp_f(a * log_f(x) - x - lgamma_f(a)); }
  let shifted = a + 5.524680040776729583740234375;
  let scale = sqrt(shifted * 0.36787944117144232) / lanczos_sum(a);
  if (a < 200.0 && x < 200.0) { return scale * (exp_f(a - x) * pow_f(x / shifted, a)); }
  let ratio = (x - a - 5.524680040776729583740234375) / shifted;
  return scale * exp_f(a * (log1p_f(ratio) - ratio) - x * 5.524680040776729583740234375 / shifted);
}

// Boost's Lanczos sum, scaled by exp(g), as a function of x and, beyond 1, of 1 / x.
fn lanczos_sum(x: f32) -> f32 {
  if (x <= 1.0) { return lanczos_numerator(x) / lanczos_denominator(x); }
  return lanczos_numerator_inverse(1.0 / x) / lanczos_denominator_inverse(1.0 / x);
}

fn lanczos_numerator(x: f32) -> f32 {
  var p = 0.00606184235;
  p = p * x + 0.509841666;
  p = p * x + 19.5199279;
  p = p * x + 449.944557;
  p = p * x + 6955.9996;
  p = p * x + 75999.293;
  p = p * x + 601859.617;
  p = p * x + 3481712.15;
  p = p * x + 14605578.1;
  p = p * x + 43338889.3;
  p = p * x + 86363131.3;
  p = p * x + 103794043.0;
  p = p * x + 56906521.9;
  return p;
}

fn lanczos_denominator(x: f32) -> f32 {
  var p = 1.0;
  p = p * x + 66.0;
  p = p * x + 1925.0;
  p = p * x + 32670.0;
  p = p * x + 357423.0;
  p = p * x + 2637558.0;
  p = p * x + 13339535.0;
  p = p * x + 45995730.0;
  p = p * x + 105258076.0;
  p = p * x + 150917976.0;
  p = p * x + 120543840.0;
  p = p * x + 39916800.0;
  p = p * x;
  return p;
}

fn lanczos_numerator_inverse(y: f32) -> f32 {
  var p = 56906521.9;
  p = p * y + 103794043.0;
  p = p * y + 86363131.3;
  p = p * y + 43338889.3;
  p = p * y + 14605578.1;
  p = p * y + 3481712.15;
  p = p * y + 601859.617;
  p = p * y + 75999.293;
  p = p * y + 6955.9996;
  p = p * y + 449.944557;
  p = p * y + 19.5199279;
  p = p * y + 0.509841666;
  p = p * y + 0.00606184235;
  return p;
}

fn lanczos_denominator_inverse(y: f32) -> f32 {
  var p = 39916800.0;
  p = p * y + 120543840.0;
  p = p * y + 150917976.0;
  p = p * y + 105258076.0;
  p = p * y + 45995730.0;
  p = p * y + 13339535.0;
  p = p * y + 2637558.0;
  p = p * y + 357423.0;
  p = p * y + 32670.0;
  p = p * y + 1925.0;
  p = p * y + 66.0;
  p = p * y + 1.0;
  return p;
}

fn igamma_series(a: f32, x: f32) -> f32 {
  let factor = igamma_factor(a, x);
  if (factor == 0.0) { return 0.0; }
  var term = 1.0;
  var sum = 1.0;
  var divisor = a;
  for (var step = 0; step < 2000; step += 1) {
    divisor += 1.0;
    term *= x / divisor;
    sum += term;
    if (term <= 5.9604645e-8 * sum) { break; }
  }
  return sum * factor / a;
}

// DLMF 8.7.3, arranged against cancellation.
fn igammac_series(a: f32, x: f32) -> f32 {
  var factor = 1.0;
  var sum = 0.0;
  for (var n = 1.0; n < 2000.0; n += 1.0) {
    factor *= -x / n;
    let term = factor / (a + n);
    sum += term;
    if (abs(term) <= 5.9604645e-8 * abs(sum)) { break; }
  }
  let log_x = log_f(x);
  return -expm1_f(a * log_x - lgamma_f(1.0 + a)) - exp_f(a * log_x - lgamma_f(a)) * sum;
}

// The continued fraction of DLMF 8.9.2.
fn igammac_fraction(a: f32, x: f32) -> f32 {
  let factor = igamma_factor(a, x);
  if (factor == 0.0) { return 0.0; }
  var y = 1.0 - a;
  var z = x + y + 1.0;
  var previous = vec2<f32>(1.0, x);
  var current = vec2<f32>(x + 1.0, z * x);
  var value = current.x / current.y;
  for (var c = 1.0; c < 2000.0; c += 1.0) {
    y += 1.0;
    z += 2.0;
    let next = current * z - previous * (y * c);
    previous = current;
    current = next;
    if (abs(next.x) > 16777216.0) {
      previous *= 5.9604645e-8;
      current *= 5.9604645e-8;
    }
    if (next.y != 0.0) {
      let ratio = next.x / next.y;
      let change = abs((value - ratio) / ratio);
      value = ratio;
      if (change <= 5.9604645e-8) { break; }
    }
  }
  return value * factor;
}

// sign is -1 for P, 1 for Q.
fn igamma_uniform(a: f32, x: f32, sign: f32) -> f32 {
  let sigma = (x - a) / a;
  let eta = copysign_f(sqrt(-2.0 * log1p_minus(sigma)), sigma);
  let tail = 0.5 * erfc_f(sign * eta * sqrt(0.5 * a));
  var sum = temme_4(eta);
  sum = sum / a + temme_3(eta);
  sum = sum / a + temme_2(eta);
  sum = sum / a + temme_1(eta);
  sum = sum / a + temme_0(eta);
  return tail + sign * exp_f(-0.5 * a * eta * eta) * sum / sqrt(6.283185307179586 * a);
}

// log(1 + x) - x
fn log1p_minus(x: f32) -> f32 {
  if (x > -0.29 && x < 0.41) { return log1p_tail(x); }
  return log1p_f(x) - x;
}

// The expansion's coefficients, polynomials in eta.
fn temme_0(eta: f32) -> f32 {
  var p = 1.02618098e-8;
  p = p * eta + 6.70785354e-9;
  p = p * eta - 1.76659527e-7;
  p = p * eta + 8.29671134e-7;
  p = p * eta - 1.85406221e-6;
  p = p * eta - 2.18544851e-6;
  p = p * eta + 3.91926318e-5;
  p = p * eta - 0.000178755144;
  p = p * eta + 0.000352733686;
  p = p * eta + 0.00115740741;
  p = p * eta - 0.0148148148;
  p = p * eta + 0.0833333333;
  p = p * eta - 0.333333333;
  return p;
}

fn temme_1(eta: f32) -> f32 {
  var p = 4.6471278e-9;
  p = p * eta - 1.61209009e-6;
  p = p * eta + 7.64916092e-6;
  p = p * eta - 1.80985503e-5;
  p = p * eta - 4.01877572e-7;
  p = p * eta + 0.000205761317;
  p = p * eta - 0.000990226337;
  p = p * eta + 0.00264550265;
  p = p * eta - 0.00347222222;
  p = p * eta - 0.00185185185;
  return p;
}

fn temme_2(eta: f32) -> f32 {
  var p = 3.42357873e-8;
  p = p * eta - 1.27606352e-5;
  p = p * eta + 5.29234488e-5;
  p = p * eta - 0.000107366532;
  p = p * eta + 2.00938786e-6;
  p = p * eta + 0.000771604938;
  p = p * eta - 0.00268132716;
  p = p * eta + 0.00413359788;
  return p;
}

fn temme_3(eta: f32) -> f32 {
  var p = -2.39650511e-7;
  p = p * eta - 7.56180167e-5;
  p = p * eta + 0.000267720632;
  p = p * eta - 0.000469189494;
  p = p * eta + 0.000229472094;
  p = p * eta + 0.000649434156;
  return p;
}

fn temme_4(eta: f32) -> f32 {
  var p = -1.46384526e-6;
  p = p * eta - 0.00029907248;
  p = p * eta + 0.000784039222;
  p = p * eta - 0.000861888291;
  return p;
}
