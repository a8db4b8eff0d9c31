// Division and what depends on it, where WGSL allows errors that PyTorch's results would show.

// a / b for every b: NVIDIA's division flushes the reciprocal of a divisor above 2^126 to zero.
fn quotient_f(a: f32, b: f32) -> f32 {
  let shrink = select(1.0, 0.25, abs(b) > 4e37);
  return (a * shrink) / (b * shrink);
}

// a / b rounded to nearest in all but one in millions of cases, short of overflow and denormals (WGSL allows 2.5 units in the last place, and NVIDIA's
// division takes some of them): what the quotient leaves of a, divided again, is the correction.
//
// As everywhere in this library, a choice is made by & and |: && and || are branches, and there are kernels with dozens of
// these functions, for which SwiftShader's compiler then took minutes instead of a tenth of a second.
fn div_f(a: f32, b: f32) -> f32 {
  let shrink = select(1.0, 0.25, abs(b) > 4e37);
  let quotient = (a * shrink) / (b * shrink);
  let corrected = quotient + division_rest(a, b, quotient) * (1.0 / (b * shrink));
  let magnitude = abs(quotient);
  return select(quotient, corrected, (magnitude > 1e-30) & (magnitude < 1e30) & (abs(b) > 1e-30) & (abs(b) < 1e30));
}

// a - quotient * b, exact for a quotient that is a few units in the last place off: products of half as many bits
// are exact, fused or not, and so are the differences.
fn division_rest(a: f32, b: f32, quotient: f32) -> f32 {
  let q_high = high_half(quotient);
  let q_low = quotient - q_high;
  let b_high = high_half(b);
  let b_low = b - b_high;
  return (((a - q_high * b_high) - q_high * b_low) - q_low * b_high) - q_low * b_low;
}

// C's fmod, exact: the long division of the mantissas, eight bits at a time.
fn fmod_f(a: f32, b: f32) -> f32 {
  if (!isfinite_f(a) || isnan_f(b) || magnitude_bits(b) == 0u) { return nan_f(); }
  if (magnitude_bits(a) < magnitude_bits(b)) { return a; }
  let dividend = mantissa_of(a);
  let divisor = mantissa_of(b);
  var rest = dividend.bits % divisor.bits;
  var steps = dividend.exponent - divisor.exponent;
  while (steps > 0 && rest != 0u) {
    let step = min(steps, 8);
    rest = (rest << u32(step)) % divisor.bits;
    steps -= step;
  }
  return copysign_f(float_from(rest, divisor.exponent), a);
}

// bits * 2^exponent for bits < 2^24, where the result is a float; without arithmetic, which may flush denormals.
fn float_from(bits: u32, exponent: i32) -> f32 {
  if (bits == 0u) { return 0.0; }
  let shift = i32(countLeadingZeros(bits)) - 8;
  let biased = exponent - shift + 150;
  if (biased > 0) { return bitcast<f32>((u32(biased) << 23u) | ((bits << u32(shift)) & 0x7fffffu)); }
  let places = exponent + 149;
  return bitcast<f32>(select(bits >> u32(max(-places, 0)), bits << u32(max(places, 0)), places >= 0));
}

// Python's %: the sign of the divisor.
fn remainder_f(a: f32, b: f32) -> f32 {
  let rest = fmod_f(a, b);
  if (magnitude_bits(rest) != 0u && signbit_f(rest) != signbit_f(b)) { return rest + b; }
  return rest;
}

// Python's //, as c10::div_floor_floating rounds it.
fn floor_divide_f(a: f32, b: f32) -> f32 {
  if (magnitude_bits(b) == 0u) { return a / b; }
  if (!isfinite_f(a) || isnan_f(b)) { return nan_f(); }
  let rest = fmod_f(a, b);
  var quotient = div_f(a - rest, b);
  if (magnitude_bits(rest) != 0u && signbit_f(rest) != signbit_f(b)) { quotient -= 1.0; }
  if (quotient == 0.0) { return bitcast<f32>((bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u); }
  let lower = floor(quotient);
  return select(lower, lower + 1.0, quotient - lower > 0.5);
}

// torch.div(rounding_mode="trunc").
fn trunc_divide_f(a: f32, b: f32) -> f32 { return trunc_f(div_f(a, b)); }

fn hypot_f(a: f32, b: f32) -> f32 {
  if (isinf_f(a) || isinf_f(b)) { return inf_f(); }
  if (isnan_f(a) || isnan_f(b)) { return nan_f(); }
  let large = max(abs(a), abs(b));
  let small = min(abs(a), abs(b));
  if (large == 0.0) { return 0.0; }
  let n = frexp_exponent_f(large);
  let x = scale_f(large, -n);
  let y = scale_f(small, -n);
  return scale_f(sqrt(x * x + y * y), n);
}
