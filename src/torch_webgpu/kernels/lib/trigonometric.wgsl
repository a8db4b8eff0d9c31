// sin, cos, tan for every finite argument, and their inverses. Polynomials of Cephes' single-precision library.

// x = quadrant * pi/2 + rest with |rest| <= pi/4 (a little more after rounding); the quadrant modulo 4.
struct Quadrant { rest: f32, quadrant: u32 }

fn reduce_quadrant(x: f32) -> Quadrant {
  if (abs(x) >= 8000.0) { return reduce_quadrant_large(x); }
  let n = round(x * 0.636619772367581);
  // pi/2 in four parts, the first three so short that their products with n are exact.
  let high = (x - n * 1.5703125) - n * 0.0004837512969970703125;
  let rest = (high - n * 7.5495336204767227173e-8) - n * 2.56334415159e-12;
  return Quadrant(rest, bitcast<u32>(i32(n)) & 3u);
}

// Payne and Hanek: x * 2/pi modulo 4 in fixed point, from the 96 bits of 2/pi that matter for the exponent of x.
fn reduce_quadrant_large(x: f32) -> Quadrant {
  let mantissa = mantissa_of(x);
  // x = bits * 2^exponent with bits in the top of a word: 62 bits of fraction are wanted below two of the integer part.
  let bits = mantissa.bits << 8u;
  let position = u32(mantissa.exponent + 22);
  let word = position >> 5u;
  let shift = position & 31u;
  let w0 = two_over_pi_bits(word, shift);
  let w1 = two_over_pi_bits(word + 1u, shift);
  let w2 = two_over_pi_bits(word + 2u, shift);
  let p2 = u32_mul_wide(bits, w2).y;
  let p1 = u32_mul_wide(bits, w1);
  let low = p1.x + p2;
  let carry = select(0u, 1u, low < p1.x);
  let high = bits * w0 + p1.y + carry;
  // Two bits of quadrant, 62 of fraction; round to the nearest quadrant.
  var quadrant = high >> 30u;
  var fraction_high = (high << 2u) | (low >> 30u);
  var fraction_low = low << 2u;
  let upper = (fraction_high >> 31u) != 0u;
  if (upper) {
    quadrant += 1u;
    fraction_high = ~fraction_high;
    fraction_low = ~fraction_low;
  }
  let zeros = countLeadingZeros(fraction_high);
  let shifted = select((fraction_high << zeros) | (fraction_low >> (32u - zeros)), fraction_high, zeros == 0u);
  var rest = f32(select(shifted, fraction_low, zeros == 32u)) * 3.6572951981e-10 * power_of_two(-i32(min(zeros, 62u)));
  if (upper) { rest = -rest; }
  if (signbit_f(x)) { return Quadrant(-rest, (0u - quadrant) & 3u); }
  return Quadrant(rest, quadrant & 3u);
}

// 32 bits of 2/pi from bit 32 * word + shift on.
fn two_over_pi_bits(word: u32, shift: u32) -> u32 {
  let high = two_over_pi_word(word);
  return select((high << shift) | (two_over_pi_word(word + 1u) >> (32u - shift)), high, shift == 0u);
}

// 2/pi = 0.101000101111..., from 32 zero bits before the point on.
fn two_over_pi_word(word: u32) -> u32 {
  switch word {
    case 1u: { return 0xa2f9836eu; }
    case 2u: { return 0x4e441529u; }
    case 3u: { return 0xfc2757d1u; }
    case 4u: { return 0xf534ddc0u; }
    case 5u: { return 0xdb629599u; }
    case 6u: { return 0x3c439041u; }
    case 7u: { return 0xfe5163abu; }
    case 8u: { return 0xdebbc561u; }
    default: { return 0u; }
  }
}

// For |r| <= pi/4.
fn sin_polynomial(r: f32) -> f32 {
  let z = r * r;
  return ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
}

fn cos_polynomial(r: f32) -> f32 {
  let z = r * r;
  return ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0;
}

fn sin_f(x: f32) -> f32 {
  if (!isfinite_f(x)) { return nan_f(); }
  if (magnitude_bits(x) < 0x39800000u) { return x; }
  let reduced = reduce_quadrant(x);
  let value = select(sin_polynomial(reduced.rest), cos_polynomial(reduced.rest), (reduced.quadrant & 1u) != 0u);
  return select(value, -value, (reduced.quadrant & 2u) != 0u);
}

fn cos_f(x: f32) -> f32 {
  if (!isfinite_f(x)) { return nan_f(); }
  let reduced = reduce_quadrant(x);
  let value = select(cos_polynomial(reduced.rest), sin_polynomial(reduced.rest), (reduced.quadrant & 1u) != 0u);
  return select(value, -value, ((reduced.quadrant + 1u) & 2u) != 0u);
}

fn tan_f(x: f32) -> f32 {
  if (!isfinite_f(x)) { return nan_f(); }
  if (magnitude_bits(x) < 0x39800000u) { return x; }
  let reduced = reduce_quadrant(x);
  let z = reduced.rest * reduced.rest;
  var p = 9.38540185543e-3;
  p = p * z + 3.11992232697e-3;
  p = p * z + 2.44301354525e-2;
  p = p * z + 5.34112807005e-2;
  p = p * z + 1.33387994085e-1;
  p = p * z + 3.33331568548e-1;
  let tangent = p * z * reduced.rest + reduced.rest;
  return select(tangent, -1.0 / tangent, (reduced.quadrant & 1u) != 0u);
}

// asin(a) - a over a for 0 <= a <= 1/2, as a function of z = a^2.
fn asin_tail(z: f32) -> f32 {
  var p = 4.2163199048e-2;
  p = p * z + 2.4181311049e-2;
  p = p * z + 4.5470025998e-2;
  p = p * z + 7.4953002686e-2;
  p = p * z + 1.6666752422e-1;
  return p * z;
}

fn asin_f(x: f32) -> f32 {
  let a = abs(x);
  if (!(a <= 1.0)) { return nan_f(); }
  if (a <= 0.5) { return x + x * asin_tail(x * x); }
  let z = 0.5 * (1.0 - a);
  let root = sqrt(z);
  return copysign_f(1.5707963267948966 - 2.0 * (root + root * asin_tail(z)), x);
}

fn acos_f(x: f32) -> f32 {
  let a = abs(x);
  if (!(a <= 1.0)) { return nan_f(); }
  if (a <= 0.5) { return 1.5707963267948966 - (x + x * asin_tail(x * x)); }
  let z = 0.5 * (1.0 - a);
  let root = sqrt(z);
  let half = 2.0 * (root + root * asin_tail(z));
  return select(half, 3.14159265358979323846 - half, signbit_f(x));
}

// For 0 <= a, infinity included.
fn atan_positive(a: f32) -> f32 {
  var offset = 0.0;
  var r = a;
  if (a > 2.414213562373095) {
    offset = 1.5707963267948966;
    r = -1.0 / a;
  } else if (a > 0.4142135623730950) {
    offset = 0.7853981633974483;
    r = (a - 1.0) / (a + 1.0);
  }
  let z = r * r;
  let p = ((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1;
  return offset + (p * z * r + r);
}

fn atan_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  return copysign_f(atan_positive(abs(x)), x);
}

fn atan2_f(y: f32, x: f32) -> f32 {
  if (isnan_f(x) || isnan_f(y)) { return nan_f(); }
  let a = abs(x);
  let b = abs(y);
  var angle = 0.0;
  if (b == 0.0 && a == 0.0) {
    angle = 0.0;
  } else if (isinf_f(a) && isinf_f(b)) {
    angle = 0.7853981633974483;
  } else if (b > a) {
    angle = 1.5707963267948966 - atan_positive(quotient_f(a, b));
  } else {
    angle = atan_positive(quotient_f(b, a));
  }
  if (signbit_f(x)) { angle = 3.14159265358979323846 - angle; }
  return copysign_f(angle, y);
}

// torch.sinc: the product with pi is rounded before the sine, as CPU PyTorch does.
fn sinc_f(x: f32) -> f32 {
  if (x == 0.0) { return 1.0; }
  let product = x * 3.14159265358979323846;
  return sin_f(product) / product;
}
