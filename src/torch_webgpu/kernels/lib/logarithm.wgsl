// Logarithms: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), and the polynomial of Cephes' logf for m.

struct LogParts { f: f32, polynomial: f32, exponent: f32 }

// m - 1, log(m) - (m - 1) and e, for a finite positive x.
fn log_parts(x: f32) -> LogParts {
  let mantissa = mantissa_of(x);
  let large = mantissa.bits >= 0xb504f3u;
  let m = bitcast<f32>((mantissa.bits & 0x7fffffu) | select(0x3f800000u, 0x3f000000u, large));
  let f = m - 1.0;
  return LogParts(f, log1p_tail(f), f32(mantissa.exponent + select(23, 24, large)));
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

// The value of every logarithm at zero, negative numbers, infinity and NaN.
fn log_special(x: f32) -> f32 {
  if (magnitude_bits(x) == 0u) { return -inf_f(); }
  if (isnan_f(x) || signbit_f(x)) { return nan_f(); }
  return x;
}

fn log_is_special(x: f32) -> bool { return bitcast<u32>(x) - 1u >= 0x7f7fffffu; }

fn log_f(x: f32) -> f32 {
  if (log_is_special(x)) { return log_special(x); }
  let parts = log_parts(x);
  let low = parts.polynomial + parts.exponent * -2.12194440e-4;
  return (low + parts.f) + parts.exponent * 0.693359375;
}

fn log2_f(x: f32) -> f32 {
  if (log_is_special(x)) { return log_special(x); }
  let parts = log_parts(x);
  // log2(e) - 1 times the whole, plus the whole: the leading products stay exact.
  let low = parts.polynomial * 0.44269504088896340736 + parts.f * 0.44269504088896340736;
  return ((low + parts.polynomial) + parts.f) + parts.exponent;
}

fn log10_f(x: f32) -> f32 {
  if (log_is_special(x)) { return log_special(x); }
  let parts = log_parts(x);
  var low = (parts.f + parts.polynomial) * 7.00731903251827651129e-4;
  low += parts.exponent * 2.48745663981195213739e-4;
  low += parts.polynomial * 4.3359375e-1;
  low += parts.f * 4.3359375e-1;
  return low + parts.exponent * 3.0078125e-1;
}

fn log1p_f(x: f32) -> f32 {
  if (x > -0.29 && x < 0.41) { return x + log1p_tail(x); }
  let u = 1.0 + x;
  if (log_is_special(u)) { return log_special(u); }
  // What rounding u lost, to first order.
  let lost = select(x - (u - 1.0), 1.0 - (u - x), x >= 1.0);
  return log_f(u) + lost / u;
}
