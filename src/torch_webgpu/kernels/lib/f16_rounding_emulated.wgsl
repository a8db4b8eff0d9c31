// Rounding to float16 where an adapter's conversions may round otherwise than to the nearest, ties to even.

// Without branches, as there are several in most kernels.
fn round_f16(v: f32) -> f32 {
  let bits = bitcast<u32>(v);
  let magnitude = bits & 0x7fffffffu;
  let normal = (bits + 0xfffu + ((bits >> 13u) & 1u)) & 0xffffe000u;
  // 0.5 has the unit in the last place of a half denormal, so the addition does the rounding.
  let units = f32(bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - 0x3f000000u);
  let denormal = bitcast<u32>(units * 5.9604644775390625e-8) | (bits & 0x80000000u);
  let rounded = bitcast<f32>(select(normal, denormal, magnitude < 0x38800000u));
  // Overflow (from 65520 on) to infinity; a NaN stays one.
  return select(rounded, v * 3e38, magnitude >= 0x477ff000u);
}
