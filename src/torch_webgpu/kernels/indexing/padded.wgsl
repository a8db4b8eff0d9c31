// Row `row` of sequence `sequence`: the element of the jagged rows, or the padding.

fn values(sequence: u32, row: u32, column: u32) -> Values {
  let start = offset_at(sequence);
  if (start + row >= offset_at(sequence + 1u)) { return Values(T(P.padding)); }
  return Values(rows_load(rows_at(0u, start + row, column)));
}
