// A pixel: the sum of its values in all the patches that it is part of.

fn values(n: u32, c: u32, h: u32, w: u32) -> Values {
  var sum = T();
  for (var kh = 0u; kh < P.kernel_h; kh += 1u) {
    let y = i32(h) + P.pad_h - i32(kh * P.dilation_h);
    let oh = u32(y) / P.stride_h;
    if (y < 0 || oh * P.stride_h != u32(y) || oh >= P.columns_h) { continue; }
    for (var kw = 0u; kw < P.kernel_w; kw += 1u) {
      let x = i32(w) + P.pad_w - i32(kw * P.dilation_w);
      let ow = u32(x) / P.stride_w;
      if (x < 0 || ow * P.stride_w != u32(x) || ow >= P.columns_w) { continue; }
      let row = (c * P.kernel_h + kh) * P.kernel_w + kw;
      sum = t_add(sum, columns_load(columns_at(n, row, oh * P.columns_w + ow)));
    }
  }
  return Values(sum);
}
