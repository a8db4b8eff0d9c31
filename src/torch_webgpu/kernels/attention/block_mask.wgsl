// Of which of BLOCKS blocks, from number BLOCKS * `word` on, those in `line` see some or all: two bits for each. Lists are of the
// blocks of keys that a block of queries sees; IS_TRANSPOSED: a line is one of keys, and its blocks are of queries.

fn values(b: u32, h: u32, line: u32, word: u32) -> Values {
  var kinds = 0u;
  if (IS_TRANSPOSED) {
    for (var k = 0u; k < min(BLOCKS, P.rows - BLOCKS * word); k += 1u) {
      kinds |= kind_of(b, h, BLOCKS * word + k, line) << (2u * k);
    }
  } else {
    for (var i = 0u; i < listed(b, h, line); i += 1u) {
      let k = u32(numbers_load(numbers_at(b, h, line, i))) - BLOCKS * word;
      if (k < BLOCKS) { kinds |= PARTLY << (2u * k); }
    }
    for (var i = 0u; i < full_listed(b, h, line); i += 1u) {
      let k = u32(full_numbers_load(full_numbers_at(b, h, line, i))) - BLOCKS * word;
      if (k < BLOCKS) { kinds = (kinds & ~(3u << (2u * k))) | (SEEN << (2u * k)); }
    }
  }
  return Values(i32(kinds));
}

fn kind_of(b: u32, h: u32, row: u32, column: u32) -> u32 {
  for (var i = 0u; i < full_listed(b, h, row); i += 1u) {
    if (u32(full_numbers_load(full_numbers_at(b, h, row, i))) == column) { return SEEN; }
  }
  for (var i = 0u; i < listed(b, h, row); i += 1u) {
    if (u32(numbers_load(numbers_at(b, h, row, i))) == column) { return PARTLY; }
  }
  return 0u;
}
