// Rounding to float16 where an adapter's conversions round to the nearest, ties to even, and keep all numbers that are not
// normal ones.

// NVIDIA's driver leaves out conversions there and back, as if they did nothing, but for what it cannot see through: the
// minimum, which changes none but a NaN, and that into another one.
fn round_f16(v: f32) -> f32 { return unpack2x16float(min(pack2x16float(vec2<f32>(v, 0.0)), 0xfffeu)).x; }
