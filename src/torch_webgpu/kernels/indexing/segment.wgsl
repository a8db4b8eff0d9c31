// The reduction of a segment of a line: of the elements from one offset to the next, which come after each other.

fn values(line: u32, segment: u32, inner: u32) -> Values {
  let begin = bound(line, segment);
  let end = bound(line, segment + 1u);
  if (inner == 0u && P.checks != 0u) { check(line, segment); }
  var total = IDENTITY;
  for (var i = begin; i < end; i += 1u) { total = t_REDUCE(total, data_load(data_at(line, i, inner))); }
  return Values(total);
}

// Offsets in order and in range, whatever they are; those before a segment, too.
fn bound(line: u32, segment: u32) -> u32 {
  return u32(clamp(offsets_load(offsets_at(line, segment, 0u)), 0, i32(P.length)));
}

fn check(line: u32, segment: u32) {
  let begin = offsets_load(offsets_at(line, segment, 0u));
  let end = offsets_load(offsets_at(line, segment + 1u, 0u));
  if (end < begin) {
    flag_index(P.op, i64_from_i32(end - begin), P.length);
  } else if (segment + 1u == P.segments && end != i32(P.length)) {
    flag_index(P.op, i64_from_i32(max(end, 0)), P.length);
  }
}
