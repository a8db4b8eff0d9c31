// f32 taken apart and put together by bits. Comparisons with NaN and infinity are bit tests, because drivers may
// compile x != x to false; infinities come through a variable, because Tint refuses them in constant expressions.

fn inf_f() -> f32 {
  var bits = 0x7f800000u;
  return bitcast<f32>(bits);
}

fn nan_f() -> f32 {
  var bits = 0x7fc00000u;
  return bitcast<f32>(bits);
}

fn magnitude_bits(x: f32) -> u32 { return bitcast<u32>(x) & 0x7fffffffu; }

fn isnan_f(x: f32) -> bool { return magnitude_bits(x) > 0x7f800000u; }

fn isinf_f(x: f32) -> bool { return magnitude_bits(x) == 0x7f800000u; }

fn isfinite_f(x: f32) -> bool { return magnitude_bits(x) < 0x7f800000u; }

fn signbit_f(x: f32) -> bool { return (bitcast<u32>(x) >> 31u) != 0u; }

// Not as two masks: Mesa 22's compiler of lavapipe makes something else of them where ``sign`` is a negated number.
fn copysign_f(x: f32, sign: f32) -> f32 {
  let magnitude = magnitude_bits(x);
  return bitcast<f32>(select(magnitude, magnitude | 0x80000000u, signbit_f(sign)));
}

// torch.minimum and torch.maximum: NaN where an operand is NaN.
fn min_f(a: f32, b: f32) -> f32 {
  if (isnan_f(a)) { return a; }
  return select(min(a, b), b, isnan_f(b));
}

fn max_f(a: f32, b: f32) -> f32 {
  if (isnan_f(a)) { return a; }
  return select(max(a, b), b, isnan_f(b));
}

// torch.fmin and torch.fmax: the other operand where one is NaN.
fn fmin_f(a: f32, b: f32) -> f32 {
  if (isnan_f(a)) { return b; }
  return select(min(a, b), a, isnan_f(b));
}

fn fmax_f(a: f32, b: f32) -> f32 {
  if (isnan_f(a)) { return b; }
  return select(max(a, b), a, isnan_f(b));
}

fn nextafter_f(x: f32, towards: f32) -> f32 {
  if (isnan_f(x) || isnan_f(towards)) { return nan_f(); }
  let bits = bitcast<u32>(x);
  // Floats of one sign are ordered as their bits are.
  let from_order = ordered_bits(x);
  let to_order = ordered_bits(towards);
  if (from_order == to_order) { return towards; }
  if (magnitude_bits(x) == 0u) { return bitcast<f32>(1u | select(0u, 0x80000000u, to_order < from_order)); }
  let away_from_zero = (to_order > from_order) == (bits >> 31u == 0u);
  return bitcast<f32>(select(bits - 1u, bits + 1u, away_from_zero));
}

// An integer that orders floats; both zeros are 0.
fn ordered_bits(x: f32) -> i32 {
  let magnitude = bitcast<i32>(magnitude_bits(x));
  return select(magnitude, -magnitude, signbit_f(x));
}

// x * 2^n, rounded once; exact unless the result overflows or is a denormal.
fn scale_f(x: f32, n: i32) -> f32 {
  let clamped = clamp(n, -300, 300);
  let half = clamped / 2;
  let quarter = half / 2;
  return x * power_of_two(half - quarter) * power_of_two(quarter) * power_of_two(clamped - half);
}

// 2^n for -126 <= n <= 127.
fn power_of_two(n: i32) -> f32 { return bitcast<f32>(bitcast<u32>(n + 127) << 23u); }

// |x| as mantissa bits (with the leading one) and exponent: mantissa * 2^exponent, mantissa in [2^23, 2^24) or zero.
struct Mantissa { bits: u32, exponent: i32 }

fn mantissa_of(x: f32) -> Mantissa {
  let magnitude = magnitude_bits(x);
  if (magnitude < 0x800000u) {
    if (magnitude == 0u) { return Mantissa(0u, 0); }
    let shift = countLeadingZeros(magnitude) - 8u;
    return Mantissa(magnitude << shift, -149 - i32(shift));
  }
  return Mantissa((magnitude & 0x7fffffu) | 0x800000u, i32(magnitude >> 23u) - 150);
}

// torch.frexp: mantissa in [0.5, 1) with the sign of x, and exponent.
fn frexp_mantissa_f(x: f32) -> f32 {
  if (magnitude_bits(x) == 0u || !isfinite_f(x)) { return x; }
  return bitcast<f32>((bitcast<u32>(x) & 0x80000000u) | 0x3f000000u | (mantissa_of(x).bits & 0x7fffffu));
}

fn frexp_exponent_f(x: f32) -> i32 {
  if (magnitude_bits(x) == 0u || !isfinite_f(x)) { return 0; }
  return mantissa_of(x).exponent + 24;
}

fn round_half_even_f(x: f32) -> f32 {
  let magnitude = abs(x);
  if (!(magnitude < 8388608.0)) { return x; }
  var rounded = floor(magnitude);
  let rest = magnitude - rounded;
  if (rest > 0.5 || (rest == 0.5 && (u32(rounded) & 1u) != 0u)) { rounded += 1.0; }
  return copysign_f(rounded, x);
}

fn trunc_f(x: f32) -> f32 { return copysign_f(floor(abs(x)), x); }
