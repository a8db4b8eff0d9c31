// What drivers fold as if numbers were finite.

// x - x.
fn zero_of_f(x: f32) -> f32 { return select(nan_f(), 0.0, isfinite_f(x)); }

// x * 0.
fn times_zero_f(x: f32, zero: f32) -> f32 {
  return select(nan_f(), bitcast<f32>((bitcast<u32>(x) ^ bitcast<u32>(zero)) & 0x80000000u), isfinite_f(x));
}

// x / x.
fn one_of_f(x: f32) -> f32 { return select(nan_f(), 1.0, isfinite_f(x) & (magnitude_bits(x) != 0u)); }
