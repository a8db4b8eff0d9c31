// y = conv(x, w), one output a thread: few channels in a group, or an arithmetic without a blocked kernel.

fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  let slice = c / channels();
  var sum = T();
  for (var channel = 0u; channel < P.depth; channel += 1u) {
    let start = window_start(x_at(n, slice * P.depth + channel, 0u, 0u, 0u), Position(n, d, h, w));
    for (var kd = 0u; kd < KD; kd += 1u) {
      for (var kh = 0u; kh < KH; kh += 1u) {
        for (var kw = 0u; kw < KW; kw += 1u) {
          let x = x_value(start, tap_offset(0u, Tap(channel, kd, kh, kw)));
          sum = t_add(sum, t_mul(x, w_load(w_at(c, channel, kd, kh, kw))));
        }
      }
    }
  }
  return result(Place(n, c, d, h, w), sum);
}
