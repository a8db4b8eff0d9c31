// Which row of a matrix each row of its factors was, as pivots say: a thread a matrix.
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let batch = (wid.y * nwg.x + wid.x) * THREADS + lid;
  if (batch >= P.batch) { return; }
  for (var i = 0u; i < P.rows; i += 1u) { rows_store(rows_at(batch, i, 0u), i32(i)); }
  for (var k = 0u; k < P.steps; k += 1u) {
    let place = u32(pivots_load(pivots_at(batch, k, 0u))) - 1u;
    if (place != k && place < P.rows) {
      let kept = rows_load(rows_at(batch, k, 0u));
      rows_store(rows_at(batch, k, 0u), rows_load(rows_at(batch, place, 0u)));
      rows_store(rows_at(batch, place, 0u), kept);
    }
  }
}
