// Matrix times vector: a workgroup computes OUTPUTS sums, LANES threads each. Neighbouring threads read neighbouring
// elements of the matrix: of one row if K_MAJOR, else of one column.

const UNROLL = 4u;

var<workgroup> partial_sums: array<T, OUTPUTS * LANES>;

@compute @workgroup_size(OUTPUTS * LANES)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= P.groups) { return; }
  let tiles_m = (P.m + OUTPUTS - 1u) / OUTPUTS;
  let part = group / tiles_m;
  let slice = part / P.splits;
  let split = part % P.splits;
  let lane = select(lid / OUTPUTS, lid % LANES, K_MAJOR);
  let output = select(lid % OUTPUTS, lid / LANES, K_MAJOR);
  let m = group % tiles_m * OUTPUTS + output;
  let k_end = min(P.k, (split + 1u) * P.chunk);
  let row = a_row(slice, min(m, P.m - 1u));
  let column = b_row(slice, 0u);
  var sum = T();
  var k = split * P.chunk + lane;
  while (k + (UNROLL - 1u) * LANES < k_end) {
    let p0 = t_mul(a_value(row, a_step(slice, k)), b_value(column, b_step(slice, k)));
    let p1 = t_mul(a_value(row, a_step(slice, k + LANES)), b_value(column, b_step(slice, k + LANES)));
    let p2 = t_mul(a_value(row, a_step(slice, k + 2u * LANES)), b_value(column, b_step(slice, k + 2u * LANES)));
    let p3 = t_mul(a_value(row, a_step(slice, k + 3u * LANES)), b_value(column, b_step(slice, k + 3u * LANES)));
    sum = t_add(sum, t_add(t_add(p0, p1), t_add(p2, p3)));
    k += UNROLL * LANES;
  }
  while (k < k_end) {
    sum = t_add(sum, t_mul(a_value(row, a_step(slice, k)), b_value(column, b_step(slice, k))));
    k += LANES;
  }
  partial_sums[output * LANES + lane] = sum;
  for (var width = LANES / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lane < width) {
      let at = output * LANES + lane;
      partial_sums[at] = t_add(partial_sums[at], partial_sums[at + width]);
    }
  }
  if (lane == 0u && m < P.m) { finish_one(slice, split, m, 0u, partial_sums[output * LANES]); }
}
