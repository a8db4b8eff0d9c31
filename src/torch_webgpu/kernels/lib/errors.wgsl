// What a kernel does with an index it cannot use: flags it in the device's error buffer (binding `errors`, array of atomic
// u32; engine/sync.py reads it) and goes on without touching memory. The first flag stays until the host has read it.

fn flag_index(op: u32, index: I64, size: u32) {
  loop {
    let flag = atomicCompareExchangeWeak(&errors_buf[0], 0u, 1u);
    if (flag.exchanged) {
      errors_store(1u, op);
      errors_store(2u, i64_lo(index));
      errors_store(3u, i64_hi(index));
      errors_store(4u, size);
      errors_store(5u, 0u);
      return;
    }
    if (flag.old_value != 0u) { return; }
  }
}

// The position that an index names along a dimension of `size`; `size`, flagged, where there is none.
fn checked_index_l(op: u32, index: I64, size: u32) -> u32 {
  if (i64_hi(index) == 0u && i64_lo(index) < size) { return i64_lo(index); }
  flag_index(op, index, size);
  return size;
}

fn checked_index_i(op: u32, index: i32, size: u32) -> u32 {
  if (index >= 0 && u32(index) < size) { return u32(index); }
  flag_index(op, i64_from_i32(index), size);
  return size;
}

// The same where negative indices count from the end.
fn wrapped_index_l(op: u32, index: I64, size: u32) -> u32 {
  if ((i64_hi(index) >> 31u) == 0u) { return checked_index_l(op, index, size); }
  let position = i64_add(index, i64_from_u32(size));
  if (i64_hi(position) == 0u && i64_lo(position) < size) { return i64_lo(position); }
  flag_index(op, index, size);
  return size;
}

fn wrapped_index_i(op: u32, index: i32, size: u32) -> u32 {
  return wrapped_index_l(op, i64_from_i32(index), size);
}
