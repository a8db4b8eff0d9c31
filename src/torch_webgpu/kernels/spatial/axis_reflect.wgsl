// Padding with the values mirrored at the edge; `pad` is negative where elements are cut off.

alias Norm = i32;

fn taps(a: Axis, o: i32) -> i32 { return 1; }

fn tap(a: Axis, o: i32, t: i32) -> i32 {
  let i = abs(o - a.pad);
  return select(i, 2 * (a.size - 1) - i, i >= a.size);
}

fn weight(a: Axis, o: i32, t: i32) -> f32 { return 1.0; }

fn norm(a: Axis, o: i32) -> Norm { return 1; }

// The element itself and its two mirror images; an edge is its own image.
fn candidates(a: Axis, i: i32) -> i32 { return 3; }

fn candidate(a: Axis, i: i32, t: i32) -> i32 {
  if (t == 0) { return i + a.pad; }
  if (t == 1) { return select(a.pad - i, -1, i == 0); }
  return select(2 * (a.size - 1) - i + a.pad, -1, i == a.size - 1);
}

fn share(a: Axis, o: i32, i: i32) -> f32 { return select(0.0, 1.0, o >= 0 && o < a.extent); }
