// The gradient of w: rows are channels of y, columns channels of x and taps, summed over the positions of y.

alias ARow = u32;
alias AStep = u32;
alias BRow = Window;
alias BStep = Window;

fn a_row(slice: u32, m: u32) -> ARow { return y_at(0u, slice * P.m + m, 0u, 0u, 0u); }

fn a_step(slice: u32, k: u32) -> AStep {
  let p = y_position(k);
  return y_delta(p.image, 0u, p.d, p.h, p.w);
}

fn b_row(slice: u32, n: u32) -> BRow {
  let t = tap(n);
  return tap_offset(x_at(0u, slice * P.depth + t.channel, 0u, 0u, 0u), t);
}

fn b_step(slice: u32, k: u32) -> BStep {
  let p = y_position(k);
  return window_start(x_delta(p.image, 0u, 0u, 0u, 0u), p);
}
