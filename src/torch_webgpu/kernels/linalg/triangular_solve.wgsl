// Substitution for some columns of each matrix x, in place, with a diagonal block of a triangular matrix: a workgroup in
// memory of its own. The prelude says which triangle it is (UPPER), whether its diagonal is ones that are not read
// (UNIT), whether it is conjugated (CONJUGATE).
var<workgroup> triangle: array<T, SIZE * SIZE>;
var<workgroup> tile: array<T, SIZE * WIDTH>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= P.groups) { return; }
  let batch = group / P.tiles;
  let first = group % P.tiles * WIDTH;
  let n = P.size;
  for (var e = lid; e < SIZE * SIZE; e += THREADS) {
    let i = e % SIZE;
    let j = e / SIZE;
    let inside = select(i >= j, i <= j, UPPER);
    if (inside && max(i, j) < n) {
      let value = a_load(a_at(batch, i, j));
      triangle[e] = select(value, conjugate(value), CONJUGATE);
    }
  }
  for (var e = lid; e < SIZE * WIDTH; e += THREADS) {
    let i = e % SIZE;
    let j = e / SIZE;
    if (i < n && first + j < P.columns) { tile[i * WIDTH + j] = x_load(x_at(batch, i, first + j)); }
  }
  let column = lid % WIDTH;
  for (var step = 0u; step < n; step += 1u) {
    workgroupBarrier();
    let k = select(step, n - 1u - step, UPPER);
    var value = tile[k * WIDTH + column];
    if (!UNIT) { value = quotient(value, triangle[k * SIZE + k]); }
    // Row k itself is divided at the end: others still read it.
    for (var r = step + 1u + lid / WIDTH; r < n; r += THREADS / WIDTH) {
      let i = select(r, n - 1u - r, UPPER);
      tile[i * WIDTH + column] -= times(triangle[k * SIZE + i], value);
    }
  }
  workgroupBarrier();
  for (var e = lid; e < SIZE * WIDTH; e += THREADS) {
    let i = e % SIZE;
    let j = e / SIZE;
    if (i < n && first + j < P.columns) {
      var value = tile[i * WIDTH + j];
      if (!UNIT) { value = quotient(value, triangle[i * SIZE + i]); }
      x_store(x_at(batch, i, first + j), value);
    }
  }
}
