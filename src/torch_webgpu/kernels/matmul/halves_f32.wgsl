// Eight float32 numbers, given as their bits, as sums of two float16 ones, or as the nearest one.

struct Unit { low: vec4<u32>, high: vec4<u32> }

fn low_bits(unit: Unit) -> vec4<u32> { return unit.low; }

fn high_bits(unit: Unit) -> vec4<u32> { return unit.high; }

fn are_finite(bits: vec4<u32>) -> vec4<bool> {
  return (bits & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
}

fn packed_pairs(v: vec4<u32>) -> vec2<u32> { return v.xz | (v.yw << vec2<u32>(16u)); }

// The float16 numbers nearest to four others, which have these bits where they are not finite: to pack2x16float they
// must be.
fn nearest_halves(x: vec4<f32>, bits: vec4<u32>) -> vec2<u32> {
  let is_finite = are_finite(bits);
  let given = select(x, vec4<f32>(), !is_finite);
  let is_nan = (bits & vec4<u32>(0x007fffffu)) != vec4<u32>();
  let others = ((bits >> vec4<u32>(16u)) & vec4<u32>(0x8000u)) | select(vec4<u32>(0x7c00u), vec4<u32>(0x7e00u), is_nan);
  let packed = vec2<u32>(pack2x16float(given.xy), pack2x16float(given.zw));
  return packed | packed_pairs(select(others, vec4<u32>(), is_finite));
}

// Four numbers, given as their bits: the float16 nearest to each in .xy, packed, and what these leave of it in .zw.
// A number that is not finite is the lower half of a finite one: multiplied with a number it leaves what it should,
// where as the upper half it would meet the other's lower half, which may be 0 or of the other sign.
fn halves_of(bits: vec4<u32>, scale: vec4<f32>) -> vec4<u32> {
  let one = bitcast<vec4<f32>>((bits & vec4<u32>(0x80000000u)) | vec4<u32>(0x3f800000u));
  let x = select(one, bitcast<vec4<f32>>(bits) * scale, are_finite(bits));
  // Rounded to the precision of float16 by its bits: a compiler may take what is packed and unpacked for what it was.
  let near = bitcast<vec4<f32>>((bitcast<vec4<u32>>(x) + vec4<u32>(0x1000u)) & vec4<u32>(0xffffe000u));
  let upper = vec2<u32>(pack2x16float(near.xy), pack2x16float(near.zw));
  return vec4<u32>(upper, nearest_halves(x - near, bits));
}

fn half_of(unit: Unit, low: vec4<f32>, high: vec4<f32>) -> vec4<u32> {
  let first = nearest_halves(bitcast<vec4<f32>>(unit.low) * low, unit.low);
  return vec4<u32>(first, nearest_halves(bitcast<vec4<f32>>(unit.high) * high, unit.high));
}
