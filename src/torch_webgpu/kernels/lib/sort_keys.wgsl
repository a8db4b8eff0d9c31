// Integers that order as torch.sort orders values: NaN comes last, the two zeros are equal.

fn key_f(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) { return 0xffffffffu; }
  if (magnitude == 0u) { return 0x80000000u; }
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) != 0u);
}

fn key_i(v: i32) -> u32 { return bitcast<u32>(v) ^ 0x80000000u; }

fn key_u(v: u32) -> u32 { return v; }

fn key_b(v: bool) -> u32 { return select(0u, 1u, v); }

fn key_l(v: I64) -> I64 { return v; }

// Of the bits of a double, so that no arithmetic in doubles is needed.
fn key_d(bits: I64) -> I64 {
  let low = i64_lo(bits);
  let high = i64_hi(bits);
  let magnitude = high & 0x7fffffffu;
  if (magnitude > 0x7ff00000u || (magnitude == 0x7ff00000u && low != 0u)) { return i64_make(0xffffffffu, 0x7fffffffu); }
  if ((magnitude | low) == 0u) { return i64_make(0u, 0u); }
  if (high != magnitude) { return i64_make(~low, ~magnitude); }
  return bits;
}
