// How a sample x of the gamma distribution changes with its shape a, -(d cdf / d a) / pdf, by the cases of PyTorch's
// standard_gamma_grad: a Taylor series, Rice's saddle point expansion, and a rational approximation in two variables.

fn standard_gamma_grad_f(a: f32, x: f32) -> f32 {
  if (x < 0.8) { return gamma_gradient_series(a, x); }
  if (a > 8.0) { return gamma_gradient_saddle(a, x); }
  let u = log_f(x / a);
  let v = log_f(a);
  let p = vec4f(0.16009398, -0.094634809, 0.025146376, -0.0030648343)
    + u * (vec4f(0.53487893, 0.1298071, 0.065735949, -0.0015649758)
    + u * vec4f(0.040121004, -0.0065914022, -0.0026286047, -0.0013441777));
  let q = vec4f(1.0, 0.32668115, 0.10406089, 0.0014179084)
    + u * (vec4f(0.16639465, 0.020070113, -0.0035938915, -0.00058392623)
    + u * vec4f(0.017050642, -0.0021309326, 0.00085092367, -1.5247877e-07));
  let powers = vec4f(1.0, v, v * v, v * v * v);
  return exp_f(dot(p, powers) / dot(q, powers));
}

fn gamma_gradient_series(a: f32, x: f32) -> f32 {
  var numerator = 1.0;
  var denominator = a;
  var first = 1.0 / a;
  var second = 1.0 / (a * a);
  for (var i = 1; i <= 5; i += 1) {
    numerator *= -x / f32(i);
    denominator += 1.0;
    first += numerator / denominator;
    second += numerator / (denominator * denominator);
  }
  // x^a cancels but for one x.
  let result = -((log_f(x) - digamma_f(a)) * first - second) * x * exp_f(x);
  return select(result, 0.0, isnan_f(result));
}

fn gamma_gradient_saddle(a: f32, x: f32) -> f32 {
  if (0.9 * a <= x && x <= 1.1 * a) {
    let one = 1.0 + 24.0 * a * (1.0 + 12.0 * a);
    let two = 1440.0 * a * a + 6.0 * x * (53.0 - 120.0 * x) - 65.0 * x * x / a + a * (107.0 + 3600.0 * x);
    return (one / (a * a)) * (two / (a * a)) / 1244160.0;
  }
  let root = sqrt(8.0 * a);
  let ratio = log_f(x / a);
  let term = root / (a - x);
  let power = pow_f(x - a - a * ratio, -1.5);
  let both = term + select(power, -power, x < a);
  let inner = ratio * both - sqrt(2.0 / a) * (a + x) / ((a - x) * (a - x));
  let stirling = 1.0 + 1.0 / (12.0 * a) * (1.0 + 1.0 / (24.0 * a));
  return -stirling * x * inner / root;
}
