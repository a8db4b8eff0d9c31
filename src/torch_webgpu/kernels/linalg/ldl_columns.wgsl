// Brings the rows of a factor's columns, in place, where the pivots of later ones put them: a thread a column. Then the
// factor is a triangle. What stands beside the diagonal of a block of two rows becomes zero.
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let column = (wid.y * nwg.x + wid.x) * THREADS + lid;
  if (column >= P.size * P.batch) { return; }
  let batch = column / P.size;
  let j = column % P.size;
  var opened = false;  // whether row k is the second of a block
  for (var k = 0u; k < P.size; k += 1u) {
    let pivot = pivots_load(pivots_at(batch, k, 0u));
    let place = u32(abs(pivot)) - 1u;
    let of_two = pivot < 0;
    if (of_two && !opened) { opened = true; continue; }
    if (of_two && j + 1u == k) {
      a_store(a_at(batch, k, j), from_real(R(0)));
    } else if (j < k && place != k && place < P.size) {
      let kept = a_load(a_at(batch, k, j));
      a_store(a_at(batch, k, j), a_load(a_at(batch, place, j)));
      a_store(a_at(batch, place, j), kept);
    }
    opened = false;
  }
}
