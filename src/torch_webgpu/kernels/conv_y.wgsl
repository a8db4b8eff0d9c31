// y as the adjoint reads it: the output, if there is one, whose window has tap `t` at position `p` of x.

fn window_end(base: u32, p: Position) -> Window {
  return Window(base, i32(p.d) + pad_d(), i32(p.h) + pad_h(), i32(p.w) + pad_w());
}

fn y_value(p: Window, t: Window) -> T {
  let d = p.d - t.d;
  let h = p.h - t.h;
  let w = p.w - t.w;
  if (d < 0 || h < 0 || w < 0) { return T(); }
  let od = u32(d) / SD;
  let oh = u32(h) / SH;
  let ow = u32(w) / SW;
  if (od >= y_d() || oh >= y_h() || ow >= y_w()) { return T(); }
  if (od * SD != u32(d) || oh * SH != u32(h) || ow * SW != u32(w)) { return T(); }
  return y_load(p.base + t.base + y_delta(0u, 0u, od, oh, ow));
}
