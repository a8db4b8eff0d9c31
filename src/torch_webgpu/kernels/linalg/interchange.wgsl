// Interchanges rows of each matrix as pivots say, in place, in the order of a factorization or (BACKWARDS) in the
// opposite one: a thread a column.
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let column = (wid.y * nwg.x + wid.x) * THREADS + lid;
  if (column >= P.columns * P.batch) { return; }
  let batch = column / P.columns;
  let j = column % P.columns;
  for (var step = 0u; step < P.steps; step += 1u) {
    let k = select(step, P.steps - 1u - step, BACKWARDS);
    let place = u32(pivots_load(pivots_at(batch, P.first + k, 0u))) - 1u - P.first;
    if (place != k && place < P.rows) {
      let kept = a_load(a_at(batch, k, j));
      a_store(a_at(batch, k, j), a_load(a_at(batch, place, j)));
      a_store(a_at(batch, place, j), kept);
    }
  }
}
