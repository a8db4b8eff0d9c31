// The adjoint of resample.wgsl: each input gathers from the outputs that it contributed to. `x` is the gradient at the outputs.

fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  let id = i32(d);
  let ih = i32(h);
  let iw = i32(w);
  let ad = axis_d(n, c);
  let ah = axis_h(n, c);
  let aw = axis_w(n, c);
  var sum = T();
  for (var td = 0; td < candidates(ad, id); td += 1) {
    let od = candidate(ad, id, td);
    let wd = share(ad, od, id);
    if (wd == 0.0) { continue; }
    for (var th = 0; th < candidates(ah, ih); th += 1) {
      let oh = candidate(ah, ih, th);
      let wh = wd * share(ah, oh, ih);
      if (wh == 0.0) { continue; }
      let row_norm = norm(ad, od) * norm(ah, oh);
      for (var tw = 0; tw < candidates(aw, iw); tw += 1) {
        let ow = candidate(aw, iw, tw);
        let ww = wh * share(aw, ow, iw);
        if (ww == 0.0) { continue; }
        let g = weighted(load_x(x_at(n, c, u32(od), u32(oh), u32(ow))), ww);
        sum = t_add(sum, averaged(g, row_norm * norm(aw, ow)));
      }
    }
  }
  return Values(sum);
}
