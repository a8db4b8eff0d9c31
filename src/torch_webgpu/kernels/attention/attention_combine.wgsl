// Attention over parts of the keys, put together: each part left its greatest score, its sum of weights relative to
// that, and its weighted sums of values.

fn values(b: u32, h: u32, l: u32, e: u32) -> Values {
  let row = output_row(b, h, l);
  let first = row * P.splits * (VALUES + 2u);
  var most = partials_load(first);
  for (var s = 1u; s < P.splits; s += 1u) { most = max(most, partials_load(first + s * (VALUES + 2u))); }
  var total = 0.0;
  var value = 0.0;
  for (var s = 0u; s < P.splits; s += 1u) {
    let at = first + s * (VALUES + 2u);
    let factor = exp(partials_load(at) - most);
    total += factor * partials_load(at + 1u);
    value += factor * partials_load(at + 2u + e);
  }
  if (e == 0u) { lse_store(P.lse_offset + row, logsumexp(most, total)); }
  return Values(weighted(value, total));
}
