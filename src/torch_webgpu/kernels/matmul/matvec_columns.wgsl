// Matrix times vector, the matrix contiguous across the sums: a thread adds up four neighbouring ones over its part of
// the inner dimension, which LANES threads share.

var<workgroup> lane_sums: array<vec4<f32>, QUADS * LANES>;

@compute @workgroup_size(QUADS * LANES)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= P.groups) { return; }
  let tiles_m = (P.m + 4u * QUADS - 1u) / (4u * QUADS);
  let part = group / tiles_m;
  let slice = part / P.splits;
  let split = part % P.splits;
  let quad = lid % QUADS;
  let m = group % tiles_m * 4u * QUADS + 4u * quad;
  let end = min(P.k, (split + 1u) * P.chunk);
  let rows = a_row(slice, min(m, P.m - 4u));
  let column = b_row(slice, 0u);
  var sum = vec4<f32>();
  var k = split * P.chunk + lid / QUADS;
  while (k + 3u * LANES < end) {
    let p0 = a_run(rows, a_step(slice, k)) * b_value(column, b_step(slice, k));
    let p1 = a_run(rows, a_step(slice, k + LANES)) * b_value(column, b_step(slice, k + LANES));
    let p2 = a_run(rows, a_step(slice, k + 2u * LANES)) * b_value(column, b_step(slice, k + 2u * LANES));
    let p3 = a_run(rows, a_step(slice, k + 3u * LANES)) * b_value(column, b_step(slice, k + 3u * LANES));
    sum += (p0 + p1) + (p2 + p3);
    k += 4u * LANES;
  }
  while (k < end) {
    sum += a_run(rows, a_step(slice, k)) * b_value(column, b_step(slice, k));
    k += LANES;
  }
  lane_sums[lid] = sum;
  for (var width = LANES / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lid < width * QUADS) { lane_sums[lid] += lane_sums[lid + width * QUADS]; }
  }
  if (lid < QUADS && m < P.m) {
    finish_one(slice, split, m, 0u, lane_sums[lid].x);
    finish_one(slice, split, m + 1u, 0u, lane_sums[lid].y);
    finish_one(slice, split, m + 2u, 0u, lane_sums[lid].z);
    finish_one(slice, split, m + 3u, 0u, lane_sums[lid].w);
  }
}
