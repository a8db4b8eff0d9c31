// Trigonometric and hyperbolic functions and their inverses in doubles, for every finite argument. Polynomials fitted to
// mpmath's values in the least maximum of the relative error.

// x = quadrant * pi/2 + rest with |rest| <= pi/4 (a little more after rounding); the quadrant modulo 4.
struct Quadrant_d { rest: f64, quadrant: u32 }

fn reduce_quadrant_d(x: f64) -> Quadrant_d {
  if (abs(x) >= 67108864.0lf) { return reduce_quadrant_large_d(x); }
  let n = round_d(x * 0.6366197723675814lf);
  // pi/2 in four parts, the first three so short that their products with n are exact.
  let high = less_d(less_d(x, n, 1.5707963109016418lf), n, 1.5893254712295857e-08lf);
  let rest = less_d(high, n, 6.123233932053594e-17lf) - n * 6.36831716351095e-25lf;
  return Quadrant_d(rest, bitcast<u32>(i32(n)) & 3u);
}

// Payne and Hanek: x * 2/pi modulo 4 in fixed point, from the 192 bits of 2/pi that matter for the exponent of x.
fn reduce_quadrant_large_d(x: f64) -> Quadrant_d {
  let split = split_d(abs(x));
  // |x| = mantissa * 2^(e - 53)
  let mantissa = split.m * 9007199254740992.0lf;
  let upper = floor(mantissa * 2.3283064365386963e-10lf);
  let a1 = u32(upper);
  let a0 = u32(mantissa - upper * 4294967296.0lf);
  let position = u32(i32(split.e) - 23);
  let word = position >> 5u;
  let shift = position & 31u;
  // The product modulo 2^192, lowest word first.
  var product = array<u32, 6>();
  var carry0 = 0u;
  var carry1 = 0u;
  var before = 0u;
  for (var i = 0u; i < 6u; i += 1u) {
    let bits = two_over_pi_window(word + 5u - i, shift);
    let first = multiply_add(a0, bits, carry0, carry1);
    let second = multiply_add(a1, before, first.x, 0u);
    product[i] = second.x;
    carry0 = first.y;
    carry1 = second.y;
    before = bits;
  }
  var quadrant = product[5] >> 30u;
  var f3 = (product[5] << 2u) | (product[4] >> 30u);
  var f2 = (product[4] << 2u) | (product[3] >> 30u);
  var f1 = (product[3] << 2u) | (product[2] >> 30u);
  var f0 = (product[2] << 2u) | (product[1] >> 30u);
  let nearer = (f3 >> 31u) != 0u;
  if (nearer) {
    quadrant += 1u;
    f3 = ~f3;
    f2 = ~f2;
    f1 = ~f1;
    f0 = ~f0;
  }
  let small = f64(f1) * 1.262177448353619e-29lf + f64(f0) * 2.938735877055719e-39lf;
  let fraction = f64(f3) * 2.3283064365386963e-10lf + (f64(f2) * 5.421010862427522e-20lf + small);
  let rest = select(fraction, -fraction, nearer) * 1.5707963267948966lf;
  if (x < 0.0lf) { return Quadrant_d(-rest, (0u - quadrant) & 3u); }
  return Quadrant_d(rest, quadrant & 3u);
}

// a * b + c + d, low word first.
fn multiply_add(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> {
  let wide = u32_mul_wide(a, b);
  let first = wide.x + c;
  let second = first + d;
  return vec2<u32>(second, wide.y + select(0u, 1u, first < c) + select(0u, 1u, second < d));
}

// 32 bits of 2/pi from bit 32 * word + shift on, of which the first 32 are zeros before the point.
fn two_over_pi_window(word: u32, shift: u32) -> u32 {
  let high = two_over_pi_long(word);
  return select((high << shift) | (two_over_pi_long(word + 1u) >> (32u - shift)), high, shift == 0u);
}

// The first words are those that float needs.
fn two_over_pi_long(word: u32) -> u32 {
  switch word {
    case 9u: { return 0xb7246e3au; }
    case 10u: { return 0x424dd2e0u; }
    case 11u: { return 0x06492eeau; }
    case 12u: { return 0x09d1921cu; }
    case 13u: { return 0xfe1deb1cu; }
    case 14u: { return 0xb129a73eu; }
    case 15u: { return 0xe88235f5u; }
    case 16u: { return 0x2ebb4484u; }
    case 17u: { return 0xe99c7026u; }
    case 18u: { return 0xb45f7e41u; }
    case 19u: { return 0x3991d639u; }
    case 20u: { return 0x835339f4u; }
    case 21u: { return 0x9c845f8bu; }
    case 22u: { return 0xbdf9283bu; }
    case 23u: { return 0x1ff897ffu; }
    case 24u: { return 0xde05980fu; }
    case 25u: { return 0xef2f118bu; }
    case 26u: { return 0x5a0a6d1fu; }
    case 27u: { return 0x6d367ecfu; }
    case 28u: { return 0x27cb09b7u; }
    case 29u: { return 0x4f463f66u; }
    case 30u: { return 0x9e5fea2du; }
    case 31u: { return 0x7527bac7u; }
    case 32u: { return 0xebe5f17bu; }
    case 33u: { return 0x3d0739f7u; }
    case 34u: { return 0x8a5292eau; }
    case 35u: { return 0x6bfb5fb1u; }
    case 36u: { return 0x1f8d5d08u; }
    case 37u: { return 0x56033046u; }
    case 38u: { return 0xfc7b6babu; }
    case 39u: { return 0xf0cfbc20u; }
    case 40u: { return 0x9af4361du; }
    default: { return two_over_pi_word(word); }
  }
}

// For |r| <= pi/4.
fn sin_polynomial_d(r: f64) -> f64 {
  let z = r * r;
  var p = -7.586636882825159e-13lf;
  p = p * z + 1.6058530596645953e-10lf;
  p = p * z - 2.50521062259944e-08lf;
  p = p * z + 2.755731921932058e-06lf;
  p = p * z - 0.0001984126984126504lf;
  p = p * z + 0.008333333333333331lf;
  p = p * z - 0.16666666666666666lf;
  return p * z * r + r;
}

fn cos_polynomial_d(r: f64) -> f64 {
  let z = r * r;
  var p = 4.745838412531023e-14lf;
  p = p * z - 1.1470460319209511e-11lf;
  p = p * z + 2.0876755787492604e-09lf;
  p = p * z - 2.755731922139249e-07lf;
  p = p * z + 2.4801587301584632e-05lf;
  p = p * z - 0.0013888888888888887lf;
  p = p * z + 0.041666666666666664lf;
  let half = 0.5lf * z;
  let whole = 1.0lf - half;
  return whole + (((1.0lf - whole) - half) + p * z * z);
}

fn sin_d(x: f64) -> f64 {
  if (!isfinite_d(x)) { return nan_d(); }
  if (abs(x) < 1e-9lf) { return x; }
  let reduced = reduce_quadrant_d(x);
  let value = select(sin_polynomial_d(reduced.rest), cos_polynomial_d(reduced.rest), (reduced.quadrant & 1u) != 0u);
  return select(value, -value, (reduced.quadrant & 2u) != 0u);
}

fn cos_d(x: f64) -> f64 {
  if (!isfinite_d(x)) { return nan_d(); }
  let reduced = reduce_quadrant_d(x);
  let value = select(cos_polynomial_d(reduced.rest), sin_polynomial_d(reduced.rest), (reduced.quadrant & 1u) != 0u);
  return select(value, -value, ((reduced.quadrant + 1u) & 2u) != 0u);
}

fn tan_d(x: f64) -> f64 {
  if (!isfinite_d(x)) { return nan_d(); }
  if (abs(x) < 1e-9lf) { return x; }
  let reduced = reduce_quadrant_d(x);
  let sine = sin_polynomial_d(reduced.rest);
  let cosine = cos_polynomial_d(reduced.rest);
  let odd = (reduced.quadrant & 1u) != 0u;
  return select(sine, -cosine, odd) / select(cosine, sine, odd);
}

// asin(a) - a over a for 0 <= a <= 1/2, as a function of z = a^2.
fn asin_tail_d(z: f64) -> f64 {
  var p = 0.02877844261259304lf;
  p = p * z - 0.014881409392818066lf;
  p = p * z + 0.017419357964884856lf;
  p = p * z + 0.00545087818772055lf;
  p = p * z + 0.010324318288744113lf;
  p = p * z + 0.011478952690257387lf;
  p = p * z + 0.013971235301124539lf;
  p = p * z + 0.017352391265909227lf;
  p = p * z + 0.022372173002005596lf;
  p = p * z + 0.030381944137085216lf;
  p = p * z + 0.04464285714637338lf;
  p = p * z + 0.07499999999998425lf;
  p = p * z + 0.16666666666666669lf;
  return p * z;
}

fn asin_d(x: f64) -> f64 {
  let a = abs(x);
  if (!(a <= 1.0lf)) { return nan_d(); }
  if (a <= 0.5lf) { return x + x * asin_tail_d(x * x); }
  let z = 0.5lf * (1.0lf - a);
  let root = sqrt(z);
  return copysign_d(1.5707963267948966lf - (2.0lf * (root + root * asin_tail_d(z)) - 6.123233995736766e-17lf), x);
}

fn acos_d(x: f64) -> f64 {
  let a = abs(x);
  if (!(a <= 1.0lf)) { return nan_d(); }
  if (a <= 0.5lf) { return 1.5707963267948966lf - (x - (6.123233995736766e-17lf - x * asin_tail_d(x * x))); }
  let z = 0.5lf * (1.0lf - a);
  let root = sqrt(z);
  let half = 2.0lf * (root + root * asin_tail_d(z));
  return select(half, 3.141592653589793lf - (half - 1.2246467991473532e-16lf), x < 0.0lf);
}

// For 0 <= a, infinity included.
fn atan_positive_d(a: f64) -> f64 {
  var high = 0.0lf;
  var low = 0.0lf;
  var r = a;
  if (a > 2.414213562373095lf) {
    high = 1.5707963267948966lf;
    low = 6.123233995736766e-17lf;
    r = -1.0lf / a;
  } else if (a > 0.4142135623730950lf) {
    high = 0.7853981633974483lf;
    low = 3.061616997868383e-17lf;
    r = (a - 1.0lf) / (a + 1.0lf);
  }
  let z = r * r;
  var p = -0.01917627151752634lf;
  p = p * z + 0.0392311556198723lf;
  p = p * z - 0.050854323376990765lf;
  p = p * z + 0.05858145587628202lf;
  p = p * z - 0.06664511064599371lf;
  p = p * z + 0.07692183163650894lf;
  p = p * z - 0.09090904576954117lf;
  p = p * z + 0.11111111015227572lf;
  p = p * z - 0.14285714284666184lf;
  p = p * z + 0.19999999999995519lf;
  p = p * z - 0.3333333333333333lf;
  return high + (r + (p * z * r + low));
}

fn atan_d(x: f64) -> f64 {
  if (isnan_d(x)) { return x; }
  return copysign_d(atan_positive_d(abs(x)), x);
}

fn atan2_d(y: f64, x: f64) -> f64 {
  if (isnan_d(x) || isnan_d(y)) { return nan_d(); }
  let a = abs(x);
  let b = abs(y);
  var angle = 0.0lf;
  if (b == 0.0lf && a == 0.0lf) {
    angle = 0.0lf;
  } else if (!isfinite_d(a) && !isfinite_d(b)) {
    angle = 0.7853981633974483lf;
  } else if (b > a) {
    angle = 1.5707963267948966lf - (atan_positive_d(a / b) - 6.123233995736766e-17lf);
  } else {
    angle = atan_positive_d(b / a);
  }
  if (signbit_d(x)) { angle = 3.141592653589793lf - (angle - 1.2246467991473532e-16lf); }
  return copysign_d(angle, y);
}

// torch.sinc: the product with pi is rounded before the sine, as CPU PyTorch does.
fn sinc_d(x: f64) -> f64 {
  if (x == 0.0lf) { return 1.0lf; }
  let product = x * 3.141592653589793lf;
  return sin_d(product) / product;
}

// Hyperbolic functions, from expm1 and log1p where differences would cancel.

fn sinh_d(x: f64) -> f64 {
  let a = abs(x);
  if (isnan_d(x) || a < 1e-9lf) { return x; }
  if (a > 700.0lf) {
    let root = exp_d(0.5lf * a);
    return copysign_d((0.5lf * root) * root, x);
  }
  let t = expm1_d(a);
  return copysign_d(0.5lf * (t + t / (t + 1.0lf)), x);
}

fn cosh_d(x: f64) -> f64 {
  let a = abs(x);
  if (a > 700.0lf) {
    let root = exp_d(0.5lf * a);
    return (0.5lf * root) * root;
  }
  let e = exp_d(a);
  return 0.5lf * e + 0.5lf / e;
}

fn tanh_d(x: f64) -> f64 {
  let a = abs(x);
  if (isnan_d(x) || a < 1e-9lf) { return x; }
  let t = expm1_d(2.0lf * min(a, 25.0lf));
  return copysign_d(select(t / (t + 2.0lf), 1.0lf - 2.0lf / (t + 2.0lf), a >= 1.0lf), x);
}

fn asinh_d(x: f64) -> f64 {
  let a = abs(x);
  if (isnan_d(x) || a < 1e-9lf) { return x; }
  if (a > 1e8lf) { return copysign_d(log_d(a) + 0.6931471805599453lf, x); }
  let z = a * a;
  return copysign_d(log1p_d(a + z / (1.0lf + sqrt(z + 1.0lf))), x);
}

fn acosh_d(x: f64) -> f64 {
  if (!(x >= 1.0lf)) { return nan_d(); }
  if (x > 1e8lf) { return log_d(x) + 0.6931471805599453lf; }
  let t = x - 1.0lf;
  return log1p_d(t + sqrt(2.0lf * t + t * t));
}

fn atanh_d(x: f64) -> f64 {
  let a = abs(x);
  if (!(a <= 1.0lf)) { return nan_d(); }
  if (a == 1.0lf) { return copysign_d(inf_d(), x); }
  if (a < 1e-9lf) { return x; }
  return copysign_d(0.5lf * log1p_d(2.0lf * a / (1.0lf - a)), x);
}
