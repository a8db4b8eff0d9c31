fn element(slice: u32, m: u32, n: u32) -> Place {
  let t = tap(n);
  return Place(slice * channels() + m, t.channel, t.d, t.h, t.w);
}

fn is_element(slice: u32, n: u32) -> bool { return true; }
