fn place(slice: u32, m: u32, n: u32) -> Place {
  let t = tap(n);
  return Place(slice * P.m + m, t.channel, t.d, t.h, t.w);
}

fn is_stored(slice: u32, n: u32) -> bool { return true; }
