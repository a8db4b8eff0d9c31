// Where the partial sums of an element of w's gradient are.
fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  return result(Place(n, c, d, h, w), total_of(n / channels(), n % channels(), tap_number(c, d, h, w)));
}
