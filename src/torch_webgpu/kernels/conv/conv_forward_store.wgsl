fn element(slice: u32, m: u32, n: u32) -> Place {
  let p = y_position(n);
  return Place(p.image, slice * channels() + m, p.d, p.h, p.w);
}

fn is_element(slice: u32, n: u32) -> bool { return true; }
