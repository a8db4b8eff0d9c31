// Row `row` (channel and tap), position `at` of the columns: a patch's value, zero in the padding.

fn values(n: u32, row: u32, at: u32) -> Values {
  let channel = row / (P.kernel_h * P.kernel_w);
  let y = i32(at / P.columns_w * P.stride_h + row / P.kernel_w % P.kernel_h * P.dilation_h) - P.pad_h;
  let x = i32(at % P.columns_w * P.stride_w + row % P.kernel_w * P.dilation_w) - P.pad_w;
  if (y < 0 || y >= P.size_h || x < 0 || x >= P.size_w) { return Values(T()); }
  return Values(image_load(image_at(n, channel, u32(y), u32(x))));
}
