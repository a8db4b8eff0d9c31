// Attention of few queries: a workgroup takes ROWS queries, of heads that share their keys and values, over its part of
// the keys, TILE keys a step. LANES threads score a key together; then a thread weighs one (query, key); then each
// thread adds up one unit of the values (V: four numbers, or one) over every GROUPS-th key.
// A line with $r stands for one such line for each query, with $u for each of the KEYS that a thread scores in a step.

const LOWEST = -3.4028234e38;
const STRIDE = LANES + 1u;

var<workgroup> queries: array<V, ROWS * UNITS>;
var<workgroup> sums: array<f32, THREADS * STRIDE>;
var<workgroup> best: array<f32, THREADS>;
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> factors: array<f32, THREADS / TILE>;

struct Query { h: u32, l: u32, exists: bool }

// Of those that share a head of keys, by number.
fn query_of(head: u32, number: u32) -> Query {
  let n = min(number, SHARED * length() - 1u);
  return Query(head * SHARED + n / length(), n % length(), n == number);
}

fn finish(b: u32, head: u32, number: u32, row: u32, split: u32, splits: u32, lid: u32, sum: V) {
  workgroupBarrier();
  keep(lid, sum);
  workgroupBarrier();
  let query = query_of(head, number);
  let part = output_row(b, query.h, query.l) * splits + split;
  if (query.exists) {
    if (lid == 0u) { finish_query(part, factors[row], best[row * TILE]); }
    for (var e = lid; e < VALUES; e += THREADS) {
      var value = 0.0;
      for (var g = 0u; g < GROUPS; g += 1u) { value += sums[e % WIDTH * THREADS + g * LINE + e / WIDTH]; }
      finish_value(part, b, query.h, query.l, e, value, best[row * TILE]);
    }
  }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let b = wid.z;
  let head = wid.y / BLOCKS;
  let first = wid.y % BLOCKS * ROWS;
  let begin = wid.x * P.chunk;
  let end = min(P.keys, begin + P.chunk);
  let lane = lid % LANES;
  let slot = lid / LANES;
  let unit = lid % LINE;
  let group = lid / LINE;
  let row = lid / TILE;
  let place = lid % TILE;
  let query = query_of(head, first + row);

  for (var i = lid; i < ROWS * UNITS; i += THREADS) {
    let asked = query_of(head, first + i / UNITS);
    queries[i] = P.scale * q_unit(b, asked.h, asked.l, i % UNITS);
  }
  workgroupBarrier();

  var most = LOWEST;
  var total = 0.0;
  var sum_$r = V();
  for (var base = begin; base < end; base += TILE) {
    let key_$u = min(base + $uu * SLOTS + slot, P.keys - 1u);
    var score_$r_$u = 0.0;
    for (var i = lane; i < UNITS; i += LANES) {
      let k_$u = k_unit(b, head, key_$u, i);
      let q_$r = queries[$ru * UNITS + i];
      score_$r_$u += product(q_$r, k_$u);
    }
    sums[($ru * TILE + $uu * SLOTS + slot) * STRIDE + lane] = score_$r_$u;
    workgroupBarrier();

    let key = base + place;
    var score = LOWEST;
    var is_seen = false;
    if (row < ROWS && key < end) {
      score = 0.0;
      for (var i = 0u; i < LANES; i += 1u) { score += sums[lid * STRIDE + i]; }
      is_seen = is_visible(b, query.h, query.l, key);
      score = select(LOWEST, biased(b, query.h, query.l, key, score), is_seen);
    }
    best[lid] = score;
    for (var width = TILE / 2u; width > 0u; width /= 2u) {
      workgroupBarrier();
      if (place < width) { best[lid] = max(best[lid], best[lid + width]); }
    }
    workgroupBarrier();
    let higher = max(most, best[row * TILE]);
    let factor = exp(most - higher);
    let weight = select(0.0, exp(score - higher), is_seen);
    most = higher;
    total = total * factor + weight;
    weights[lid] = weight;
    if (place == 0u) { factors[row] = factor; }
    workgroupBarrier();

    sum_$r *= factors[$r];
    if (unit < VALUE_UNITS) {
      for (var j = group; j < TILE; j += GROUPS) {
        let v = v_unit(b, head, min(base + j, P.keys - 1u), unit);
        sum_$r += weights[$ru * TILE + j] * v;
      }
    }
  }

  workgroupBarrier();
  best[lid] = total;
  if (place == 0u) { factors[row] = most; }
  for (var width = TILE / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (place < width) { best[lid] += best[lid + width]; }
  }
  finish(b, head, first + $ru, $ru, wid.x, nwg.x, lid, sum_$r);
}
