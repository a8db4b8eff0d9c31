// y = conv(x, w), one output a thread: few channels in a group, or an arithmetic without a blocked kernel.

fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  let slice = c / P.m;
  let start = window_start(x_at(n, slice * P.depth, 0u, 0u, 0u), Position(n, d, h, w));
  var sum = T();
  for (var k = 0u; k < P.depth * TAPS; k += 1u) {
    let t = tap(k);
    let x = x_value(start, tap_offset(x_delta(0u, t.channel, 0u, 0u, 0u), t));
    sum = t_add(sum, t_mul(x, w_load(w_at(c, t.channel, t.d, t.h, t.w))));
  }
  return Values(result(slice, c % P.m, 0u, sum));
}
