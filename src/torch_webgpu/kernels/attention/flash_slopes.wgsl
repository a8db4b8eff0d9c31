// The gradients of scores that a function changes, of those of what it makes of them; zero for scores that do not count,
// whatever it says there. `whole`: all of them count.

fn slope_of(b: u32, h: u32, l: u32, s: u32, score: f32, slope: f32) -> f32 {
  let query = min(l, P.queries - 1u);
  let key = min(s, P.keys - 1u);
  let counts = (l < P.queries) & (s < P.keys) & is_visible(b, h, query, key);
  return select(0.0, slope_at(b, h, query, key, score, slope), counts);
}

fn slopes_along(whole: bool, b: u32, h: u32, l: u32, s: u32, v: vec4<f32>, d: vec4<f32>) -> vec4<f32> {
  if (!whole) {
    return vec4<f32>(slope_of(b, h, l, s, v.x, d.x), slope_of(b, h, l, s + 1u, v.y, d.y),
      slope_of(b, h, l, s + 2u, v.z, d.z), slope_of(b, h, l, s + 3u, v.w, d.w));
  }
  return vec4<f32>(slope_at(b, h, l, s, v.x, d.x), slope_at(b, h, l, s + 1u, v.y, d.y),
    slope_at(b, h, l, s + 2u, v.z, d.z), slope_at(b, h, l, s + 3u, v.w, d.w));
}

fn slopes_down(whole: bool, b: u32, h: u32, l: u32, s: u32, v: vec4<f32>, d: vec4<f32>) -> vec4<f32> {
  if (!whole) {
    return vec4<f32>(slope_of(b, h, l, s, v.x, d.x), slope_of(b, h, l + 1u, s, v.y, d.y),
      slope_of(b, h, l + 2u, s, v.z, d.z), slope_of(b, h, l + 3u, s, v.w, d.w));
  }
  return vec4<f32>(slope_at(b, h, l, s, v.x, d.x), slope_at(b, h, l + 1u, s, v.y, d.y),
    slope_at(b, h, l + 2u, s, v.z, d.z), slope_at(b, h, l + 3u, s, v.w, d.w));
}
