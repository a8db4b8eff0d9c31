// Rounding to float16 where an adapter's conversions round to the nearest, ties to even, and keep numbers below the
// normal ones.

// NVIDIA's driver leaves out conversions there and back, as if they did nothing. It does not see through the minimum,
// which changes nothing but one NaN into another.
fn round_f16(v: f32) -> f32 { return unpack2x16float(min(pack2x16float(vec2<f32>(v, 0.0)), 0xfffeu)).x; }
