// Linear (TAPS = 2) or cubic (TAPS = 4, Keys' kernel with a = -0.75) interpolation between inputs, clamped at the ends.

alias Norm = i32;

const KEYS = -0.75;

fn source(a: Axis, o: i32) -> f32 {
  if (ALIGN_CORNERS) { return f32(o) * a.scale; }
  let position = (f32(o) + 0.5) * a.scale - 0.5;
  return select(position, max(position, 0.0), TAPS == 2);
}

// A made-up dimension needs no second tap.
fn taps(a: Axis, o: i32) -> i32 { return select(TAPS, 1, a.size == 1 && a.extent == 1); }

fn base(a: Axis, o: i32) -> i32 { return min(i32(floor(source(a, o))), a.size - 1); }

fn tap(a: Axis, o: i32, t: i32) -> i32 { return clamp(base(a, o) + t - (TAPS / 2 - 1), 0, a.size - 1); }

fn weight(a: Axis, o: i32, t: i32) -> f32 {
  if (taps(a, o) == 1) { return 1.0; }
  let rest = clamp(source(a, o) - f32(base(a, o)), 0.0, 1.0);
  if (TAPS == 2) { return select(rest, 1.0 - rest, t == 0); }
  if (t == 1 || t == 2) {
    let x = select(1.0 - rest, rest, t == 1);
    return ((KEYS + 2.0) * x - (KEYS + 3.0)) * x * x + 1.0;
  }
  let x = select(2.0 - rest, 1.0 + rest, t == 0);
  return ((KEYS * x - 5.0 * KEYS) * x + 8.0 * KEYS) * x - 4.0 * KEYS;
}

fn norm(a: Axis, o: i32) -> Norm { return 1; }

// The output whose source would be `position`; everything below or above where the scale is zero.
fn inverse(a: Axis, position: f32) -> f32 {
  if (a.scale == 0.0) { return select(f32(a.extent), -1.0, position < 0.0); }
  return select((position + 0.5) / a.scale - 0.5, position / a.scale, ALIGN_CORNERS);
}

fn first_candidate(a: Axis, i: i32) -> i32 {
  if (i == 0) { return 0; }
  return clamp(i32(floor(inverse(a, f32(i - TAPS / 2)))) - 1, 0, a.extent - 1);
}

fn candidates(a: Axis, i: i32) -> i32 {
  let last = clamp(i32(ceil(inverse(a, f32(i + TAPS / 2)))) + 1, 0, a.extent - 1);
  return select(last, a.extent - 1, i == a.size - 1) - first_candidate(a, i) + 1;
}

fn candidate(a: Axis, i: i32, t: i32) -> i32 { return first_candidate(a, i) + t; }

fn share(a: Axis, o: i32, i: i32) -> f32 {
  var total = 0.0;
  for (var t = 0; t < taps(a, o); t += 1) { total += select(0.0, weight(a, o, t), tap(a, o, t) == i); }
  return total;
}
