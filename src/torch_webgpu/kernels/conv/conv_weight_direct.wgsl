// The gradient of w, one element a workgroup, whose threads share the positions of y.

const THREADS = 128u;

var<workgroup> sums: array<T, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= P.groups) { return; }
  let columns = P.depth * TAPS;
  let channel = group / columns;
  let slice = channel / channels();
  let t = tap(group % columns);
  let offset = tap_offset(x_at(0u, slice * P.depth + t.channel, 0u, 0u, 0u), t);
  var sum = T();
  for (var k = lid; k < P.k; k += THREADS) {
    let p = y_position(k);
    let x = x_value(offset, window_start(x_delta(p.image, 0u, 0u, 0u, 0u), p));
    sum = t_add(sum, t_mul(x, y_load(y_at(p.image, channel, p.d, p.h, p.w))));
  }
  sums[lid] = sum;
  for (var width = THREADS / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lid < width) { sums[lid] = t_add(sums[lid], sums[lid + width]); }
  }
  if (lid == 0u) { finish_one(slice, 0u, channel % channels(), group % columns, sums[0]); }
}
