fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
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
      let wh = side_weight(sd, td) * side_weight(sh, th);
      for (var tw = 0; tw < TAPS; tw += 1) {
        let iw = side_pixel(sw, tw);
        if (outside(iw, sw)) { continue; }
        sum += wh * side_weight(sw, tw) * image_load(image_at(n, c, u32(id), u32(ih), u32(iw)));
      }
    }
  }
  return Values(sum);
}
