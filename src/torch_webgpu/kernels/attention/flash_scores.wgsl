// Scores of queries and keys, whose positions may lie outside: minus infinity for those that do not count.
// No &&: it branches.

fn score_of(b: u32, h: u32, l: u32, s: u32, score: f32) -> f32 {
  let query = min(l, P.queries - 1u);
  let key = min(s, P.keys - 1u);
  let counts = (l < P.queries) & (s < P.keys) & is_visible(b, h, query, key);
  return select(-inf_f(), biased(b, h, query, key, score), counts);
}

// Scores of a query with four keys, and of a key with four queries.
fn scores_along(b: u32, h: u32, l: u32, s: u32, v: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(score_of(b, h, l, s, v.x), score_of(b, h, l, s + 1u, v.y), score_of(b, h, l, s + 2u, v.z),
    score_of(b, h, l, s + 3u, v.w));
}

fn scores_down(b: u32, h: u32, l: u32, s: u32, v: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(score_of(b, h, l, s, v.x), score_of(b, h, l + 1u, s, v.y), score_of(b, h, l + 2u, s, v.z),
    score_of(b, h, l + 3u, s, v.w));
}
