// x = the adjoint of conv(., w) at y: rows are channels of x, columns its positions, summed over channels of y and taps.

// More than any position: a tap that is none.
const FAR = 0x3fffffff;
const JD = (KD + PD - 1u) / PD;
const JH = (KH + PH - 1u) / PH;
const JW = (KW + PW - 1u) / PW;

// The k-th (channel, tap) pair of a phase, its tap counted in steps of the phases.
fn phase_tap(k: u32) -> Tap {
  let count = JD * JH * JW;
  let channel = select(k / count, k % P.depth, TAPS_OUTSIDE);
  let t = select(k % count, k / P.depth, TAPS_OUTSIDE);
  return Tap(channel, t / (JH * JW), t / JW % JH, t % JW);
}

// Column n of a phase: which of its positions. All phases have as many columns as the largest.
fn phase_position(n: u32) -> Position {
  let size_d = (x_d() + PD - 1u) / PD;
  let size_h = (x_h() + PH - 1u) / PH;
  let size_w = (x_w() + PW - 1u) / PW;
  let row = n / size_w;
  let plane = row / size_h;
  return Position(plane / size_d, plane % size_d, row % size_h, n % size_w);
}

fn linear_row(slice: u32, m: u32) -> u32 { return w_at(slice / PHASES * P.depth, m, 0u, 0u, 0u); }

fn linear_step(slice: u32, k: u32) -> u32 {
  let t = phase_tap(k);
  let d = min(phase_d(slice) + t.d * PD, KD - 1u);
  let h = min(phase_h(slice) + t.h * PH, KH - 1u);
  let w = min(phase_w(slice) + t.w * PW, KW - 1u);
  return w_delta(t.channel, 0u, d, h, w);
}

fn window_row(slice: u32, n: u32) -> Window {
  let p = phase_position(n);
  let d = first_of(phase_d(slice), PD, pad_d()) + p.d;
  let h = first_of(phase_h(slice), PH, pad_h()) + p.h;
  let w = first_of(phase_w(slice), PW, pad_w()) + p.w;
  return Window(y_at(p.image, slice / PHASES * P.depth, 0u, 0u, 0u), i32(d), i32(h), i32(w));
}

fn window_step(slice: u32, k: u32) -> Window {
  let t = phase_tap(k);
  let none_h = phase_h(slice) + t.h * PH >= KH;
  let none_w = phase_w(slice) + t.w * PW >= KW;
  let none = none_h | none_w | (phase_d(slice) + t.d * PD >= KD);
  return Window(y_delta(0u, t.channel, 0u, 0u, 0u), i32(t.d * DD), i32(t.h * DH), select(i32(t.w * DW), FAR, none));
}
