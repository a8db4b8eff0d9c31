// Each output is a weighted sum of inputs, the weights a product over the dimensions (see resample.py for what an axis is).

fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  let od = i32(d);
  let oh = i32(h);
  let ow = i32(w);
  let ad = axis_d(n, c);
  let ah = axis_h(n, c);
  let aw = axis_w(n, c);
  var sum = T();
  for (var td = 0; td < taps(ad, od); td += 1) {
    let id = u32(tap(ad, od, td));
    let wd = weight(ad, od, td);
    for (var th = 0; th < taps(ah, oh); th += 1) {
      let ih = u32(tap(ah, oh, th));
      let wh = wd * weight(ah, oh, th);
      for (var tw = 0; tw < taps(aw, ow); tw += 1) {
        let iw = u32(tap(aw, ow, tw));
        sum = t_add(sum, weighted(load_x(x_at(n, c, id, ih, iw)), wh * weight(aw, ow, tw)));
      }
    }
  }
  return Values(averaged(sum, norm(ad, od) * norm(ah, oh) * norm(aw, ow)));
}
