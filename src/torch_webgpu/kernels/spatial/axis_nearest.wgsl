// The nearest input: of a position's left edge, or of its centre if EXACT.

alias Norm = i32;

fn tap(a: Axis, o: i32, t: i32) -> i32 {
  return min(i32((f32(o) + select(0.0, 0.5, EXACT)) * a.scale), a.size - 1);
}

fn taps(a: Axis, o: i32) -> i32 { return 1; }

fn weight(a: Axis, o: i32, t: i32) -> f32 { return 1.0; }

fn norm(a: Axis, o: i32) -> Norm { return 1; }

fn first_candidate(a: Axis, i: i32) -> i32 { return max(0, i32(f32(i) / a.scale) - 2); }

fn candidates(a: Axis, i: i32) -> i32 {
  let last = select(min(i32(f32(i + 1) / a.scale) + 2, a.extent - 1), a.extent - 1, i == a.size - 1);
  return last - first_candidate(a, i) + 1;
}

fn candidate(a: Axis, i: i32, t: i32) -> i32 { return first_candidate(a, i) + t; }

fn share(a: Axis, o: i32, i: i32) -> f32 { return select(0.0, 1.0, tap(a, o, 0) == i); }
