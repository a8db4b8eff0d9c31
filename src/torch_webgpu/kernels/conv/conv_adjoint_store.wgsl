fn spread(slice: u32, n: u32) -> Position {
  let p = phase_position(n);
  let d = (first_of(phase_d(slice), PD, pad_d()) + p.d) * PD + phase_d(slice) - u32(pad_d());
  let h = (first_of(phase_h(slice), PH, pad_h()) + p.h) * PH + phase_h(slice) - u32(pad_h());
  let w = (first_of(phase_w(slice), PW, pad_w()) + p.w) * PW + phase_w(slice) - u32(pad_w());
  return Position(p.image, d, h, w);
}

fn is_element(slice: u32, n: u32) -> bool {
  let p = spread(slice, n);
  return (p.d < x_d()) & (p.h < x_h()) & (p.w < x_w());
}

fn element(slice: u32, m: u32, n: u32) -> Place {
  let p = spread(slice, n);
  return Place(p.image, slice / PHASES * channels() + m, p.d, p.h, p.w);
}
