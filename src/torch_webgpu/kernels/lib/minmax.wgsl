// Minimum and maximum that give NaN where an operand is NaN, as torch.minimum and torch.maximum do. By bits: drivers may
// take x != x for false.

fn min_f(a: f32, b: f32) -> f32 {
  if (isnan_f(a)) { return a; }
  return select(min(a, b), b, isnan_f(b));
}

fn max_f(a: f32, b: f32) -> f32 {
  if (isnan_f(a)) { return a; }
  return select(max(a, b), b, isnan_f(b));
}

fn isnan_f(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
