// The adjoint of a convolution, one element of x a thread.

fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  let slice = c / P.m;
  let end = window_end(y_at(n, slice * P.depth, 0u, 0u, 0u), Position(n, d, h, w));
  var sum = T();
  for (var k = 0u; k < P.depth * TAPS; k += 1u) {
    let t = tap(k);
    let y = y_value(end, tap_offset(y_delta(0u, t.channel, 0u, 0u, 0u), t));
    sum = t_add(sum, t_mul(y, w_load(w_at(slice * P.depth + t.channel, c % P.m, t.d, t.h, t.w))));
  }
  return Values(result(slice, c % P.m, 0u, sum));
}
