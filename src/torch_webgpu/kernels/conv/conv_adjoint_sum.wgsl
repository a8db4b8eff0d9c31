// Where the partial sums of an element of x are.
fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  let at_d = d + u32(pad_d());
  let at_h = h + u32(pad_h());
  let at_w = w + u32(pad_w());
  let phase = (at_d % PD * PH + at_h % PH) * PW + at_w % PW;
  let column_d = at_d / PD - first_of(at_d % PD, PD, pad_d());
  let column_h = at_h / PH - first_of(at_h % PH, PH, pad_h());
  let column_w = at_w / PW - first_of(at_w % PW, PW, pad_w());
  let size_d = (x_d() + PD - 1u) / PD;
  let size_h = (x_h() + PH - 1u) / PH;
  let size_w = (x_w() + PW - 1u) / PW;
  let column = ((n * size_d + column_d) * size_h + column_h) * size_w + column_w;
  return result(Place(n, c, d, h, w), total_of(c / channels() * PHASES + phase, c % channels(), column));
}
