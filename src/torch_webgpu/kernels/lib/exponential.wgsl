// exp and its relatives: a power of two and a polynomial on the interval around zero that is left.

// Without branches or conversions to integers, which GPUs do at a quarter of the speed or less: adding 1.5 * 2^23 rounds to
// the nearest integer n, whose bits end up in the lowest place, and 2^n is a shift away. Results below the normal numbers
// are zero.
fn exp_f(x: f32) -> f32 {
  let rounder = bitcast<u32>(x * 1.44269504 + 12582912.0);
  let n = f32(bitcast<i32>(rounder) - 0x4b400000);
  // ln 2 in two parts, the first so short that its products with n are exact.
  let r = (x - n * 0.693359375) - n * -2.12194440e-4;
  let scaled = bitcast<f32>(bitcast<u32>(exp_polynomial(r)) + (rounder << 23u));
  // Infinity, zero or NaN, for which SwiftShader's exp2 is infinite.
  return select(select(x * 3e38, 0.0, x < 0.0), scaled, (x > -87.33) & (x < 88.72284));
}

// exp(r) for |r| <= ln(2) / 2.
fn exp_polynomial(r: f32) -> f32 {
  var p = 1.9875691500e-4;
  p = p * r + 1.3981999507e-3;
  p = p * r + 8.3334519073e-3;
  p = p * r + 4.1665795894e-2;
  p = p * r + 1.6666665459e-1;
  p = p * r + 5.0000001201e-1;
  return p * (r * r) + r + 1.0;
}

// p * 2^n for p around 1 and -151 <= n <= 129: two factors, since 2^n itself may not be a normal number.
fn scale_exp(p: f32, n: i32) -> f32 {
  let half = n >> 1u;
  return p * power_of_two(half) * power_of_two(n - half);
}

fn exp2_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let clamped = clamp(x, -151.0, 129.0);
  let n = round(clamped);
  return scale_exp(exp2_polynomial(clamped - n), i32(n));
}

// torch.ldexp: any real exponent.
fn ldexp_f(x: f32, exponent: f32) -> f32 { return x * exp2_f(exponent); }

// 2^r for |r| <= 1/2; exactly 1 at 0.
fn exp2_polynomial(r: f32) -> f32 {
  var p = 1.535336188319500e-4;
  p = p * r + 1.339887440266574e-3;
  p = p * r + 9.618437357674640e-3;
  p = p * r + 5.550332471162809e-2;
  p = p * r + 2.402264791363012e-1;
  p = p * r + 6.931472028550421e-1;
  return p * r + 1.0;
}

fn expm1_f(x: f32) -> f32 {
  if (isnan_f(x) || magnitude_bits(x) < 0x33000000u) { return x; }
  if (x < -17.5) { return -1.0; }
  if (x > 40.0) { return exp_f(x); }
  let n = round(x * 1.44269504);
  let r = (x - n * 0.693359375) - n * -2.12194440e-4;
  var p = 1.9875691500e-4;
  p = p * r + 1.3981999507e-3;
  p = p * r + 8.3334519073e-3;
  p = p * r + 4.1665795894e-2;
  p = p * r + 1.6666665459e-1;
  p = p * r + 5.0000001201e-1;
  p = p * (r * r) + r;
  let scale = power_of_two(i32(n));
  return p * scale + (scale - 1.0);
}

fn sigmoid_f(x: f32) -> f32 {
  let e = exp_f(-abs(x));
  return select(e, 1.0, x >= 0.0) / (1.0 + e);
}
