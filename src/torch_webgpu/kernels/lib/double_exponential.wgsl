// exp, log and their relatives in doubles. Naga has no such functions of f64, nor its bits: numbers are taken apart and
// put together by powers of two. Polynomials fitted to mpmath's values in the least maximum of the relative error.

// x * 2^n for whole |n| <= 2200: in factors that all grow or all shrink, so that it is rounded once.
fn scale_d(x: f64, n: i32) -> f64 {
  let size = u32(abs(n));
  let sixteenth = i32(size >> 4u);
  let rest = i32(size & 15u);
  let root = f64(power_of_two(select(min(sixteenth, 127), -min(sixteenth, 126), n < 0)));
  let square = root * root;
  let eighth = (square * square) * (square * square);
  return x * f64(power_of_two(select(rest, -rest, n < 0))) * eighth * eighth;
}

fn inf_d() -> f64 { return f64(inf_f()); }

fn nan_d() -> f64 { return f64(nan_f()); }

fn isnan_d(x: f64) -> bool { return !(x == x); }

fn isfinite_d(x: f64) -> bool { return abs(x) <= 1.7976931348623157e308lf; }

fn signbit_d(x: f64) -> bool { return signbit_f(f32(x)); }

fn copysign_d(x: f64, sign: f64) -> f64 { return select(abs(x), -abs(x), signbit_d(sign)); }

// A finite x > 0 as m * 2^e: m in [sqrt(1/2), sqrt(2)), but for a rounding to float.
struct Split_d { m: f64, e: f64 }

fn split_d(x: f64) -> Split_d {
  let scaled = within_floats(x);
  let exponent = bitcast<i32>(bitcast<u32>(f32(scaled.m)) - 0x3f3504f3u) >> 23u;
  return Split_d(scaled.m * f64(power_of_two(-exponent)), scaled.e + f64(exponent));
}

// A finite x > 0 as m * 2^e where the float nearest to m is a normal number.
fn within_floats(x: f64) -> Split_d {
  var m = x;
  var e = 0.0lf;
  if (m >= 1.3407807929942597e+154lf) { m *= 7.458340731200207e-155lf; e += 512.0lf; }
  if (m < 7.458340731200207e-155lf) { m *= 1.3407807929942597e+154lf; e -= 512.0lf; }
  if (m >= 1.157920892373162e+77lf) { m *= 8.636168555094445e-78lf; e += 256.0lf; }
  if (m < 8.636168555094445e-78lf) { m *= 1.157920892373162e+77lf; e -= 256.0lf; }
  if (m >= 8.507059173023462e+37lf) { m *= 2.938735877055719e-39lf; e += 128.0lf; }
  if (m < 2.938735877055719e-39lf) { m *= 3.402823669209385e+38lf; e -= 128.0lf; }
  if (m >= 1.8446744073709552e+19lf) { m *= 5.421010862427522e-20lf; e += 64.0lf; }
  if (m < 5.421010862427522e-20lf) { m *= 1.8446744073709552e+19lf; e -= 64.0lf; }
  return Split_d(m, e);
}

// The 24 highest bits of a number in the range of floats: products of two of these are exact.
fn high_d(x: f64) -> f64 { return f64(f32(x)); }

// The fraction of exp(r) - 1 beyond r, over r^2, for |r| <= ln(2) / 2.
fn expm1_tail_d(r: f64) -> f64 {
  var p = 2.0914686968086876e-09lf;
  p = p * r + 2.5105217004720745e-08lf;
  p = p * r + 2.75572736431103e-07lf;
  p = p * r + 2.7557255400206422e-06lf;
  p = p * r + 2.4801587325547743e-05lf;
  p = p * r + 0.00019841269874820627lf;
  p = p * r + 0.0013888888888883748lf;
  p = p * r + 0.008333333333326136lf;
  p = p * r + 0.04166666666666667lf;
  p = p * r + 0.1666666666666667lf;
  p = p * r + 0.5lf;
  return p;
}

// x - n * part. Compilers add up the parts that are taken off one after the other, or cancel what was added before, as if
// nothing were rounded; NVIDIA's does, and exp is 92 units in the last place off. They leave fma alone. Whether it rounds
// once differs, so products have to be exact.
fn less_d(x: f64, n: f64, part: f64) -> f64 { return fma(-n, part, x); }

// exp(x), x in the range of numbers or a little beyond.
fn exp_finite_d(x: f64) -> f64 {
  let n = round(x * 1.4426950408889634lf);
  // ln 2 in two parts, the first so short that its products with n are exact.
  let r = less_d(x, n, 0.6931471803691238lf) - n * 1.9082149292705877e-10lf;
  return scale_d(1.0lf + (r + r * r * expm1_tail_d(r)), i32(n));
}

// exp(x + low) for |low| < 1e-4: a factor, because lavapipe's compiler adds up low and x first.
fn exp_sum_d(x: f64, low: f64) -> f64 {
  let value = exp_finite_d(x);
  return value + value * (low * (1.0lf + low * (0.5lf + low * 0.16666666666666666lf)));
}

fn exp_d(x: f64) -> f64 {
  if (isnan_d(x)) { return x; }
  if (x <= -745.2lf) { return 0.0lf; }
  if (x > 709.782712893384lf) { return inf_d(); }
  return exp_finite_d(x);
}

fn exp2_d(x: f64) -> f64 {
  if (isnan_d(x)) { return x; }
  let clamped = clamp(x, -1076.0lf, 1025.0lf);
  let n = round(clamped);
  let r = (clamped - n) * 0.6931471805599453lf;
  return scale_d(1.0lf + (r + r * r * expm1_tail_d(r)), i32(n));
}

fn ldexp_d(x: f64, exponent: f64) -> f64 { return x * exp2_d(exponent); }

fn expm1_d(x: f64) -> f64 {
  if (isnan_d(x) || abs(x) < 1e-300lf) { return x; }
  if (x < -38.0lf) { return -1.0lf; }
  if (x > 100.0lf) { return exp_d(x); }
  let n = round(x * 1.4426950408889634lf);
  let high = less_d(x, n, 0.6931471803691238lf);
  let low = n * 1.9082149292705877e-10lf;
  let r = high - low;
  let lost = (high - r) - low;
  let p = r + (r * r * expm1_tail_d(r) + lost);
  let scale = exp2_d(n);
  return p * scale + (scale - 1.0lf);
}

fn sigmoid_d(x: f64) -> f64 {
  let e = exp_d(-abs(x));
  return select(e, 1.0lf, x >= 0.0lf) / (1.0lf + e);
}

// Logarithms: with s = f / (2 + f), log(1 + f) is 2 atanh(s), which is f - (f^2 / 2 - s (f^2 / 2 + tail)).
struct LogParts_d { f: f64, half_square: f64, rest: f64, e: f64 }

fn log_parts_d(x: f64) -> LogParts_d {
  let split = split_d(x);
  return LogParts_d(split.m - 1.0lf, 0.5lf * (split.m - 1.0lf) * (split.m - 1.0lf), log_rest_d(split.m - 1.0lf), split.e);
}

fn log_rest_d(f: f64) -> f64 {
  let s = f / (2.0lf + f);
  return s * (0.5lf * f * f + log_tail_d(s * s));
}

// 2 (atanh(s) / s - 1) as a function of z = s^2.
fn log_tail_d(z: f64) -> f64 {
  var p = 0.148103912163146lf;
  p = p * z + 0.1531246302957415lf;
  p = p * z + 0.18183634112308752lf;
  p = p * z + 0.2222219701200196lf;
  p = p * z + 0.2857142876106032lf;
  p = p * z + 0.3999999999930049lf;
  p = p * z + 0.6666666666666765lf;
  p = p * z - 2.2598540861049058e-18lf;
  return p;
}

// A logarithm's value, but that at zero, negative numbers, infinity and NaN, where it is this.
fn log_of_d(x: f64, value: f64) -> f64 {
  if (x == 0.0lf) { return -inf_d(); }
  if (!(x > 0.0lf)) { return nan_d(); }
  return select(value, x, !isfinite_d(x));
}

fn is_positive_d(x: f64) -> bool { return (x > 0.0lf) & isfinite_d(x); }

fn log_d(x: f64) -> f64 {
  let parts = log_parts_d(select(1.0lf, x, is_positive_d(x)));
  let low = parts.e * 1.9082149292705877e-10lf;
  let value = parts.e * 0.6931471803691238lf - ((parts.half_square - (parts.rest + low)) - parts.f);
  return log_of_d(x, value);
}

fn log2_d(x: f64) -> f64 {
  let parts = log_parts_d(select(1.0lf, x, is_positive_d(x)));
  let low = parts.rest - parts.half_square;
  // log2(e) - 1 times the whole, plus the whole: the leading products stay exact.
  let value = (low * 0.4426950408889634lf + parts.f * 0.4426950408889634lf) + low + parts.f + parts.e;
  return log_of_d(x, value);
}

fn log10_d(x: f64) -> f64 {
  let parts = log_parts_d(select(1.0lf, x, is_positive_d(x)));
  let low = (parts.rest - parts.half_square) * 0.4342944819032518lf + parts.e * 1.1451100898021838e-10lf;
  return log_of_d(x, (low + parts.f * 0.4342944819032518lf) + parts.e * 0.3010299955494702lf);
}

fn log1p_d(x: f64) -> f64 {
  if (!(x > -1.0lf) || !isfinite_d(x)) { return log_of_d(x + 1.0lf, x); }
  if (abs(x) < 1e-300lf) { return x; }
  if (x > -0.29lf && x < 0.41lf) { return x - (0.5lf * x * x - log_rest_d(x)); }
  let u = 1.0lf + x;
  // What rounding u lost, to first order.
  let lost = select(x - (u - 1.0lf), 1.0lf - (u - x), x >= 1.0lf) / u;
  let parts = log_parts_d(u);
  let low = parts.e * 1.9082149292705877e-10lf + lost;
  return parts.e * 0.6931471803691238lf - ((parts.half_square - (parts.rest + low)) - parts.f);
}

// Powers: the logarithm is kept as a sum of two doubles.

// log(x) of a finite x > 0, high part first, which has 24 bits.
fn log_pair_d(x: f64) -> vec2<f64> {
  let split = split_d(x);
  let f = split.m - 1.0lf;
  let s = f / (2.0lf + f);
  let s_high = high_d(s);
  let f_high = high_d(f);
  // The quotient's rest.
  let s_low = less_d(less_d(less_d(f, 2.0lf, s_high), s_high, f_high), s_high, f - f_high) / (2.0lf + f);
  let z = s * s;
  let small = s * log_tail_d(z) + 2.0lf * s_low + split.e * 5.7699990475432854e-08lf;
  let large = 2.0lf * s_high;
  let part = 0.6931471228599548lf;
  let total = less_d(large, -split.e, part);
  // What the sum lost: what is smaller, less what of it has arrived.
  let is_larger = abs(split.e * part) > abs(large);
  let lost = select(less_d(large - total, -split.e, part), large - less_d(total, split.e, part), is_larger);
  let high = high_d(total + (small + lost));
  return vec2<f64>(high, (total - high) + (small + lost));
}

fn pow_d(x: f64, y: f64) -> f64 {
  if (y == 0.0lf || x == 1.0lf) { return 1.0lf; }
  if (isnan_d(x) || isnan_d(y)) { return nan_d(); }
  let a = abs(x);
  let magnitude = abs(y);
  let integral = (magnitude >= 9007199254740992.0lf) || (floor(magnitude) == magnitude);
  let odd = integral && magnitude < 9007199254740992.0lf && 2.0lf * floor(0.5lf * magnitude) != magnitude;
  if (!isfinite_d(y)) {
    if (a == 1.0lf) { return 1.0lf; }
    return select(0.0lf, inf_d(), (a > 1.0lf) == (y > 0.0lf));
  }
  let negative = odd && signbit_d(x);
  if (a == 0.0lf || !isfinite_d(a)) {
    let value = select(0.0lf, inf_d(), (a != 0.0lf) == (y > 0.0lf));
    return select(value, -value, negative);
  }
  if (x < 0.0lf && !integral) { return nan_d(); }
  let value = power_positive_d(a, y);
  return select(value, -value, negative);
}

// For finite a > 0 and finite y.
fn power_positive_d(a: f64, y: f64) -> f64 {
  // Beyond this every power overflows, underflows or, at 1, is 1.
  let exponent = clamp(y, -1e20lf, 1e20lf);
  let logarithm = log_pair_d(a);
  let y_high = high_d(exponent);
  let low = (exponent - y_high) * logarithm.x + exponent * logarithm.y;
  let total = less_d(low, -y_high, logarithm.x);
  if (total > 709.79lf) { return inf_d(); }
  if (total < -745.2lf) { return 0.0lf; }
  return exp_sum_d(total, less_d(-total, -y_high, logarithm.x) + low);
}
