// C's pow. The logarithm is kept as a sum of two floats, as in FreeBSD's e_powf.c (Sun Microsystems, 1993; freely
// distributable with this notice): products of halves whose low 12 bits are cleared are exact, fused or not.

// log2(x) of a finite x > 0, high part first.
fn log2_pair(x: f32) -> vec2<f32> {
  let mantissa = mantissa_of(x);
  var n = mantissa.exponent + 23;
  var bits = mantissa.bits - 0x800000u;
  var upper = false;
  if (bits > 0x1cc471u) {
    if (bits < 0x5db3d7u) { upper = true; } else { n += 1; }
  }
  bits |= select(0x3f800000u, 0x3f000000u, n != mantissa.exponent + 23);
  let m = bitcast<f32>(bits);
  let base = select(1.0, 1.5, upper);
  // s = (m - base) / (m + base)
  let u = m - base;
  let v = 1.0 / (m + base);
  let s = u * v;
  let s_high = high_half(s);
  let t_high = high_half(m + base);
  let t_low = m - (t_high - base);
  let s_low = v * ((u - s_high * t_high) - s_high * t_low);
  let s2 = s * s;
  var r = 2.0697501302e-1;
  r = r * s2 + 2.3066075146e-1;
  r = r * s2 + 2.7272811532e-1;
  r = r * s2 + 3.3333334327e-1;
  r = r * s2 + 4.2857143283e-1;
  r = r * s2 + 6.0000002384e-1;
  r = r * s2 * s2 + s_low * (s_high + s);
  let square = s_high * s_high;
  let sum_high = high_half(3.0 + square + r);
  let sum_low = r - ((sum_high - 3.0) - square);
  // s * (3 + s^2 + r), then times 2 / (3 log 2)
  let product = s_high * sum_high;
  let product_low = s_low * sum_high + sum_low * s;
  let p_high = high_half(product + product_low);
  let p_low = product_low - (p_high - product);
  let z_high = 9.6191406250e-1 * p_high;
  let base_high = select(0.0, 5.8496093750e-1, upper);
  let z_low = -1.1736857402e-4 * p_high + p_low * 9.6179670095e-1 + select(0.0, 1.5632208487e-6, upper);
  let t = f32(n);
  let high = high_half(((z_high + z_low) + base_high) + t);
  return vec2<f32>(high, z_low - (((high - t) - base_high) - z_high));
}

fn high_half(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }

fn pow_f(x: f32, y: f32) -> f32 {
  if (y == 0.0 || x == 1.0) { return 1.0; }
  if (isnan_f(x) || isnan_f(y)) { return nan_f(); }
  let a = abs(x);
  let magnitude = abs(y);
  let integral = (magnitude >= 8388608.0) | (floor(magnitude) == magnitude);
  let odd = integral & (magnitude < 16777216.0) & ((u32(magnitude) & 1u) != 0u);
  if (isinf_f(y)) {
    if (a == 1.0) { return 1.0; }
    return select(0.0, inf_f(), (a > 1.0) == (y > 0.0));
  }
  if (magnitude_bits(a) == 0u || isinf_f(a)) {
    return power_sign(select(0.0, inf_f(), (magnitude_bits(a) != 0u) == (y > 0.0)), odd, x);
  }
  if (x < 0.0 && !integral) { return nan_f(); }
  return power_sign(power_positive(a, y), odd, x);
}

fn power_sign(value: f32, odd: bool, x: f32) -> f32 { return select(value, -value, odd & signbit_f(x)); }

// For finite a > 0 and finite y.
fn power_positive(a: f32, y: f32) -> f32 {
  // Beyond this every power overflows, underflows or, at 1, is 1.
  let exponent = clamp(y, -4e9, 4e9);
  let logarithm = log2_pair(a);
  let y_high = high_half(exponent);
  let low = (exponent - y_high) * logarithm.x + exponent * logarithm.y;
  let high = y_high * logarithm.x;
  let total = clamp(low + high, -152.0, 129.0);
  if (total <= -152.0 || total >= 129.0) { return select(0.0, inf_f(), total > 0.0); }
  let n = round(total);
  return scale_exp(exp2_polynomial((high - n) + low), i32(n));
}
