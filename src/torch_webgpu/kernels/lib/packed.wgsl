// Types narrower than a word: element k of a word as its compute type, and a word with element k replaced.
// Conversions work on bits: drivers may flush half-precision denormals, or round towards zero, in their own.

fn bool_unpack(word: u32, k: u32) -> bool { return ((word >> (8u * k)) & 0xffu) != 0u; }

fn bool_pack(word: u32, k: u32, v: bool) -> u32 { return insertBits(word, select(0u, 1u, v), 8u * k, 8u); }

fn u8_unpack(word: u32, k: u32) -> i32 { return i32((word >> (8u * k)) & 0xffu); }

fn u8_pack(word: u32, k: u32, v: i32) -> u32 { return insertBits(word, bitcast<u32>(v), 8u * k, 8u); }

fn i8_unpack(word: u32, k: u32) -> i32 { return bitcast<i32>(word << (24u - 8u * k)) >> 24u; }

fn i8_pack(word: u32, k: u32, v: i32) -> u32 { return insertBits(word, bitcast<u32>(v), 8u * k, 8u); }

fn u16_unpack(word: u32, k: u32) -> i32 { return i32((word >> (16u * k)) & 0xffffu); }

fn u16_pack(word: u32, k: u32, v: i32) -> u32 { return insertBits(word, bitcast<u32>(v), 16u * k, 16u); }

fn i16_unpack(word: u32, k: u32) -> i32 { return bitcast<i32>(word << (16u - 16u * k)) >> 16u; }

fn i16_pack(word: u32, k: u32, v: i32) -> u32 { return insertBits(word, bitcast<u32>(v), 16u * k, 16u); }

fn bf16_unpack(word: u32, k: u32) -> f32 { return bitcast<f32>((word >> (16u * k)) << 16u); }

fn bf16_pack(word: u32, k: u32, v: f32) -> u32 { return insertBits(word, bf16_from_f32(v), 16u * k, 16u); }

fn f16_unpack(word: u32, k: u32) -> f32 { return f16_to_f32((word >> (16u * k)) & 0xffffu); }

fn f16_pack(word: u32, k: u32, v: f32) -> u32 { return insertBits(word, f16_from_f32(v), 16u * k, 16u); }

// Round to nearest even, in the upper half; the lower one is not cleared. A NaN stays one (adding the rounding bias would
// carry it into an infinity).
fn bf16_above(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  return select(bits + 0x7fffu + ((bits >> 16u) & 1u), 0x7fc00000u, (bits & 0x7fffffffu) > 0x7f800000u);
}

fn bf16_from_f32(v: f32) -> u32 { return bf16_above(v) >> 16u; }

// A word of two.
fn bf16_pair(low: f32, high: f32) -> u32 { return (bf16_above(low) >> 16u) | (bf16_above(high) & 0xffff0000u); }

fn f16_to_f32(half: u32) -> f32 {
  let sign = (half & 0x8000u) << 16u;
  let magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) { return bitcast<f32>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13u)); }
  if (magnitude < 0x400u) { return bitcast<f32>(sign | bitcast<u32>(f32(magnitude) * 5.9604644775390625e-8)); }
  return bitcast<f32>(sign | ((magnitude << 13u) + 0x38000000u));
}

// Round to nearest even; overflow (from 65520 on) to infinity, denormals exact.
fn f16_from_f32(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  let sign = (bits >> 16u) & 0x8000u;
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) { return sign | 0x7e00u; }
  if (magnitude >= 0x477ff000u) { return sign | 0x7c00u; }
  if (magnitude < 0x38800000u) {
    // 0.5 has the unit in the last place of a half denormal, so the addition does the rounding.
    return sign | (bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - 0x3f000000u);
  }
  let rebased = magnitude - 0x38000000u;
  return sign | ((rebased + 0xfffu + ((rebased >> 13u) & 1u)) >> 13u);
}
