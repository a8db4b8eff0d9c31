// The adjoint of a convolution, one element of x a thread.

fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  let slice = c / channels();
  var sum = T();
  for (var channel = slice * P.depth; channel < (slice + 1u) * P.depth; channel += 1u) {
    let base = y_at(n, channel, 0u, 0u, 0u);
    let end = Window(base, i32(d) + pad_d(), i32(h) + pad_h(), i32(w) + pad_w());
    for (var kd = 0u; kd < KD; kd += 1u) {
      for (var kh = 0u; kh < KH; kh += 1u) {
        for (var kw = 0u; kw < KW; kw += 1u) {
          let y = y_value(end, tap_offset(0u, Tap(channel, kd, kh, kw)));
          sum = t_add(sum, t_mul(y, w_load(w_at(channel, c % channels(), kd, kh, kw))));
        }
      }
    }
  }
  return result(Place(n, c, d, h, w), sum);
}
