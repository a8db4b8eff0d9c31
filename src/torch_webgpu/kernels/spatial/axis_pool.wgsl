// Windows of a pooling layer: `window` taps, `dilation` apart, every `stride`; taps in the padding do not count.

alias Norm = i32;

fn window_start(a: Axis, o: i32) -> i32 {
  let start = o * a.stride - a.pad;
  return select(start, start + (a.dilation - 1 - start) / a.dilation * a.dilation, start < 0);
}

fn taps(a: Axis, o: i32) -> i32 {
  let end = min(o * a.stride - a.pad + (a.window - 1) * a.dilation + 1, a.size);
  return max(0, (end - window_start(a, o) + a.dilation - 1) / a.dilation);
}

fn tap(a: Axis, o: i32, t: i32) -> i32 { return window_start(a, o) + t * a.dilation; }

fn weight(a: Axis, o: i32, t: i32) -> f32 { return 1.0; }

fn norm(a: Axis, o: i32) -> Norm {
  let start = o * a.stride - a.pad;
  return select(taps(a, o), min(start + a.window, a.size + a.pad) - start, COUNT_INCLUDE_PAD);
}

fn first_candidate(a: Axis, i: i32) -> i32 {
  let reach = i + a.pad - (a.window - 1) * a.dilation;
  return max(0, (reach + a.stride - 1) / a.stride);
}

fn candidates(a: Axis, i: i32) -> i32 { return min((i + a.pad) / a.stride, a.extent - 1) - first_candidate(a, i) + 1; }

fn candidate(a: Axis, i: i32, t: i32) -> i32 { return first_candidate(a, i) + t; }

fn share(a: Axis, o: i32, i: i32) -> f32 { return select(0.0, 1.0, (i + a.pad - o * a.stride) % a.dilation == 0); }
