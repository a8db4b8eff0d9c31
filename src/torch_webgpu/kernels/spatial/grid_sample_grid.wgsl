// The gradient at coordinate k of the sampling point of position (d, h, w).

fn factor(s: Side, t: i32, along: bool) -> f32 {
  if (along) { return pixel_slope(s.x, t); }
  return side_weight(s, t);
}

fn values(n: u32, d: u32, h: u32, w: u32, k: u32) -> Values {
  let sd = side_d(n, d, h, w);
  let sh = side_of(n, d, h, w, 1u, P.image_h);
  let sw = side_of(n, d, h, w, 0u, P.image_w);
  var sum = 0.0;
  for (var td = 0; td < side_count(sd); td += 1) {
    let id = side_pixel(sd, td);
    if (outside(id, sd)) { continue; }
    for (var th = 0; th < TAPS; th += 1) {
      let ih = side_pixel(sh, th);
      if (outside(ih, sh)) { continue; }
      let wh = factor(sd, td, k == 2u) * factor(sh, th, k == 1u);
      for (var tw = 0; tw < TAPS; tw += 1) {
        let iw = side_pixel(sw, tw);
        if (outside(iw, sw)) { continue; }
        var product = 0.0;
        for (var c = 0u; c < P.channels; c += 1u) {
          product += grad_load(grad_at(n, c, d, h, w)) * image_load(image_at(n, c, u32(id), u32(ih), u32(iw)));
        }
        sum += wh * factor(sw, tw, k == 0u) * product;
      }
    }
  }
  let slope = select(select(sw.slope, sh.slope, k == 1u), sd.slope, k == 2u);
  return Values(sum * slope);
}
