// A matrix product in any arithmetic (integers, complex, double): blocks of 16 x 16, one element a thread.

var<workgroup> a_tile: array<T, 256>;
var<workgroup> b_tile: array<T, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= P.groups) { return; }
  let tiles_m = (P.m + 15u) / 16u;
  let tiles_n = (P.n + 15u) / 16u;
  let slice = group / (tiles_n * tiles_m);
  let row = lid / 16u;
  let column = lid % 16u;
  let m = (group / tiles_n) % tiles_m * 16u + row;
  let n = group % tiles_n * 16u + column;
  var sum = T();
  for (var k = 0u; k < P.k; k += 16u) {
    var a = T();
    var b = T();
    if (m < P.m && k + column < P.k) { a = a_value(a_row(slice, m), a_step(slice, k + column)); }
    if (n < P.n && k + row < P.k) { b = b_value(b_row(slice, n), b_step(slice, k + row)); }
    workgroupBarrier();
    a_tile[lid] = a;
    b_tile[lid] = b;
    workgroupBarrier();
    for (var i = 0u; i < 16u; i += 1u) {
      sum = t_add(sum, t_mul(a_tile[row * 16u + i], b_tile[i * 16u + column]));
    }
  }
  if (m < P.m && n < P.n) { finish_one(slice, 0u, m, n, sum); }
}
