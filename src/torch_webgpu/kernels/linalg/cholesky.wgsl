// Cholesky factorization of a diagonal block of each matrix, in place: a workgroup a matrix, in memory of its own. Only
// the lower triangle is read and written. The first pivot that is not positive is told, from 1, and what follows it is
// left alone.
var<workgroup> tile: array<T, SIZE * SIZE>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let batch = wid.y * nwg.x + wid.x;
  if (batch >= P.groups) { return; }
  let n = P.size;
  let row = lid % SIZE;
  for (var j = lid / SIZE; j < n; j += THREADS / SIZE) {
    if (row >= j && row < n) { tile[j * SIZE + row] = a_load(a_at(batch, row, j)); }
  }
  var failed = info_load(info_at(batch, 0u, 0u));
  for (var k = 0u; k < n; k += 1u) {
    workgroupBarrier();
    let pivot = real_of(tile[k * SIZE + k]);
    if (failed == 0 && !(pivot > R(0))) { failed = i32(P.first + k + 1u); }
    let root = sqrt(pivot);
    workgroupBarrier();
    if (failed == 0) {
      for (var i = k + lid; i < n; i += THREADS) {
        tile[k * SIZE + i] = select(over(tile[k * SIZE + i], root), from_real(root), i == k);
      }
    }
    workgroupBarrier();
    if (failed == 0) {
      for (var j = k + 1u + lid / SIZE; j < n; j += THREADS / SIZE) {
        if (row >= j && row < n) {
          tile[j * SIZE + row] -= times(tile[k * SIZE + row], conjugate(tile[k * SIZE + j]));
        }
      }
    }
  }
  workgroupBarrier();
  for (var j = lid / SIZE; j < n; j += THREADS / SIZE) {
    if (row >= j && row < n) { a_store(a_at(batch, row, j), tile[j * SIZE + row]); }
  }
  if (lid == 0u) { info_store(info_at(batch, 0u, 0u), failed); }
}
