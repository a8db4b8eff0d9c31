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
  let end = min(P.k, (split + 1u) * P.chunk) / 4u;
  let row = a_at(slice, min(m, P.m - 1u), 0u) / 4u;
  let column = b_at(slice, 0u, 0u) / 4u;
  var sum = vec4<f32>();
  var g = split * P.chunk / 4u + lane;
  while (g + 3u * LANES < end) {
    let p0 = a_load4(row + g) * b_load4(column + g);
    let p1 = a_load4(row + g + LANES) * b_load4(column + g + LANES);
    let p2 = a_load4(row + g + 2u * LANES) * b_load4(column + g + 2u * LANES);
    let p3 = a_load4(row + g + 3u * LANES) * b_load4(column + g + 3u * LANES);
    sum += (p0 + p1) + (p2 + p3);
    g += 4u * LANES;
  }
  while (g < end) {
    sum += a_load4(row + g) * b_load4(column + g);
    g += LANES;
  }
  lane_sums[lid] = (sum.x + sum.y) + (sum.z + sum.w);
  for (var width = LANES / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lane < width) { lane_sums[lid] += lane_sums[lid + width]; }
  }
  if (lane == 0u && m < P.m) { finish_one(slice, split, m, 0u, lane_sums[lid]); }
}
