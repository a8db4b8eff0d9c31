// What depends on which numbers a half type has, for halves that are held as f32.

fn nextafter_bf16(x: f32, towards: f32) -> f32 {
  if (isnan_f(x) || isnan_f(towards)) { return nan_f(); }
  return bitcast<f32>(next_bits(bitcast<u32>(x) >> 16u, 15u, ordered_bits(x), ordered_bits(towards)) << 16u);
}

fn nextafter_f16(x: f32, towards: f32) -> f32 {
  if (isnan_f(x) || isnan_f(towards)) { return nan_f(); }
  return f16_to_f32(next_bits(f16_from_f32(x), 15u, ordered_bits(x), ordered_bits(towards)));
}

// The bits of the number next to the one with these, whose sign is bit `sign`, in the direction of `to_order`.
fn next_bits(bits: u32, sign: u32, from_order: i32, to_order: i32) -> u32 {
  if (from_order == to_order) { return bits; }
  let negative = (bits >> sign) != 0u;
  if (from_order == 0) { return 1u | select(0u, 1u << sign, to_order < 0); }
  return select(bits - 1u, bits + 1u, (to_order > from_order) != negative);
}
