// Adds up the partial sums of a product that was split along its inner dimension.

fn values(slice: u32, m: u32, n: u32) -> Values {
  let stride = P.rows * P.columns;
  var at = slice * P.splits * stride + m * P.columns + n;
  var sum = T();
  for (var split = 0u; split < P.splits; split += 1u) {
    sum = t_add(sum, partials_load(at));
    at += stride;
  }
  return Values(result(slice, m, n, sum));
}
