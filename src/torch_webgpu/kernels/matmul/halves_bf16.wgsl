// Eight bfloat16 numbers as they lie in memory, as float16 ones.

alias Unit = vec4<u32>;

// The bits of the first four as float32.
fn low_bits(unit: Unit) -> vec4<u32> {
  return (unit.xxyy << vec4<u32>(16u, 0u, 16u, 0u)) & vec4<u32>(0xffff0000u);
}

fn high_bits(unit: Unit) -> vec4<u32> { return low_bits(unit.zwzw); }

// Numbers that are not finite are made by their bits: what pack2x16float is given has to be finite.
fn half_of(unit: Unit, low: vec4<f32>, high: vec4<f32>) -> vec4<u32> {
  let overflows = ((unit & vec4<u32>(0x7fff7fffu)) + vec4<u32>(0x00800080u)) & vec4<u32>(0x80008000u);
  let others = (overflows >> vec4<u32>(15u)) * vec4<u32>(0xffffu);
  let finite = unit & ~others;
  let x = bitcast<vec4<f32>>(low_bits(finite)) * low;
  let y = bitcast<vec4<f32>>(high_bits(finite)) * high;
  let packed = vec4<u32>(pack2x16float(x.xy), pack2x16float(x.zw), pack2x16float(y.xy), pack2x16float(y.zw));
  let mantissas = (unit & vec4<u32>(0x007f007fu)) << vec4<u32>(3u);
  return packed | (((unit & vec4<u32>(0x80008000u)) | vec4<u32>(0x7c007c00u) | mantissas) & others);
}
