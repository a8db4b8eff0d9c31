fn place(slice: u32, m: u32, n: u32) -> u32 {
  let p = x_position(n);
  return x_at(p.image, slice * P.m + m, p.d, p.h, p.w);
}
