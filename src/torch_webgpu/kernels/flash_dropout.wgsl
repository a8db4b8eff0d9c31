// What dropout makes of weights: number i of (B, H, L, S) is kept where number i of a stream is less than P.kept. Four
// neighbours are one block of the stream, or parts of two.

var<private> dropout_seed: vec2<u32>;
var<private> dropout_start: I64;

fn start_dropout() {
  let seed = seed_load(P.seed_offset);
  dropout_seed = vec2<u32>(i64_lo(seed), i64_hi(seed));
  dropout_start = place_load(P.place_offset);
}

fn dropout_block(block: I64) -> vec4<u32> {
  let at = i64_add(dropout_start, block);
  return philox(vec4<u32>(i64_lo(at), i64_hi(at), 0u, 0u), dropout_seed);
}

// By what the weights of a query for key s, which is a multiple of 4, and its neighbours are multiplied.
fn kept_along(b: u32, h: u32, l: u32, s: u32) -> vec4<f32> {
  let row = u32_mul_wide(output_row(b, h, l), P.keys);
  let number = i64_add(i64_make(row.x, row.y), i64_from_u32(s));
  let block = i64_shr_u32(number, 2u);
  let lane = i64_lo(number) & 3u;
  var bits = dropout_block(block);
  if (lane > 0u) {
    let next = dropout_block(i64_add(block, i64_from_u32(1u)));
    switch lane {
      case 1u: { bits = vec4<u32>(bits.yzw, next.x); }
      case 2u: { bits = vec4<u32>(bits.zw, next.xy); }
      default: { bits = vec4<u32>(bits.w, next.xyz); }
    }
  }
  return vec4<f32>(kept_weight(bits.x), kept_weight(bits.y), kept_weight(bits.z), kept_weight(bits.w));
}

fn kept_weight(bits: u32) -> f32 { return select(0.0, P.factor, uniform_from_bits(bits) < P.kept); }
