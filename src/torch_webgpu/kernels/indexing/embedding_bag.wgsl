// Bags of rows, each reduced to one row: the sum, mean or maximum over the bag's indices. A thread computes one feature of
// one bag. Rows of padding count for nothing; an index out of range is flagged and left out.
//
// The prelude declares T, MODE (0 sum, 1 mean, 2 maximum), index_at(i), offset_at(bag) and sample_weight(i).

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let t = (wid.y * nwg.x + wid.x) * 256u + lid;
  if (t >= P.bags * P.features) { return; }
  let bag = t / P.features;
  let feature = t % P.features;
  var end = P.n;
  if (bag + 1u < P.offsets) { end = offset_at(bag + 1u); }
  var reduced = T();
  var members = 0u;
  var largest = 0u;
  for (var i = offset_at(bag); i < end; i += 1u) {
    let row = index_at(i);
    if (row == P.padding || row >= P.rows) { continue; }
    let value = weight_load(P.weight_offset + row * P.row_stride + feature * P.feature_stride);
    if (MODE != 2u) {
      reduced += value * sample_weight(i);
    } else if (members == 0u || value > reduced) {
      reduced = value;
      largest = row;
    }
    members += 1u;
  }
  if (MODE == 1u && members > 0u) { reduced = t_truediv(reduced, T(members)); }
  output_store(P.output_offset + t, reduced);
  if (MODE == 2u) { largest_store(P.largest_offset + t, i64_from_u32(largest)); }
  if (feature == 0u) { bag_size_store(P.bag_size_offset + bag, i64_from_u32(members)); }
}
