// Numbers as float16 ones, by powers of two that bring the largest of an operand, or of a line of one, below 2^15.

// What to scale an operand by, as an exponent, whose largest finite magnitude has these bits as a float32.
fn exponent_for(bits: u32) -> i32 { return select(clamp(141 - i32(bits >> 23u), -126, 126), 0, bits == 0u); }

fn exponents_for(bits: vec4<u32>) -> vec4<i32> {
  let exponents = clamp(vec4<i32>(141) - vec4<i32>(bits >> vec4<u32>(23u)), vec4<i32>(-126), vec4<i32>(126));
  return select(exponents, vec4<i32>(), bits == vec4<u32>());
}

fn power_of_two(exponent: i32) -> f32 { return bitcast<f32>(u32(exponent + 127) << 23u); }

fn powers_of_two(exponents: vec4<i32>) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(exponents + vec4<i32>(127)) << vec4<u32>(23u));
}

// Two factors that undo the scales of both operands: one alone may be no float32.
fn factors_back(exponents: i32) -> vec2<f32> {
  let half = -exponents / 2;
  return vec2<f32>(power_of_two(half), power_of_two(-exponents - half));
}

// Sums whose operands' lines have scales of their own, of which these are the exponents, added up.
fn unscaled(sums: vec4<f32>, exponents: vec4<i32>) -> vec4<f32> {
  let half = -exponents / vec4<i32>(2);
  return sums * powers_of_two(half) * powers_of_two(-exponents - half);
}

// Eight bfloat16 numbers.
fn scaled_run(run: vec4<u32>, scale: f32) -> vec4<u32> {
  let low = bitcast<vec4<f32>>(run << vec4<u32>(16u)) * scale;
  let high = bitcast<vec4<f32>>(run & vec4<u32>(0xffff0000u)) * scale;
  return vec4<u32>(pack2x16float(vec2<f32>(low.x, high.x)), pack2x16float(vec2<f32>(low.y, high.y)),
    pack2x16float(vec2<f32>(low.z, high.z)), pack2x16float(vec2<f32>(low.w, high.w)));
}

// The bits of a number's magnitude; of one that is not finite none.
fn finite_bits(number: u32) -> u32 {
  let magnitude = number & 0x7fffffffu;
  return select(magnitude, 0u, magnitude >= 0x7f800000u);
}

fn largest_of_bf16(run: vec4<u32>) -> u32 {
  var largest = 0u;
  for (var e = 0u; e < 4u; e += 1u) {
    largest = max(largest, max(finite_bits(run[e] << 16u), finite_bits(run[e] & 0xffff0000u)));
  }
  return largest;
}
