// What x has, and an error if a code is not zero.

fn values(place: u32) -> Values {
  if (place == 0u) {
    let code = code_load(P.code_offset);
    if (code != 0) { flag_index(P.op, i64_from_i32(code), 0u); }
  }
  return Values(x_load(P.x_offset + place));
}
