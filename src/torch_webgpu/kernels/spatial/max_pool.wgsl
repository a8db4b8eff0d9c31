// The largest input of each window and its number in the image; the first one if several are, and NaN above all.

fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  let od = i32(d);
  let oh = i32(h);
  let ow = i32(w);
  let ad = axis_d(n, c);
  let ah = axis_h(n, c);
  let aw = axis_w(n, c);
  var at = (tap(ad, od, 0) * ah.size + tap(ah, oh, 0)) * aw.size + tap(aw, ow, 0);
  var best = x_load(x_at(n, c, u32(tap(ad, od, 0)), u32(tap(ah, oh, 0)), u32(tap(aw, ow, 0))));
  for (var td = 0; td < taps(ad, od); td += 1) {
    let id = tap(ad, od, td);
    for (var th = 0; th < taps(ah, oh); th += 1) {
      let ih = tap(ah, oh, th);
      for (var tw = 0; tw < taps(aw, ow); tw += 1) {
        let iw = tap(aw, ow, tw);
        let v = x_load(x_at(n, c, u32(id), u32(ih), u32(iw)));
        if (t_gt(v, best) | t_isnan(v)) {
          best = v;
          at = (id * ah.size + ih) * aw.size + iw;
        }
      }
    }
  }
  return Values(best, i64_from_i32(at));
}
