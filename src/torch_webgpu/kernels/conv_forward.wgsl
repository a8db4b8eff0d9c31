// y = conv(x, w) as a blocked product: rows are channels of y, columns its positions, summed over channels of x and taps.

alias ARow = u32;
alias AStep = u32;
alias BRow = Window;
alias BStep = Window;

fn a_row(slice: u32, m: u32) -> ARow { return w_at(slice * P.m + m, 0u, 0u, 0u, 0u); }

fn a_step(slice: u32, k: u32) -> AStep {
  let t = tap(k);
  return w_delta(0u, t.channel, t.d, t.h, t.w);
}

fn b_row(slice: u32, n: u32) -> BRow {
  let p = y_position(n);
  return window_start(x_at(p.image, slice * P.depth, 0u, 0u, 0u), p);
}

fn b_step(slice: u32, k: u32) -> BStep {
  let t = tap(k);
  return tap_offset(x_delta(0u, t.channel, 0u, 0u, 0u), t);
}
