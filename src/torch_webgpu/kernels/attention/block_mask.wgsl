// Whether block `column` of keys is listed among those of which a block of queries sees some, or all.

fn values(b: u32, h: u32, row: u32, column: u32) -> Values {
  var kind = HIDDEN;
  let some = u32(counts_load(counts_at(b, h, row, 0u)));
  for (var i = 0u; i < min(some, P.listed); i += 1u) {
    if (u32(numbers_load(numbers_at(b, h, row, i))) == column) { kind = PARTLY; break; }
  }
  if (IS_FULL_LISTED) {
    let all = u32(full_counts_load(full_counts_at(b, h, row, 0u)));
    for (var i = 0u; i < min(all, P.full_listed); i += 1u) {
      if (u32(full_numbers_load(full_numbers_at(b, h, row, i))) == column) { kind = SEEN; break; }
    }
  }
  return Values(kind);
}
