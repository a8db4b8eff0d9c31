// x as it is read through the windows of the convolution: zero outside.

fn window_start(base: u32, p: Position) -> Window {
  return Window(base, i32(p.d * SD) - pad_d(), i32(p.h * SH) - pad_h(), i32(p.w * SW) - pad_w());
}

fn x_element(a: Window, b: Window) -> Element {
  let d = u32(a.d + b.d);
  let h = u32(a.h + b.h);
  let w = u32(a.w + b.w);
  let outside = (d >= x_d()) | (h >= x_h()) | (w >= x_w());
  return Element(!outside, a.base + b.base + x_delta(0u, 0u, d, h, w));
}

fn x_value(a: Window, b: Window) -> T {
  let found = x_element(a, b);
  if (!found.inside) { return T(); }
  return x_load(found.number);
}
