// Where each value belongs in a sorted sequence (torch.searchsorted): in front of its equals, or behind them (P.right).
//
// The prelude declares at_least(a, b) and more_than(a, b): a >= b and a > b, both false for NaN, and sequence(row, i).

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let t = (wid.y * nwg.x + wid.x) * 256u + lid;
  if (t >= P.numel) { return; }
  let value = values_load(P.values_offset + t);
  let row = t / P.per_row * P.row_stride;
  var low = 0u;
  var high = P.n;
  while (low < high) {
    let middle = (low + high) / 2u;
    let found = sequence(row, middle);
    if (select(at_least(found, value), more_than(found, value), P.right != 0u)) { high = middle; } else { low = middle + 1u; }
  }
  store_place(t, low);
}
