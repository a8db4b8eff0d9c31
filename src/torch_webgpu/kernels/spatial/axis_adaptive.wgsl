// Windows that divide an axis of `size` into `extent` parts of nearly equal length, overlapping where they must.

alias Norm = i32;

fn window_start(a: Axis, o: i32) -> i32 { return i32(u32(o) * u32(a.size) / u32(a.extent)); }

fn window_end(a: Axis, o: i32) -> i32 { return i32((u32(o + 1) * u32(a.size) + u32(a.extent) - 1u) / u32(a.extent)); }

fn taps(a: Axis, o: i32) -> i32 { return window_end(a, o) - window_start(a, o); }

fn tap(a: Axis, o: i32, t: i32) -> i32 { return window_start(a, o) + t; }

fn weight(a: Axis, o: i32, t: i32) -> f32 { return 1.0; }

fn norm(a: Axis, o: i32) -> Norm { return taps(a, o); }

fn first_candidate(a: Axis, i: i32) -> i32 { return i32(u32(i) * u32(a.extent) / u32(a.size)); }

fn candidates(a: Axis, i: i32) -> i32 {
  let end = i32((u32(i + 1) * u32(a.extent) + u32(a.size) - 1u) / u32(a.size));
  return end - first_candidate(a, i);
}

fn candidate(a: Axis, i: i32, t: i32) -> i32 { return first_candidate(a, i) + t; }

fn share(a: Axis, o: i32, i: i32) -> f32 { return select(0.0, 1.0, window_start(a, o) <= i && i < window_end(a, o)); }
