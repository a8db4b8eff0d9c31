// Random numbers by Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// Element i of an operation takes lane i % 4 of block offset + i / 4 of its generator's stream.

fn random_block(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, block: u32) -> vec4<u32> {
  let lo = offset_lo + block;
  let hi = offset_hi + select(0u, 1u, lo < block);
  var c = vec4<u32>(lo, hi, 0u, 0u);
  var k = vec2<u32>(seed_lo, seed_hi);
  c = random_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = random_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = random_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = random_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = random_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = random_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = random_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = random_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  c = random_round(c, k); k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  return random_round(c, k);
}

fn random_round(c: vec4<u32>, k: vec2<u32>) -> vec4<u32> {
  let a = u32_mul_wide(0xd2511f53u, c.x);
  let b = u32_mul_wide(0xcd9e8d57u, c.z);
  return vec4<u32>(b.y ^ c.y ^ k.x, b.x, a.y ^ c.w ^ k.y, a.x);
}

fn random_lane(block: vec4<u32>, lane: u32) -> u32 {
  let pair = select(block.xy, block.zw, lane >= 2u);
  return select(pair.x, pair.y, (lane & 1u) == 1u);
}

fn random_bits(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32) -> u32 {
  return random_lane(random_block(seed_lo, seed_hi, offset_lo, offset_hi, i / 4u), i % 4u);
}

fn random_bits64(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32) -> I64 {
  let block = random_block(seed_lo, seed_hi, offset_lo, offset_hi, i / 2u);
  let pair = select(block.xy, block.zw, (i & 1u) == 1u);
  return i64_make(pair.x, pair.y);
}

// In [0, 1): 24 bits, as many as a float32 holds.
fn random_uniform(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32) -> f32 {
  return f32(random_bits(seed_lo, seed_hi, offset_lo, offset_hi, i) >> 8u) * 5.9604644775390625e-8;
}

// Box-Muller: lanes (0, 1) and (2, 3) of a block each make two normal numbers. The logarithm's argument is in (0, 1].
fn random_normal(seed_lo: u32, seed_hi: u32, offset_lo: u32, offset_hi: u32, i: u32) -> f32 {
  let block = random_block(seed_lo, seed_hi, offset_lo, offset_hi, i / 4u);
  let pair = select(block.xy, block.zw, (i & 2u) == 2u);
  let u = f32((pair.x >> 8u) + 1u) * 5.9604644775390625e-8;
  let angle = f32(pair.y >> 8u) * 3.7450704e-7;
  let radius = sqrt(-2.0 * log_f(u));
  return radius * select(cos_f(angle), sin_f(angle), (i & 1u) == 1u);
}
