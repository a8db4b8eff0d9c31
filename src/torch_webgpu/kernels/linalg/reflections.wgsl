// The triangle t of a block of reflections, whose product is 1 - v t vᴴ: a workgroup a matrix, from the products vᴴ v
// (LAPACK's larft).
var<workgroup> tile: array<T, SIZE * SIZE>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let batch = wid.y * nwg.x + wid.x;
  if (batch >= P.groups) { return; }
  for (var j = 0u; j < P.size; j += 1u) {
    let tau = tau_load(tau_at(batch, P.first + j, 0u));
    if (lid <= j && lid < P.size) {
      var sum = tau;
      if (lid < j) {
        sum = from_real(R(0));
        for (var l = lid; l < j; l += 1u) {
          sum -= times(tile[l * SIZE + lid], products_load(products_at(batch, l, j)));
        }
        sum = times(sum, tau);
      }
      tile[j * SIZE + lid] = sum;
    }
    workgroupBarrier();
  }
  for (var e = lid; e < P.size * P.size; e += THREADS) {
    let i = e % P.size;
    let j = e / P.size;
    var value = from_real(R(0));
    if (i <= j) { value = tile[j * SIZE + i]; }
    t_store(t_at(batch, i, j), value);
  }
}
