// One vector times the rows of a few matrices of one shape: LANES threads share row m of each. They also add up what else
// `terms` gives them, the vector's squares; `finished` makes results of the sums. What terms need of all of the vector is
// found by `prepare`.

var<workgroup> lane_sums: array<Sums, OUTPUTS * LANES>;

@compute @workgroup_size(OUTPUTS * LANES)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= P.groups) { return; }
  prepare(lid);
  let lane = lid % LANES;
  let m = group * OUTPUTS + lid / LANES;
  let row = starts(min(m, P.m - 1u));
  let end = P.k / RUN;
  var sums = Sums();
  var at = lane;
  while (at + 3u * LANES < end) {
    let t0 = terms(row, at);
    let t1 = terms(row, at + LANES);
    let t2 = terms(row, at + 2u * LANES);
    let t3 = terms(row, at + 3u * LANES);
    sums += (t0 + t1) + (t2 + t3);
    at += 4u * LANES;
  }
  while (at < end) {
    sums += terms(row, at);
    at += LANES;
  }
  lane_sums[lid] = sums;
  for (var width = LANES / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lane < width) { lane_sums[lid] += lane_sums[lid + width]; }
  }
  if (lane == 0u && m < P.m) { finish_one(0u, 0u, m, 0u, finished(lane_sums[lid])); }
}
