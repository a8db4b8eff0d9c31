// Windows of fractional max pooling (Graham 2014): nearly evenly spaced, shifted by `scale`, a random number.

alias Norm = i32;

fn spacing(a: Axis) -> f32 { return f32(a.size - a.window) / f32(a.extent - 1); }

fn window_start(a: Axis, o: i32) -> i32 {
  if (o == a.extent - 1) { return a.size - a.window; }
  return i32((f32(o) + a.scale) * spacing(a)) - i32(a.scale * spacing(a));
}

fn taps(a: Axis, o: i32) -> i32 { return a.window; }

fn tap(a: Axis, o: i32, t: i32) -> i32 { return window_start(a, o) + t; }

fn first_candidate(a: Axis, i: i32) -> i32 {
  if (a.extent == 1 || a.size == a.window) { return 0; }
  return clamp(i32(floor(f32(i - a.window - 1) / spacing(a))), 0, a.extent - 1);
}

fn candidates(a: Axis, i: i32) -> i32 {
  if (a.extent == 1 || a.size == a.window) { return a.extent; }
  return clamp(i32(ceil(f32(i + 2) / spacing(a))), 0, a.extent - 1) - first_candidate(a, i) + 1;
}

fn candidate(a: Axis, i: i32, t: i32) -> i32 { return first_candidate(a, i) + t; }
