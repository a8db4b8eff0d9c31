// y = conv(x, w) as a blocked product: rows are channels of y, columns its positions, summed over channels of x and taps.

fn linear_row(slice: u32, m: u32) -> u32 { return w_at(slice * channels() + m, 0u, 0u, 0u, 0u); }

fn linear_step(slice: u32, k: u32) -> u32 {
  let t = tap(k);
  return w_delta(0u, t.channel, t.d, t.h, t.w);
}

fn window_row(slice: u32, n: u32) -> Window {
  let p = y_position(n);
  return window_start(x_at(p.image, slice * P.depth, 0u, 0u, 0u), p);
}

fn window_step(slice: u32, k: u32) -> Window {
  let t = tap(k);
  return tap_offset(x_delta(0u, t.channel, 0u, 0u, 0u), t);
}
