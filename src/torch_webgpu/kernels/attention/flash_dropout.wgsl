// What dropout makes of weights: the one in row r of (B, H, L) and column s is kept where the random number there, under
// a key of 128 bits, is less than P.kept.

var<private> dropout_key: vec4<u32>;

fn start_dropout() {
  let seed = seed_load(P.seed_offset);
  let place = place_load(P.place_offset);
  dropout_key = vec4<u32>(i64_lo(seed), i64_hi(seed), i64_lo(place), i64_hi(place));
}

// By what the weights of a query for key s, which is a multiple of 4, and its neighbours are multiplied.
fn kept_along(b: u32, h: u32, l: u32, s: u32) -> vec4<f32> {
  let bits = random_four(dropout_key, output_row(b, h, l), s / 4u);
  return vec4<f32>(kept_weight(bits.x), kept_weight(bits.y), kept_weight(bits.z), kept_weight(bits.w));
}

fn kept_weight(bits: u32) -> f32 { return select(0.0, P.factor, is_kept(bits)); }

fn is_kept(bits: u32) -> bool { return uniform_from_bits(bits) < P.kept; }

// A bit for each of these four weights: whether it is kept.
fn kept_mask(b: u32, h: u32, l: u32, s: u32) -> u32 {
  let bits = random_four(dropout_key, output_row(b, h, l), s / 4u);
  let masks = select(vec4<u32>(), vec4<u32>(1u, 2u, 4u, 8u),
    vec4<bool>(is_kept(bits.x), is_kept(bits.y), is_kept(bits.z), is_kept(bits.w)));
  return masks.x | masks.y | masks.z | masks.w;
}
