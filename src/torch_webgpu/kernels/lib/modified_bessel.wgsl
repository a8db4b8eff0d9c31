// Modified Bessel functions of order 0 and 1, also scaled by exp(-|x|) (i) or exp(x) (k). Polynomials fitted to
// mpmath's values in the least maximum of the relative error.

fn i0_f(x: f32) -> f32 {
  let a = abs(x);
  if (a <= 8.0) { return i0_polynomial(0.25 * a * a); }
  if (isinf_f(x)) { return a; }
  return exp_f(a) * i0_tail(1.0 / a) / sqrt(a);
}

fn i0e_f(x: f32) -> f32 {
  let a = abs(x);
  if (a <= 8.0) { return exp_f(-a) * i0_polynomial(0.25 * a * a); }
  return i0_tail(1.0 / a) / sqrt(a);
}

fn i1_f(x: f32) -> f32 {
  let a = abs(x);
  if (a <= 8.0) { return x * i1_polynomial(0.25 * a * a); }
  if (isinf_f(x)) { return x; }
  return copysign_f(exp_f(a) * i1_tail(1.0 / a) / sqrt(a), x);
}

fn i1e_f(x: f32) -> f32 {
  let a = abs(x);
  if (a <= 8.0) { return x * exp_f(-a) * i1_polynomial(0.25 * a * a); }
  return copysign_f(i1_tail(1.0 / a) / sqrt(a), x);
}

fn modified_bessel_i0_f(x: f32) -> f32 { return i0_f(x); }

fn modified_bessel_i1_f(x: f32) -> f32 { return i1_f(x); }

fn modified_bessel_k0_f(x: f32) -> f32 {
  if (!(x > 0.0)) { return modified_bessel_k_limit(x); }
  if (x <= 2.0) { return k0_near(x); }
  return exp_f(-x) * scaled_modified_bessel_k0_f(x);
}

fn scaled_modified_bessel_k0_f(x: f32) -> f32 {
  if (!(x > 0.0)) { return modified_bessel_k_limit(x); }
  if (x <= 2.0) { return exp_f(x) * k0_near(x); }
  return k0_tail(4.0 / x - 1.0) / sqrt(x);
}

fn modified_bessel_k1_f(x: f32) -> f32 {
  if (!(x > 0.0)) { return modified_bessel_k_limit(x); }
  if (x <= 2.0) { return k1_near(x); }
  return exp_f(-x) * scaled_modified_bessel_k1_f(x);
}

fn scaled_modified_bessel_k1_f(x: f32) -> f32 {
  if (!(x > 0.0)) { return modified_bessel_k_limit(x); }
  if (x <= 2.0) { return exp_f(x) * k1_near(x); }
  return k1_tail(4.0 / x - 1.0) / sqrt(x);
}

fn modified_bessel_k_limit(x: f32) -> f32 { return select(nan_f(), inf_f(), x == 0.0); }

// For 0 < x <= 2: the logarithmic part and the rest.
fn k0_near(x: f32) -> f32 {
  let y = x * x;
  return k0_polynomial(y) - log_half(x) * i0_polynomial(0.25 * y);
}

// log(x / 2); half of the smallest numbers is a denormal, which may be flushed.
fn log_half(x: f32) -> f32 { return select(log_f(0.5 * x), log_f(x) - 0.69314718055994531, x < 1e-3); }

fn k1_near(x: f32) -> f32 {
  let y = x * x;
  return k1_polynomial(y) / x + log_half(x) * x * i1_polynomial(0.25 * y);
}

// I0(x) and I1(x) / x as functions of z = x^2 / 4 up to x = 8.
fn i0_polynomial(z: f32) -> f32 {
  var p = 1.12420119e-15;
  p = p * z + 5.61180648e-14;
  p = p * z + 8.02116999e-12;
  p = p * z + 6.09497468e-10;
  p = p * z + 3.94149072e-8;
  p = p * z + 1.92875547e-6;
  p = p * z + 6.94453288e-5;
  p = p * z + 0.00173610926;
  p = p * z + 0.0277777799;
  p = p * z + 0.249999999;
  p = p * z + 1.0;
  p = p * z + 1.0;
  return p;
}

fn i1_polynomial(z: f32) -> f32 {
  var p = 4.55297141e-17;
  p = p * z + 2.65560496e-15;
  p = p * z + 3.97479725e-13;
  p = p * z + 3.39292934e-11;
  p = p * z + 2.46263152e-9;
  p = p * z + 1.37774189e-7;
  p = p * z + 5.78708278e-6;
  p = p * z + 0.000173611007;
  p = p * z + 0.00347222236;
  p = p * z + 0.0416666666;
  p = p * z + 0.25;
  p = p * z + 0.5;
  return p;
}

// exp(-x) * sqrt(x) times I0(x) and I1(x) as functions of t = 1 / x from x = 8 on.
fn i0_tail(t: f32) -> f32 {
  var p = 0.390155064;
  p = p * t - 0.0146169347;
  p = p * t + 0.0338831996;
  p = p * t + 0.0278932677;
  p = p * t + 0.049869715;
  p = p * t + 0.398942276;
  return p;
}

fn i1_tail(t: f32) -> f32 {
  var p = -0.454845299;
  p = p * t + 0.0105656063;
  p = p * t - 0.0462677063;
  p = p * t - 0.0465694517;
  p = p * t - 0.149605596;
  p = p * t + 0.398942285;
  return p;
}

// K0(x) + log(x/2) * I0(x) and x * (K1(x) - log(x/2) * I1(x)) as functions of y = x^2 up to x = 2.
fn k0_polynomial(y: f32) -> f32 {
  var p = 9.52276067e-10;
  p = p * y + 1.15312239e-7;
  p = p * y + 1.02150879e-5;
  p = p * y + 0.000545188451;
  p = p * y + 0.0144185062;
  p = p * y + 0.105696084;
  p = p * y - 0.577215665;
  return p;
}

fn k1_polynomial(y: f32) -> f32 {
  var p = -1.1067218e-8;
  p = p * y - 1.08389642e-6;
  p = p * y - 7.49450472e-5;
  p = p * y - 0.00283709142;
  p = p * y - 0.0420490347;
  p = p * y + 0.0386078359;
  p = p * y + 1.0;
  return p;
}

// exp(x) * sqrt(x) times K0(x) and K1(x) as functions of u = 4 / x - 1 from x = 2 on.
fn k0_tail(u: f32) -> f32 {
  var p = 1.13911495e-6;
  p = p * u - 2.98351248e-6;
  p = p * u + 6.57562179e-6;
  p = p * u - 2.40869463e-5;
  p = p * u + 9.97416265e-5;
  p = p * u - 0.00047995744;
  p = p * u + 0.00303286477;
  p = p * u - 0.0310714473;
  p = p * u + 1.21859534;
  return p;
}

fn k1_tail(u: f32) -> f32 {
  var p = -1.40096198e-6;
  p = p * u + 3.67263979e-6;
  p = p * u - 8.40436901e-6;
  p = p * u + 3.20766424e-5;
  p = p * u - 0.000139837601;
  p = p * u + 0.000735945931;
  p = p * u - 0.00556669118;
  p = p * u + 0.103349721;
  p = p * u + 1.36315189;
  return p;
}
