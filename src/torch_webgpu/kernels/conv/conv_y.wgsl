// y as the adjoint reads it: position and tap are in steps of the phases, and meet in an output or not.

fn y_element(p: Window, t: Window) -> Element {
  let d = p.d - t.d;
  let h = p.h - t.h;
  let w = p.w - t.w;
  let od = u32(d) / RD;
  let oh = u32(h) / RH;
  let ow = u32(w) / RW;
  let inside = (d >= 0) & (h >= 0) & (w >= 0) & (od < y_d()) & (oh < y_h()) & (ow < y_w());
  let meets = (od * RD == u32(d)) & (oh * RH == u32(h)) & (ow * RW == u32(w));
  return Element(inside & meets, p.base + t.base + y_delta(0u, 0u, od, oh, ow));
}

fn y_value(p: Window, t: Window) -> T {
  let found = y_element(p, t);
  if (!found.inside) { return T(); }
  return y_load(found.number);
}
