// Logarithms: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), and the polynomial of Cephes' logf for m.

struct LogParts { f: f32, polynomial: f32, exponent: f32 }

// m - 1, log(m) - (m - 1) and e, for a finite positive x.
fn log_parts(x: f32) -> LogParts {
  let split = log_split(x);
  return LogParts(split.x, log1p_tail(split.x), split.y);
}

// m - 1 and e. Denormals are converted from integers, since arithmetic may flush them.
fn log_split(x: f32) -> vec2<f32> {
  let denormal = bitcast<u32>(x) < 0x800000u;
  let bits = select(bitcast<u32>(x), bitcast<u32>(f32(bitcast<u32>(x))), denormal);
  // The distance from the bits of sqrt(1/2) has the exponent on top.
  let exponent = bitcast<i32>(bits - 0x3f3504f3u) >> 23u;
  let m = bitcast<f32>(bits - (bitcast<u32>(exponent) << 23u));
  return vec2<f32>(m - 1.0, f32(exponent) - select(0.0, 149.0, denormal));
}

// log(1 + f) - f for 1 + f in [sqrt(1/2), sqrt(2)].
fn log1p_tail(f: f32) -> f32 {
  let z = f * f;
  var p = 7.0376836292e-2;
  p = p * f - 1.1514610310e-1;
  p = p * f + 1.1676998740e-1;
  p = p * f - 1.2420140846e-1;
  p = p * f + 1.4249322787e-1;
  p = p * f - 1.6668057665e-1;
  p = p * f + 2.0000714765e-1;
  p = p * f - 2.4999993993e-1;
  p = p * f + 3.3333331174e-1;
  return p * f * z - 0.5 * z;
}

// A logarithm's value, but that at zero, negative numbers, infinity and NaN, where it is this.
fn log_of(x: f32, value: f32) -> f32 {
  let special = select(select(nan_f(), x, x > 0.0), -inf_f(), magnitude_bits(x) == 0u);
  return select(value, special, bitcast<u32>(x) - 1u >= 0x7f7fffffu);
}

fn log_f(x: f32) -> f32 {
  let parts = log_parts(x);
  let low = parts.polynomial + parts.exponent * -2.12194440e-4;
  return log_of(x, (low + parts.f) + parts.exponent * 0.693359375);
}

fn log2_f(x: f32) -> f32 {
  let parts = log_parts(x);
  // log2(e) - 1 times the whole, plus the whole: the leading products stay exact.
  let low = parts.polynomial * 0.44269504088896340736 + parts.f * 0.44269504088896340736;
  return log_of(x, ((low + parts.polynomial) + parts.f) + parts.exponent);
}

fn log10_f(x: f32) -> f32 {
  let parts = log_parts(x);
  var low = (parts.f + parts.polynomial) * 7.00731903251827651129e-4;
  low += parts.exponent * 2.48745663981195213739e-4;
  low += parts.polynomial * 4.3359375e-1;
  low += parts.f * 4.3359375e-1;
  return log_of(x, low + parts.exponent * 3.0078125e-1);
}

fn log1p_f(x: f32) -> f32 {
  let near = (x > -0.29) & (x < 0.41);
  let u = 1.0 + x;
  // What rounding u lost, to first order.
  let lost = select(x - (u - 1.0), 1.0 - (u - x), x >= 1.0) / u;
  let split = log_split(u);
  let f = select(split.x, x, near);
  let exponent = select(split.y, 0.0, near);
  let low = log1p_tail(f) + (exponent * -2.12194440e-4 + select(lost, 0.0, near));
  return copysign_f(log_of(u, (low + f) + exponent * 0.693359375), x);
}
