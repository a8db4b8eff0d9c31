// Mean and standard deviation of x, which all threads of a workgroup find together before the products. Sums of squares
// alone would leave the variance of a row far from zero without digits: parts meet as in Chan, Golub and LeVeque,
// "Updating formulae and a pairwise algorithm for computing sample variances" (1979).

struct Part { count: f32, mean: f32, squares: f32 }

var<workgroup> parts: array<Part, OUTPUTS * LANES>;
var<private> mean: f32;
var<private> factor: f32;

fn together(a: Part, b: Part) -> Part {
  let count = a.count + b.count;
  let share = b.count / max(count, 1.0);
  let d = b.mean - a.mean;
  return Part(count, a.mean + d * share, a.squares + b.squares + d * d * a.count * share);
}

fn prepare(lid: u32) {
  let size = f32(PIECE);
  var part = Part();
  for (var i = lid; i < P.k / PIECE; i += OUTPUTS * LANES) {
    let x = x_piece(i * PIECE);
    let middle = product(x, ONE) / size;
    let d = x - middle;
    part = together(part, Part(size, middle, product(d, d)));
  }
  parts[lid] = part;
  for (var width = OUTPUTS * LANES / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lid < width) { parts[lid] = together(parts[lid], parts[lid + width]); }
  }
  workgroupBarrier();
  mean = parts[0].mean;
  factor = inverseSqrt(parts[0].squares / f32(P.k) + P.eps);
}
