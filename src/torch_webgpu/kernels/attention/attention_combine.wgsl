// Attention over parts of the keys, put together: each part left its greatest score, its sum of weights relative to
// that, and its weighted sums of values. A workgroup takes a query: LINE threads read a part, each a unit of its sums.

const LOWEST = -3.4028234e38;

var<workgroup> highest: array<f32, GROUPS>;
var<workgroup> totals: array<f32, GROUPS>;
var<workgroup> sums: array<f32, THREADS * WIDTH>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let b = wid.y;
  let h = wid.x / length();
  let l = wid.x % length();
  let row = output_row(b, h, l);
  let unit = lid % LINE;
  let group = lid / LINE;

  var most = LOWEST;
  var total = 0.0;
  var sum = V();
  for (var s = row * P.splits + group; s < (row + 1u) * P.splits; s += GROUPS) {
    let part_most = partials_load(P.totals + 2u * s);
    let part_total = partials_load(P.totals + 2u * s + 1u);
    let part_sum = partials_unit(s * VALUE_UNITS + min(unit, VALUE_UNITS - 1u));
    let higher = max(most, part_most);
    let before = exp(most - higher);
    let factor = exp(part_most - higher);
    total = total * before + part_total * factor;
    sum = sum * before + part_sum * factor;
    most = higher;
  }
  if (unit == 0u) {
    highest[group] = most;
    totals[group] = total;
  }
  keep(0u, lid, sum);
  workgroupBarrier();

  for (var e = lid; e < VALUES; e += THREADS) {
    most = LOWEST;
    for (var g = 0u; g < GROUPS; g += 1u) { most = max(most, highest[g]); }
    total = 0.0;
    var value = 0.0;
    for (var g = 0u; g < GROUPS; g += 1u) {
      let factor = exp(highest[g] - most);
      total += factor * totals[g];
      value += factor * sums[e % WIDTH * THREADS + g * LINE + e / WIDTH];
    }
    if (e == 0u) { lse_store(P.lse_offset + row, logsumexp(most, total)); }
    y_store(y_at(b, h, l, e), weighted(value, total));
  }
}
