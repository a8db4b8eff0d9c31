// Padding with the value at the edge; `pad` is negative where elements are cut off.

alias Norm = i32;

fn taps(a: Axis, o: i32) -> i32 { return 1; }

fn tap(a: Axis, o: i32, t: i32) -> i32 { return clamp(o - a.pad, 0, a.size - 1); }

fn weight(a: Axis, o: i32, t: i32) -> f32 { return 1.0; }

fn norm(a: Axis, o: i32) -> Norm { return 1; }

fn first_candidate(a: Axis, i: i32) -> i32 { return select(max(i + a.pad, 0), 0, i == 0); }

fn candidates(a: Axis, i: i32) -> i32 {
  return select(min(i + a.pad, a.extent - 1), a.extent - 1, i == a.size - 1) - first_candidate(a, i) + 1;
}

fn candidate(a: Axis, i: i32, t: i32) -> i32 { return first_candidate(a, i) + t; }

fn share(a: Axis, o: i32, i: i32) -> f32 { return 1.0; }
