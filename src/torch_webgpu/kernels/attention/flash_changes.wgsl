// What a function makes of scores, of a query with four keys and of a key with four queries; `whole`: all of them count.

fn changed_along(whole: bool, b: u32, h: u32, l: u32, s: u32, v: vec4<f32>) -> vec4<f32> {
  if (!whole) { return with_finite_powers(scores_along(b, h, l, s, v)); }
  return with_finite_powers(vec4<f32>(changed_score(b, h, l, s, v.x), changed_score(b, h, l, s + 1u, v.y),
    changed_score(b, h, l, s + 2u, v.z), changed_score(b, h, l, s + 3u, v.w)));
}

fn changed_down(whole: bool, b: u32, h: u32, l: u32, s: u32, v: vec4<f32>) -> vec4<f32> {
  if (!whole) { return with_finite_powers(scores_down(b, h, l, s, v)); }
  return with_finite_powers(vec4<f32>(changed_score(b, h, l, s, v.x), changed_score(b, h, l + 1u, s, v.y),
    changed_score(b, h, l + 2u, s, v.z), changed_score(b, h, l + 3u, s, v.w)));
}

// Masks of the lowest numbers stay finite in powers of two.
fn with_finite_powers(v: vec4<f32>) -> vec4<f32> {
  return select(max(v, vec4<f32>(-2.3e38)), v, v < vec4<f32>(-3.4028234e38));
}
