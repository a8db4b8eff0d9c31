// Where the partial sums of an element of y are.
fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  return result(Place(n, c, d, h, w), total_of(c / channels(), c % channels(), ((n * y_d() + d) * y_h() + h) * y_w() + w));
}
