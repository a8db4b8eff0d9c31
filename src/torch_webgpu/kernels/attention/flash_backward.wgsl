// What the forward left of a query, log(sum(exp(scores))), and its sum of O ∘ dO.

fn lse_of(b: u32, h: u32, l: u32) -> f32 {
  return lse_load(P.lse_offset + output_row(b, h, min(l, P.queries - 1u)));
}

fn delta_of(b: u32, h: u32, l: u32) -> f32 {
  return delta_load(P.delta_offset + output_row(b, h, min(l, P.queries - 1u)));
}
