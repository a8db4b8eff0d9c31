// Each input gathers the gradients of the outputs that chose it. `x` is the gradient at the outputs.

fn values(n: u32, c: u32, d: u32, h: u32, w: u32) -> Values {
  let id = i32(d);
  let ih = i32(h);
  let iw = i32(w);
  let ad = axis_d(n, c);
  let ah = axis_h(n, c);
  let aw = axis_w(n, c);
  let at = (id * ah.size + ih) * aw.size + iw;
  var sum = T();
  for (var td = 0; td < candidates(ad, id); td += 1) {
    let od = u32(candidate(ad, id, td));
    for (var th = 0; th < candidates(ah, ih); th += 1) {
      let oh = u32(candidate(ah, ih, th));
      for (var tw = 0; tw < candidates(aw, iw); tw += 1) {
        let ow = u32(candidate(aw, iw, tw));
        if (i64_to_i32(indices_load(indices_at(n, c, od, oh, ow))) == at) {
          sum = t_add(sum, x_load(x_at(n, c, od, oh, ow)));
        }
      }
    }
  }
  return Values(sum);
}
