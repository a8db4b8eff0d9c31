// Rotary embedding: channel d of a head turned with the channel half a head away.

fn rotated(b: u32, h: u32, s: u32, d: u32) -> f32 {
  let low = d < P.half;
  let other = x_load(x_at(b, h, s, select(d - P.half, d + P.half, low)));
  let turned = select(other, -other, low);
  return x_load(x_at(b, h, s, d)) * cos_load(cos_at(b, h, s, d)) + turned * sin_load(sin_at(b, h, s, d));
}
