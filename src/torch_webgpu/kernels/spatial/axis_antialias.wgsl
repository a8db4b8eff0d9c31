// Interpolation that averages over as many inputs as an output covers: a triangle (RADIUS = 1) or Keys' cubic with
// a = -0.5 (RADIUS = 2), stretched by the scale when shrinking. The weights are divided by their sum.

alias Norm = f32;

const KEYS = -0.5;

fn stretch(a: Axis) -> f32 { return max(a.scale, 1.0); }

fn centre(a: Axis, o: i32) -> f32 { return a.scale * (f32(o) + 0.5); }

fn reach(a: Axis) -> f32 { return RADIUS * stretch(a); }

fn window_start(a: Axis, o: i32) -> i32 { return max(i32(centre(a, o) - reach(a) + 0.5), 0); }

fn window_end(a: Axis, o: i32) -> i32 { return min(i32(centre(a, o) + reach(a) + 0.5), a.size); }

fn taps(a: Axis, o: i32) -> i32 { return window_end(a, o) - window_start(a, o); }

fn tap(a: Axis, o: i32, t: i32) -> i32 { return window_start(a, o) + t; }

fn weight(a: Axis, o: i32, t: i32) -> f32 { return kernel((f32(tap(a, o, t)) - centre(a, o) + 0.5) / stretch(a)); }

fn kernel(position: f32) -> f32 {
  let x = abs(position);
  if (RADIUS == 1.0) { return max(0.0, 1.0 - x); }
  if (x < 1.0) { return ((KEYS + 2.0) * x - (KEYS + 3.0)) * x * x + 1.0; }
  if (x < 2.0) { return ((KEYS * x - 5.0 * KEYS) * x + 8.0 * KEYS) * x - 4.0 * KEYS; }
  return 0.0;
}

fn norm(a: Axis, o: i32) -> Norm {
  var total = 0.0;
  for (var t = 0; t < taps(a, o); t += 1) { total += weight(a, o, t); }
  return total;
}

fn first_candidate(a: Axis, i: i32) -> i32 {
  if (a.scale == 0.0) { return 0; }
  return clamp(i32(floor((f32(i) + 0.5 - reach(a)) / a.scale - 0.5)) - 2, 0, a.extent - 1);
}

fn candidates(a: Axis, i: i32) -> i32 {
  if (a.scale == 0.0) { return a.extent; }
  let last = clamp(i32(ceil((f32(i) + 0.5 + reach(a)) / a.scale - 0.5)) + 2, 0, a.extent - 1);
  return last - first_candidate(a, i) + 1;
}

fn candidate(a: Axis, i: i32, t: i32) -> i32 { return first_candidate(a, i) + t; }

fn share(a: Axis, o: i32, i: i32) -> f32 {
  let t = i - window_start(a, o);
  return select(0.0, weight(a, o, t), t >= 0 && i < window_end(a, o));
}
