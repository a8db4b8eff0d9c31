// The gradient of w: rows are channels of y, columns channels of x and taps, summed over the positions of y.

fn linear_row(slice: u32, m: u32) -> u32 { return y_at(0u, slice * channels() + m, 0u, 0u, 0u); }

fn linear_step(slice: u32, k: u32) -> u32 {
  let p = y_position(k);
  return y_delta(p.image, 0u, p.d, p.h, p.w);
}

fn window_row(slice: u32, n: u32) -> Window {
  let t = tap(n);
  return tap_offset(x_at(0u, slice * P.depth + t.channel, 0u, 0u, 0u), t);
}

fn window_step(slice: u32, k: u32) -> Window {
  let p = y_position(k);
  return window_start(x_delta(p.image, 0u, 0u, 0u, 0u), p);
}
