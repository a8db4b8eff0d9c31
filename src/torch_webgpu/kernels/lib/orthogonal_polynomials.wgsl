// Orthogonal polynomials in x of degree n; the degree is truncated to a whole number, and a negative one gives 0.
// Chebyshev's are trigonometric functions inside [-1, 1] from the degrees on where CPU PyTorch leaves the recurrence.

fn polynomial_degree(n: f32) -> i32 { return i32(clamp(trunc(n), -1.0, 2147483520.0)); }

// y, start: the polynomial of degree 1.
fn chebyshev_recurrence(y: f32, start: f32, degree: i32) -> f32 {
  if (degree < 0) { return 0.0; }
  if (degree == 0) { return 1.0; }
  var previous = 1.0;
  var current = start;
  for (var k = 2; k <= degree && !isnan_f(current); k += 1) {
    let next = (y + y) * current - previous;
    previous = current;
    current = next;
  }
  return current;
}

// 1 or -1 by the parity of the degree.
fn parity_sign(degree: i32) -> f32 { return select(1.0, -1.0, (degree & 1) != 0); }

// From degree `waves` + 1 on the polynomials are waves of acos(y) where |y| < 1.
fn chebyshev_t(y: f32, n: f32, waves: i32) -> f32 {
  let degree = polynomial_degree(n);
  if (degree > 0 && abs(y) == 1.0) { return select(parity_sign(degree), 1.0, y > 0.0); }
  if (degree > waves && abs(y) < 1.0) { return cos_f(f32(degree) * acos_f(y)); }
  return chebyshev_recurrence(y, y, degree);
}

fn chebyshev_u(y: f32, n: f32, waves: i32) -> f32 {
  let degree = polynomial_degree(n);
  let next = f32(degree + 1);
  if (degree > 0 && abs(y) == 1.0) { return next * select(parity_sign(degree), 1.0, y > 0.0); }
  if (degree > waves && abs(y) < 1.0) {
    let angle = acos_f(y);
    return sin_f(next * angle) / sin_f(angle);
  }
  return chebyshev_recurrence(y, y + y, degree);
}

fn chebyshev_v(y: f32, n: f32, waves: i32) -> f32 {
  let degree = polynomial_degree(n);
  let width = f32(degree) + f32(degree) + 1.0;
  if (degree > 0 && abs(y) == 1.0) { return select(width * parity_sign(degree), 1.0, y > 0.0); }
  if (degree > waves && abs(y) < 1.0) {
    let angle = acos_f(y);
    return cos_f((f32(degree) + 0.5) * angle) / cos_f(0.5 * angle);
  }
  return chebyshev_recurrence(y, y + y - 1.0, degree);
}

fn chebyshev_w(y: f32, n: f32, waves: i32) -> f32 {
  let degree = polynomial_degree(n);
  let width = f32(degree) + f32(degree) + 1.0;
  if (degree > 0 && abs(y) == 1.0) { return select(parity_sign(degree), width, y > 0.0); }
  if (degree > waves && abs(y) < 1.0) {
    let angle = acos_f(y);
    return sin_f((f32(degree) + 0.5) * angle) / sin_f(0.5 * angle);
  }
  return chebyshev_recurrence(y, y + y + 1.0, degree);
}

fn chebyshev_polynomial_t_f(x: f32, n: f32) -> f32 { return chebyshev_t(x, n, 6); }

fn chebyshev_polynomial_u_f(x: f32, n: f32) -> f32 { return chebyshev_u(x, n, 8); }

fn chebyshev_polynomial_v_f(x: f32, n: f32) -> f32 { return chebyshev_v(x, n, 8); }

fn chebyshev_polynomial_w_f(x: f32, n: f32) -> f32 { return chebyshev_w(x, n, 8); }

fn shifted_chebyshev_polynomial_t_f(x: f32, n: f32) -> f32 { return chebyshev_t(x + x - 1.0, n, 6); }

fn shifted_chebyshev_polynomial_u_f(x: f32, n: f32) -> f32 { return chebyshev_u(x + x - 1.0, n, 6); }

fn shifted_chebyshev_polynomial_v_f(x: f32, n: f32) -> f32 { return chebyshev_v(x + x - 1.0, n, 6); }

fn shifted_chebyshev_polynomial_w_f(x: f32, n: f32) -> f32 { return chebyshev_w(x + x - 1.0, n, 4); }

// Degrees above 128 give NaN, as in CPU PyTorch.
fn hermite_polynomial_h_f(x: f32, n: f32) -> f32 {
  let degree = select(-1, polynomial_degree(n), isfinite_f(n));
  if (degree < 0) { return 0.0; }
  if (degree == 0) { return 1.0; }
  if (degree > 128) { return nan_f(); }
  var previous = 1.0;
  var current = x + x;
  for (var k = 1; k < degree; k += 1) {
    let next = (x + x) * current - f32(2 * k) * previous;
    previous = current;
    current = next;
  }
  return current;
}

fn hermite_polynomial_he_f(x: f32, n: f32) -> f32 {
  let degree = polynomial_degree(n);
  if (degree < 0) { return 0.0; }
  if (degree == 0) { return 1.0; }
  if (degree > 128) { return nan_f(); }
  var previous = 1.0;
  var current = x;
  for (var k = 1; k < degree; k += 1) {
    let next = x * current - f32(k) * previous;
    previous = current;
    current = next;
  }
  return current;
}

fn laguerre_polynomial_l_f(x: f32, n: f32) -> f32 {
  let degree = polynomial_degree(n);
  if (degree < 0) { return 0.0; }
  if (degree == 0 || x == 0.0) { return 1.0; }
  var previous = 1.0;
  var current = 1.0 - x;
  for (var k = 1; k < degree && !isnan_f(current); k += 1) {
    let order = f32(k);
    let next = ((order + order + (1.0 - x)) * current - order * previous) / (order + 1.0);
    previous = current;
    current = next;
  }
  return current;
}

fn legendre_polynomial_p_f(x: f32, n: f32) -> f32 {
  let degree = polynomial_degree(n);
  if (degree < 0) { return 0.0; }
  if (degree == 0) { return 1.0; }
  if (abs(x) == 1.0) { return select(parity_sign(degree), 1.0, x > 0.0); }
  var previous = 1.0;
  var current = x;
  for (var k = 1; k < degree && !isnan_f(current); k += 1) {
    let order = f32(k);
    let next = ((order + order + 1.0) * x * current - order * previous) / (order + 1.0);
    previous = current;
    current = next;
  }
  return current;
}
