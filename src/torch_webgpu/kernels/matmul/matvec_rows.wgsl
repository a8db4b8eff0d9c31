// Matrix times vector, both contiguous along the sum: LANES threads share a row, and load four elements at a time.

var<workgroup> lane_sums: array<f32, OUTPUTS * LANES>;

@compute @workgroup_size(OUTPUTS * LANES)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= P.groups) { return; }
  let tiles_m = (P.m + OUTPUTS - 1u) / OUTPUTS;
  let part = group / tiles_m;
  let slice = part / P.splits;
  let split = part % P.splits;
  let lane = lid % LANES;
  let m = group % tiles_m * OUTPUTS + lid / LANES;
  let end = min(P.k, (split + 1u) * P.chunk);
  let row = a_row(slice, min(m, P.m - 1u));
  let column = b_row(slice, 0u);
  var sum = vec4<f32>();
  var k = split * P.chunk + 4u * lane;
  while (k + 12u * LANES < end) {
    let p0 = a_run(row, a_step(slice, k)) * b_run(column, b_step(slice, k));
    let p1 = a_run(row, a_step(slice, k + 4u * LANES)) * b_run(column, b_step(slice, k + 4u * LANES));
    let p2 = a_run(row, a_step(slice, k + 8u * LANES)) * b_run(column, b_step(slice, k + 8u * LANES));
    let p3 = a_run(row, a_step(slice, k + 12u * LANES)) * b_run(column, b_step(slice, k + 12u * LANES));
    sum += (p0 + p1) + (p2 + p3);
    k += 16u * LANES;
  }
  while (k < end) {
    sum += a_run(row, a_step(slice, k)) * b_run(column, b_step(slice, k));
    k += 4u * LANES;
  }
  lane_sums[lid] = (sum.x + sum.y) + (sum.z + sum.w);
  for (var width = LANES / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lane < width) { lane_sums[lid] += lane_sums[lid + width]; }
  }
  if (lane == 0u && m < P.m) { finish_one(slice, split, m, 0u, lane_sums[lid]); }
}
