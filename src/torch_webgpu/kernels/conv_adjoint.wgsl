// x = the adjoint of conv(., w) at y: rows are channels of x, columns positions of x, summed over channels of y and taps.

alias ARow = u32;
alias AStep = u32;
alias BRow = Window;
alias BStep = Window;

fn a_row(slice: u32, m: u32) -> ARow { return w_at(slice * P.depth, m, 0u, 0u, 0u); }

fn a_step(k: u32) -> AStep {
  let t = tap(k);
  return w_delta(t.channel, 0u, t.d, t.h, t.w);
}

fn a_value(row: ARow, step: AStep) -> f32 { return w_load(row + step); }

fn b_row(slice: u32, n: u32) -> BRow {
  let p = x_position(n);
  return window_end(y_at(p.image, slice * P.depth, 0u, 0u, 0u), p);
}

fn b_step(k: u32) -> BStep {
  let t = tap(k);
  return tap_offset(y_delta(0u, t.channel, 0u, 0u, 0u), t);
}

fn b_value(row: BRow, step: BStep) -> f32 { return y_value(row, step); }
