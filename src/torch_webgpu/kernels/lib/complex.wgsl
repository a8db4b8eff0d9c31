// Complex numbers as vec2<f32>(real, imaginary); branch cuts and signs of zero as in C's <complex.h>.

// Drivers fold x * 0 and 0 / x to 0 where they know the zero, as the imaginary part of a real operand. A product of what
// is not finite has a part that is not finite, whatever was folded: then it is formed again, by products that are not.
fn c_mul(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  let product = vec2<f32>(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
  if (isfinite_f(product.x) && isfinite_f(product.y)) { return product; }
  return vec2<f32>(
    unfolded_product_f(a.x, b.x) - unfolded_product_f(a.y, b.y),
    unfolded_product_f(a.x, b.y) + unfolded_product_f(a.y, b.x));
}

// a * b, NaN for zero times infinity by their bits.
fn unfolded_product_f(a: f32, b: f32) -> f32 {
  let low = min(magnitude_bits(a), magnitude_bits(b));
  let high = max(magnitude_bits(a), magnitude_bits(b));
  return select(a * b, nan_f(), (high > 0x7f800000u) | ((high == 0x7f800000u) & (low == 0u)));
}

// x / 0 by the bits of x.
fn over_zero_f(x: f32) -> f32 {
  return select(copysign_f(inf_f(), x), nan_f(), (magnitude_bits(x) == 0u) | isnan_f(x));
}

// Smith's division: scaled by the larger part of the divisor. What is not finite is treated as in c_mul.
fn c_div(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  if (isnan_f(b.x) || isnan_f(b.y)) { return vec2<f32>(nan_f(), nan_f()); }
  if (b.x == 0.0 && b.y == 0.0) { return vec2<f32>(over_zero_f(a.x), over_zero_f(a.y)); }
  let by_real = abs(b.x) >= abs(b.y);
  let ratio = select(quotient_f(b.x, b.y), quotient_f(b.y, b.x), by_real);
  let divisor = select(b.x * ratio + b.y, b.x + b.y * ratio, by_real);
  let large = select(vec2<f32>(a.y, -a.x), a, by_real);
  let small = select(a, vec2<f32>(a.y, -a.x), by_real);
  let quotient = vec2<f32>(
    quotient_f(large.x + small.x * ratio, divisor), quotient_f(large.y + small.y * ratio, divisor));
  if (isfinite_f(quotient.x) && isfinite_f(quotient.y)) { return quotient; }
  return vec2<f32>(
    quotient_f(large.x + unfolded_product_f(small.x, ratio), divisor),
    quotient_f(large.y + unfolded_product_f(small.y, ratio), divisor));
}

fn c_reciprocal(z: vec2<f32>) -> vec2<f32> {
  if (z.x == 0.0 && z.y == 0.0) { return vec2<f32>(inf_f(), nan_f()); }
  return c_div(vec2<f32>(1.0, 0.0), z);
}

fn c_abs(z: vec2<f32>) -> f32 { return hypot_f(z.x, z.y); }

fn c_angle(z: vec2<f32>) -> f32 { return atan2_f(z.y, z.x); }

// z / |z|, and 0 at 0.
fn c_sgn(z: vec2<f32>) -> vec2<f32> {
  let magnitude = c_abs(z);
  if (magnitude == 0.0) { return vec2<f32>(0.0, 0.0); }
  return vec2<f32>(quotient_f(z.x, magnitude), quotient_f(z.y, magnitude));
}

// scale * (cos y, sin y), where a zero angle leaves the imaginary part zero even at an infinite scale.
fn c_polar(scale: f32, angle: f32) -> vec2<f32> {
  if (angle == 0.0) { return vec2<f32>(scale, angle); }
  return vec2<f32>(scale * cos_f(angle), scale * sin_f(angle));
}

fn c_exp(z: vec2<f32>) -> vec2<f32> {
  // exp(x) overflows before its product with a small sine does.
  if (z.x > 88.0 && z.x < 180.0) { return c_polar(exp_f(0.5 * z.x), z.y) * exp_f(0.5 * z.x); }
  if (bitcast<u32>(z.x) == 0xff800000u) { return vec2<f32>(0.0, 0.0); }
  return c_polar(exp_f(z.x), z.y);
}

fn c_exp2(z: vec2<f32>) -> vec2<f32> { return c_exp(z * 0.69314718055994531); }

fn c_expm1(z: vec2<f32>) -> vec2<f32> {
  if (z.x > 80.0 || !isfinite_f(z.x)) { return c_exp(z) - vec2<f32>(1.0, 0.0); }
  let half_sine = sin_f(0.5 * z.y);
  return vec2<f32>(expm1_f(z.x) * cos_f(z.y) - 2.0 * half_sine * half_sine, exp_f(z.x) * sin_f(z.y));
}

// log|z|, without cancellation near |z| = 1.
fn c_log_abs(z: vec2<f32>) -> f32 {
  let large = max(abs(z.x), abs(z.y));
  let small = min(abs(z.x), abs(z.y));
  if (isinf_f(z.x) || isinf_f(z.y)) { return inf_f(); }
  if (isnan_f(z.x) || isnan_f(z.y)) { return nan_f(); }
  if (large > 0.5 && large < 2.0) { return 0.5 * log1p_f((large - 1.0) * (large + 1.0) + small * small); }
  if (large == 0.0) { return -inf_f(); }
  let ratio = quotient_f(small, large);
  return log_f(large) + 0.5 * log1p_f(ratio * ratio);
}

fn c_log(z: vec2<f32>) -> vec2<f32> { return vec2<f32>(c_log_abs(z), c_angle(z)); }

fn c_log2(z: vec2<f32>) -> vec2<f32> { return c_log(z) * 1.4426950408889634; }

fn c_log10(z: vec2<f32>) -> vec2<f32> { return c_log(z) * 0.43429448190325183; }

fn c_log1p(z: vec2<f32>) -> vec2<f32> {
  if (max(abs(z.x), abs(z.y)) < 0.5) {
    return vec2<f32>(0.5 * log1p_f(z.x * (2.0 + z.x) + z.y * z.y), atan2_f(z.y, 1.0 + z.x));
  }
  return c_log(vec2<f32>(1.0 + z.x, z.y));
}

// By the half-angle formulas, scaled away from overflow and denormals.
fn c_sqrt(z: vec2<f32>) -> vec2<f32> {
  if (isinf_f(z.y)) { return vec2<f32>(inf_f(), z.y); }
  let magnitude = c_abs(z);
  if (magnitude == 0.0) { return vec2<f32>(0.0, z.y); }
  if (isinf_f(z.x)) {
    let vanishing = select(0.0, nan_f(), isnan_f(z.y));
    if (z.x > 0.0) { return vec2<f32>(z.x, copysign_f(vanishing, z.y)); }
    return vec2<f32>(vanishing, copysign_f(inf_f(), z.y));
  }
  var n = frexp_exponent_f(max(abs(z.x), abs(z.y)));
  n -= n & 1;
  let scaled = vec2<f32>(scale_f(z.x, -n), scale_f(z.y, -n));
  let t = sqrt(0.5 * (abs(scaled.x) + sqrt(scaled.x * scaled.x + scaled.y * scaled.y)));
  let other = 0.5 * abs(scaled.y) / t;
  let root = select(vec2<f32>(other, t), vec2<f32>(t, other), z.x >= 0.0);
  let half = n / 2;
  return vec2<f32>(scale_f(root.x, half), copysign_f(scale_f(root.y, half), z.y));
}

fn c_pow(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  if (b.x == 0.0 && b.y == 0.0) { return vec2<f32>(1.0, 0.0); }
  if (a.x == 0.0 && a.y == 0.0) {
    if (b.x > 0.0 && b.y == 0.0) { return vec2<f32>(0.0, 0.0); }
    return vec2<f32>(nan_f(), nan_f());
  }
  // |a|^Re(b) by pow, whose logarithm has the digits that a large exponent needs.
  let angle = c_angle(a);
  let phase = b.y * c_log_abs(a) + b.x * angle;
  return c_polar(pow_f(c_abs(a), b.x) * exp_f(-b.y * angle), phase);
}

fn c_sigmoid(z: vec2<f32>) -> vec2<f32> {
  // Near the poles, at odd multiples of i * pi, 1 + exp(-z) cancels.
  if (abs(z.x) < 1.0) { return vec2<f32>(0.5, 0.0) + 0.5 * c_tanh(0.5 * z); }
  let e = c_exp(-z);
  return c_reciprocal(vec2<f32>(1.0 + e.x, e.y));
}

// i * z and -i * z
fn c_times_i(z: vec2<f32>) -> vec2<f32> { return vec2<f32>(-z.y, z.x); }

fn c_over_i(z: vec2<f32>) -> vec2<f32> { return vec2<f32>(z.y, -z.x); }

// exp(|x|) / 2 * (cos y, sin y): the hyperbolic functions far from the imaginary axis, which may overflow alone.
fn c_half_exp(z: vec2<f32>) -> vec2<f32> {
  let root = exp_f(0.5 * abs(z.x));
  return c_polar(0.5 * root, z.y) * root;
}

fn c_sinh(z: vec2<f32>) -> vec2<f32> {
  if (abs(z.x) > 80.0 && abs(z.x) < 180.0) {
    let v = c_half_exp(z);
    return vec2<f32>(select(v.x, -v.x, z.x < 0.0), v.y);
  }
  if (z.y == 0.0) { return vec2<f32>(sinh_f(z.x), z.y); }
  return vec2<f32>(sinh_f(z.x) * cos_f(z.y), cosh_f(z.x) * sin_f(z.y));
}

fn c_cosh(z: vec2<f32>) -> vec2<f32> {
  if (abs(z.x) > 80.0 && abs(z.x) < 180.0) {
    let v = c_half_exp(z);
    return vec2<f32>(v.x, select(v.y, -v.y, z.x < 0.0));
  }
  if (z.y == 0.0 || z.x == 0.0) { return vec2<f32>(cosh_f(z.x) * cos_f(z.y), z.x * z.y); }
  return vec2<f32>(cosh_f(z.x) * cos_f(z.y), sinh_f(z.x) * sin_f(z.y));
}

// W. Kahan, "Branch cuts for complex elementary functions", 1987; so are the inverse functions.
fn c_tanh(z: vec2<f32>) -> vec2<f32> {
  if (abs(z.x) > 11.0) {
    let decay = exp_f(-2.0 * min(abs(z.x), 60.0));
    return vec2<f32>(copysign_f(1.0, z.x), 4.0 * sin_f(z.y) * cos_f(z.y) * decay);
  }
  let t = tan_f(z.y);
  let beta = 1.0 + t * t;
  let s = sinh_f(z.x);
  let rho = sqrt(1.0 + s * s);
  return vec2<f32>(beta * rho * s, t) / (1.0 + beta * s * s);
}

fn c_sin(z: vec2<f32>) -> vec2<f32> { return c_over_i(c_sinh(c_times_i(z))); }

fn c_cos(z: vec2<f32>) -> vec2<f32> { return c_cosh(c_times_i(z)); }

fn c_tan(z: vec2<f32>) -> vec2<f32> { return c_over_i(c_tanh(c_times_i(z))); }

fn c_asin(z: vec2<f32>) -> vec2<f32> {
  let minus = c_sqrt(vec2<f32>(1.0 - z.x, -z.y));
  let plus = c_sqrt(vec2<f32>(1.0 + z.x, z.y));
  let imaginary = minus.x * plus.y - minus.y * plus.x;
  return vec2<f32>(atan2_f(z.x, minus.x * plus.x - minus.y * plus.y), asinh_f(imaginary));
}

fn c_acos(z: vec2<f32>) -> vec2<f32> {
  let minus = c_sqrt(vec2<f32>(1.0 - z.x, -z.y));
  let plus = c_sqrt(vec2<f32>(1.0 + z.x, z.y));
  return vec2<f32>(2.0 * atan2_f(minus.x, plus.x), asinh_f(plus.x * minus.y - plus.y * minus.x));
}

fn c_acosh(z: vec2<f32>) -> vec2<f32> {
  let minus = c_sqrt(vec2<f32>(z.x - 1.0, z.y));
  let plus = c_sqrt(vec2<f32>(z.x + 1.0, z.y));
  return vec2<f32>(asinh_f(minus.x * plus.x + minus.y * plus.y), 2.0 * atan2_f(minus.y, plus.x));
}

fn c_asinh(z: vec2<f32>) -> vec2<f32> { return c_over_i(c_asin(c_times_i(z))); }

fn c_atanh(z: vec2<f32>) -> vec2<f32> {
  let near = 1.0 - abs(z.x);
  let square = near * near + z.y * z.y;
  let imaginary = 0.5 * atan2_f(2.0 * z.y, near * (1.0 + abs(z.x)) - z.y * z.y);
  if (isinf_f(square)) { return vec2<f32>(copysign_f(0.0, z.x), copysign_f(1.5707963267948966, z.y)); }
  // At the branch points the square underflows before the logarithm overflows.
  if (square < 1e-30) {
    let real = 0.34657359 - 0.5 * c_log_abs(vec2<f32>(near, z.y));
    return vec2<f32>(copysign_f(real, z.x), imaginary);
  }
  return vec2<f32>(copysign_f(0.25 * log1p_f(4.0 * abs(z.x) / square), z.x), imaginary);
}

fn c_atan(z: vec2<f32>) -> vec2<f32> { return c_over_i(c_atanh(c_times_i(z))); }
