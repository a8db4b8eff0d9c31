// Conversions between the compute types that WGSL's own get wrong or leave open.

// Anything but a zero is true, NaN and denormals (which a comparison may flush) included.
fn bool_from_f32(v: f32) -> bool { return magnitude_bits(v) != 0u; }

fn bool_from_c64(v: vec2<f32>) -> bool { return (magnitude_bits(v.x) | magnitude_bits(v.y)) != 0u; }

// Wraps: C converts by way of a 64-bit integer on x86.
fn u32_from_f32(v: f32) -> u32 { return i64_to_u32(i64_from_f32(v)); }
