// One dimension of an image of bytes, resampled with weights in fixed point. Row o of the table: the first input of output
// o, how many there are, their weights.

fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  let row = P.table_offset + select(h, w, ALONG_ROWS) * WIDTH;
  let first = u32(table_load(row));
  let count = u32(table_load(row + 1u));
  var sum = 1i << (BITS - 1u);
  for (var t = 0u; t < count; t += 1u) {
    let at = select(x_at(n, c, d, first + t, w), x_at(n, c, d, h, first + t), ALONG_ROWS);
    sum += i32(x_load(at)) * table_load(row + 2u + t);
  }
  return Values(clamp(sum >> BITS, 0, 255));
}
