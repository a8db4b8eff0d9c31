// Roots of unity. WGSL leaves the error of sin and cos open. These find the quarter turn in integers, and take polynomials
// (Cephes', fdlibm's) within an eighth of a turn of it, whose error is that of a few roundings everywhere.

// exp(-2 pi i k / n), k < n <= 2^29. quarters: 4 / n. angle + rest: pi / (2 n).
fn root_of_unity_f(k: u32, n: u32, quarters: f32, angle: f32, rest: f32) -> vec2<f32> {
  let quarter = u32(f32(k) * quarters + 0.5);
  let r = f32(bitcast<i32>(4u * k - quarter * n));
  let t = r * angle + r * rest;
  let z = t * t;
  let sine = t + t * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4));
  let cosine = 1.0 - (0.5 * z - z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5)));
  let odd = (quarter & 1u) == 1u;
  let x = select(cosine, sine, odd);
  let y = select(sine, cosine, odd);
  return vec2<f32>(select(x, -x, ((quarter + 1u) & 2u) != 0u), select(-y, y, (quarter & 2u) != 0u));
}

// exp(-2 pi i k / n) as above, and what rounding it lost.
fn root_of_unity_twice_f(k: u32, n: u32, quarters: f32, angle: f32, rest: f32) -> vec4<f32> {
  let quarter = u32(f32(k) * quarters + 0.5);
  let r = f32(bitcast<i32>(4u * k - quarter * n));
  let t = r * angle;
  let missing = fma(r, angle, -t) + r * rest;
  let z = t * t;
  let more = missing + t * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4));
  let rest_of_versine = 4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5);
  let versine = 0.5 * z - z * z * rest_of_versine + t * missing;
  let sine = t + more;
  let cosine = 1.0 - versine;
  let sines = vec2<f32>(sine, (t - sine) + more);
  let cosines = vec2<f32>(cosine, (1.0 - cosine) - versine);
  let odd = (quarter & 1u) == 1u;
  let x = select(1.0, -1.0, ((quarter + 1u) & 2u) != 0u) * select(cosines, sines, odd);
  let y = select(-1.0, 1.0, (quarter & 2u) != 0u) * select(sines, cosines, odd);
  return vec4<f32>(x.x, y.x, x.y, y.y);
}

// exp(-2 pi i k / n) - 1 for 8 k <= n: small numbers, of which the 1 takes no digits. angle + rest: 2 pi / n.
fn root_of_unity_less_one_f(k: u32, angle: f32, rest: f32) -> vec2<f32> {
  let r = f32(k);
  let t = r * angle;
  let missing = fma(r, angle, -t) + r * rest;
  let z = t * t;
  let sine = t + (missing + t * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4)));
  let versine = 0.5 * z - z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5));
  return vec2<f32>(-versine, -sine);
}

// The first one in float64.
fn root_of_unity_d(k: u32, n: u32, quarters: f32, angle: f64, rest: f64) -> vec2<f64> {
  let quarter = u32(f32(k) * quarters + 0.5);
  let r = f64(bitcast<i32>(4u * k - quarter * n));
  let t = r * angle + r * rest;
  let z = t * t;
  let high_s = 2.75573137070700676789e-06lf + z * (-2.50507602534068634195e-08lf + z * 1.58969099521155010221e-10lf);
  let low_s = 8.33333333332248946124e-03lf + z * (-1.98412698298579493134e-04lf + z * high_s);
  let sine = t + t * z * (-1.66666666666666324348e-01lf + z * low_s);
  let high_c = -2.75573143513906633035e-07lf + z * (2.08757232129817482790e-09lf - z * 1.13596475577881948265e-11lf);
  let low_c = -1.38888888888741095749e-03lf + z * (2.48015872894767294178e-05lf + z * high_c);
  let cosine = 1.0lf - (0.5lf * z - z * z * (4.16666666666666019037e-02lf + z * low_c));
  let odd = (quarter & 1u) == 1u;
  let x = select(cosine, sine, odd);
  let y = select(sine, cosine, odd);
  return vec2<f64>(select(x, -x, ((quarter + 1u) & 2u) != 0u), select(-y, y, (quarter & 2u) != 0u));
}

// k * k modulo m, k < 2^24, m <= 2^25, without a product that 32 bits cannot hold.
fn square_modulo(k: u32, m: u32) -> u32 {
  if (k < 65536u) { return k * k % m; }
  var square = k * (k >> 21u) % m;
  square = (square * 128u % m + k * ((k >> 14u) & 127u) % m) % m;
  square = (square * 128u % m + k * ((k >> 7u) & 127u) % m) % m;
  return (square * 128u % m + k * (k & 127u) % m) % m;
}
