// erf and its relatives. Polynomials fitted to mpmath's values in the least maximum of the relative error.

// Both forms are evaluated, without a branch; NaN takes the first.
fn erf_f(x: f32) -> f32 {
  let a = abs(x);
  let large = 1.0 - exp2(log2_erfc(min(a, 3.95)));
  return copysign_f(select(a + a * erf_tail(x * x), large, a >= 0.92), x);
}

// erf(a) / a - 1 as a function of z = a^2.
fn erf_tail(z: f32) -> f32 {
  var p = 8.3622429e-5;
  p = p * z - 0.000814146377;
  p = p * z + 0.00520098838;
  p = p * z - 0.0268594128;
  p = p * z + 0.112836965;
  p = p * z - 0.376126339;
  p = p * z + 0.128379167;
  return p;
}

// For 0.92 <= t <= 3.95, as exactly as 1 - erfc(t) needs it.
fn log2_erfc(t: f32) -> f32 {
  var p = -3.05337865e-05;
  p = p * t + 0.000627927852;
  p = p * t - 0.0060229197;
  p = p * t + 0.0362533991;
  p = p * t - 0.15623581;
  p = p * t - 0.913708186;
  p = p * t - 1.62955436;
  p = p * t + 0.000253786551;
  return p;
}

fn erfc_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let a = abs(x);
  if (a < 0.5) { return 1.0 - erf_f(x); }
  if (a > 10.1) { return select(0.0, 2.0, x < 0.0); }
  let tail = exp_minus_square(a) * erfcx_positive(a);
  return select(tail, 2.0 - tail, x < 0.0);
}

// exp(-a^2) and exp(a^2): the square as a sum, because its rounding error would be an exponent's.
fn exp_minus_square(a: f32) -> f32 {
  let high = high_half(a);
  return exp_f(-high * high) * exp_f(-(a - high) * (a + high));
}

fn exp_square(a: f32) -> f32 {
  let high = high_half(a);
  return exp_f(high * high) * exp_f((a - high) * (a + high));
}

// exp(x^2) * erfc(x)
fn erfcx_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  if (x >= 0.0) { return erfcx_positive(x); }
  if (x < -9.5) { return inf_f(); }
  return 2.0 * exp_square(-x) - erfcx_positive(-x);
}

fn erfcx_positive(a: f32) -> f32 {
  if (a > 1e8) { return 0.56418958354775629 / a; }
  return erfcx_polynomial((a - 2.0) / (a + 2.0)) / (1.0 + 2.0 * a);
}

// (1 + 2a) * erfcx(a) as a function of q = (a - 2) / (a + 2).
fn erfcx_polynomial(q: f32) -> f32 {
  var p = 5.92632148e-5;
  p = p * q + 0.000161214514;
  p = p * q - 0.000346554693;
  p = p * q - 0.0013967605;
  p = p * q + 0.0012059564;
  p = p * q + 0.00869011082;
  p = p * q - 0.0080139048;
  p = p * q - 0.054212312;
  p = p * q + 0.164048541;
  p = p * q - 0.166031049;
  p = p * q - 0.0927637165;
  p = p * q + 1.27697839;
  return p;
}

// M. Giles, "Approximating the erfinv function", GPU Computing Gems, 2011.
fn erfinv_f(x: f32) -> f32 {
  let a = abs(x);
  if (!(a <= 1.0)) { return nan_f(); }
  if (a == 1.0) { return copysign_f(inf_f(), x); }
  let w = -log1p_f(-a) - log1p_f(a);
  return x * select(erfinv_tail(sqrt(w) - 3.0), erfinv_center(w - 2.5), w < 5.0);
}

fn erfinv_center(w: f32) -> f32 {
  var p = 2.81022636e-8;
  p = p * w + 3.43273939e-7;
  p = p * w - 3.5233877e-6;
  p = p * w - 4.39150654e-6;
  p = p * w + 0.00021858087;
  p = p * w - 0.00125372503;
  p = p * w - 0.00417768164;
  p = p * w + 0.246640727;
  p = p * w + 1.50140941;
  return p;
}

fn erfinv_tail(w: f32) -> f32 {
  var p = -0.000200214257;
  p = p * w + 0.000100950558;
  p = p * w + 0.00134934322;
  p = p * w - 0.00367342844;
  p = p * w + 0.00573950773;
  p = p * w - 0.0076224613;
  p = p * w + 0.00943887047;
  p = p * w + 1.00167406;
  p = p * w + 2.83297682;
  return p;
}

// The normal distribution function, its logarithm and its inverse.
fn ndtr_f(x: f32) -> f32 { return 0.5 * erfc_f(-x * 0.70710678118654752); }

fn log_ndtr_f(x: f32) -> f32 {
  let t = x * 0.70710678118654752;
  if (x < -1.0) { return log_f(0.5 * erfcx_f(-t)) - t * t; }
  return log1p_f(-0.5 * erfc_f(t));
}

// Rational approximations of Cephes' ndtri (S. Moshier).
fn ndtri_f(y: f32) -> f32 {
  if (!(y >= 0.0 && y <= 1.0)) { return nan_f(); }
  if (y == 0.0) { return -inf_f(); }
  if (y == 1.0) { return inf_f(); }
  let upper = y > 0.86466471676338731;
  let tail = select(y, 1.0 - y, upper);
  if (tail > 0.13533528323661269) {
    let centered = tail - 0.5;
    let z = centered * centered;
    return 2.5066282746310005 * (centered + centered * (z * ndtri_p0(z) / ndtri_q0(z)));
  }
  let x = sqrt(-2.0 * log_f(tail));
  let z = 1.0 / x;
  let correction = z * select(ndtri_p2(z) / ndtri_q2(z), ndtri_p1(z) / ndtri_q1(z), x < 8.0);
  let value = x - log_f(x) / x - correction;
  return select(-value, value, upper);
}

fn ndtri_p0(z: f32) -> f32 {
  var p = -59.9633501;
  p = p * z + 98.0010754;
  p = p * z - 56.6762857;
  p = p * z + 13.9312609;
  p = p * z - 1.23916584;
  return p;
}

fn ndtri_q0(z: f32) -> f32 {
  var p = 1.0;
  p = p * z + 1.95448858;
  p = p * z + 4.67627913;
  p = p * z + 86.3602421;
  p = p * z - 225.462688;
  p = p * z + 200.260212;
  p = p * z - 82.0372256;
  p = p * z + 15.9056225;
  p = p * z - 1.18331621;
  return p;
}

fn ndtri_p1(z: f32) -> f32 {
  var p = 4.05544892;
  p = p * z + 31.5251095;
  p = p * z + 57.1628192;
  p = p * z + 44.0805074;
  p = p * z + 14.6849562;
  p = p * z + 2.18663307;
  p = p * z - 0.140256079;
  p = p * z - 0.0350424627;
  p = p * z - 0.000857456785;
  return p;
}

fn ndtri_q1(z: f32) -> f32 {
  var p = 1.0;
  p = p * z + 15.7799883;
  p = p * z + 45.3907635;
  p = p * z + 41.3172038;
  p = p * z + 15.0425386;
  p = p * z + 2.50464946;
  p = p * z - 0.142182923;
  p = p * z - 0.0380806408;
  p = p * z - 0.000933259481;
  return p;
}

fn ndtri_p2(z: f32) -> f32 {
  var p = 3.23774892;
  p = p * z + 6.91522889;
  p = p * z + 3.93881025;
  p = p * z + 1.33303461;
  p = p * z + 0.20148539;
  p = p * z + 0.0123716635;
  p = p * z + 0.000301581554;
  p = p * z + 2.65806975e-6;
  p = p * z + 6.23974539e-9;
  return p;
}

fn ndtri_q2(z: f32) -> f32 {
  var p = 1.0;
  p = p * z + 6.02427039;
  p = p * z + 3.67983564;
  p = p * z + 1.37702099;
  p = p * z + 0.216236994;
  p = p * z + 0.0134204006;
  p = p * z + 0.000328014465;
  p = p * z + 2.89247865e-6;
  p = p * z + 6.79019408e-9;
  return p;
}
