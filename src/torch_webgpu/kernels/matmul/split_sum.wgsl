// The total of the partial sums of a product that was split along its inner dimension (see store.py).

fn split_total(slice: u32, m: u32, n: u32) -> T {
  let stride = P.m * P.n;
  var at = slice * P.splits * stride + m * P.n + n;
  var sum = T();
  for (var split = 0u; split < P.splits; split += 1u) {
    sum = t_add(sum, partials_load(at));
    at += stride;
  }
  return sum;
}
